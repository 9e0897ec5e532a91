"""A run of an operation in memory, and the draft of its next commit.

The run has everything that the machine needs. It is updated when rows are committed and when notifications arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec import Struct

from perdure.kernel.lineages import Lineage
from perdure.kernel.ops import Notify, Settle
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.rows import Staged
from perdure.kernel.rows import Wait as KernelWait
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.cooperation.attempts import Attempts
from perdure.models.cooperation.children import Child, Children
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.failures import Failure, source_of
from perdure.models.cooperation.message_events import SLEEP_TOPIC, EventType, Message, MessageEvent, State
from perdure.models.cooperation.moves import (
    Ask,
    Awaits,
    Handle,
    Invoke,
    NewRun,
    OperationRun,
    Undo,
)
from perdure.models.cooperation.progress import Progress, Window
from perdure.models.cooperation.progress_fold import Folding
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.sleeps import wake_of
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.ports import TimerHandle

Code = Invoke | Handle | Undo  # the moves that run code


class ChildReport(Struct, frozen=True, omit_defaults=True, gc=False):
    """The report that a child sends to its parent about its new state."""

    run_id: str
    state: State
    failure: Failure | None = None
    values: tuple[ReturnValue, ...] = ()


class RevivedState(Struct, frozen=True, kw_only=True):
    """The state of a run that was read from the store, without its rows. In a new run this state is empty."""

    rollback_request: MessageEvent | None = None
    asks: tuple[Ask, ...] = ()
    children: Iterable[Child] = ()
    wakes: dict[str, int] = {}
    topics: dict[str, str] = {}
    returned: Iterable[str] = ()
    values: Iterable[ReturnValue] = ()
    has_waited: bool = False


_NEW: Final = RevivedState()


class LiveOperation:
    """One run in memory. It does one thing at a time. It runs code, waits for a commit, or waits for other runs."""

    __slots__ = (
        "_emissions",
        "_emissions_of",
        "asked",
        "asks",
        "attempts",
        "children",
        "claim",
        "dismissed",
        "events",
        "execution",
        "folding",
        "handler",
        "has_waited",
        "id",
        "in_commit",
        "is_closed",
        "is_drafting",
        "is_stale",
        "joined",
        "landing",
        "lineage",
        "message",
        "notified",
        "operation",
        "origin",
        "plan",
        "returned",
        "rollback_request",
        "staged",
        "stopped",
        "timer",
        "topics",
        "until",
        "values",
        "wakes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        operation: Operation[Any],
        lineage: Lineage,
        claim: int,
        origin: MessageEvent,
        payload: str,
        events: Iterable[MessageEvent] = (),
        revived: RevivedState = _NEW,
    ) -> None:
        self.id = lineage[-1]
        self.operation = operation
        self.plan = operation.plan
        self.handler = operation.name
        self.lineage = lineage
        self.claim = claim
        self.origin = origin
        self.message: Any = operation.topic.read(payload)
        self.events = list(events)
        self.rollback_request = revived.rollback_request
        self.asks = revived.asks
        children = revived.children
        self.children = children if isinstance(children, Children) else Children(children)
        self.wakes = revived.wakes or {}
        self.topics = revived.topics or {}  # the topics of the messages that it has emitted
        self.returned = set(revived.returned)  # the names of the values that it has returned
        # the values that it and its children have returned
        self.values = {value.key: value for value in revived.values}
        self.has_waited = revived.has_waited
        self.until: int | None = None  # the stored time at which it goes on by itself
        # Three windows: the window whose called runs were stopped, the window whose missing children were dismissed,
        # and the window that was compared with the registry. The last has the version of the registry.
        self.stopped: Window | None = None
        self.dismissed: Window | None = None
        self.joined: tuple[Window, int] | None = None
        self.notified = 0  # the number of the last notification that it has read
        self.asked = 0  # the number of the last notification that asked it to give up
        self.landing: Callable[[], None] | None = None  # writes the outcome of code, after the run was read again
        self.in_commit = False
        self.is_closed = False
        self.is_drafting = False  # whether its draft takes more than one turn of the loop
        self.is_stale = False  # whether it is being read again
        self.staged: Staged | None = None  # the outcome of its code that is staged and not in rows yet
        self.attempts: Attempts | None = None  # the attempts of code that has not ended
        self.execution: Any = None
        self.timer: TimerHandle | None = None
        self.folding: Folding | None = None
        self._emissions: dict[str, MessageEvent] = {}
        self._emissions_of = 0  # how many rows were searched for emissions

    @property
    def progress(self) -> Progress:
        """The run's progress, according to its rows. Raises Mismatch."""
        return (self.folding or self.folded()).progress()

    def folded(self) -> Folding:
        """Return the fold of the run's rows. While the run has a draft, the fold includes the rows of the draft.
        `forget` drops these rows.

        Raises Mismatch.
        """
        return self.folding or at_once(self.folded_in_pieces())

    def folded_in_pieces(self) -> Pieces[Folding]:
        """Do what `folded` does, in pieces, because a run that was read from the store may have many rows."""
        if self.folding is None:
            folding = Folding(self.plan)
            for start, part in parts(self.events):
                if start:
                    yield
                for row in part:
                    folding.add(row)
            self.folding = folding
        return self.folding

    def emissions(self) -> Pieces[dict[str, MessageEvent]]:
        """Return the run's EMITTED rows, by message. Each row is searched only once, however often this is called."""
        for start, part in parts(self.events[self._emissions_of :]):
            if start:
                yield
            self._emissions |= {row.message_id: row for row in part if row.type is EventType.EMITTED}
        self._emissions_of = len(self.events)
        return self._emissions

    def position_of(self, code: Code) -> str:
        """Return the position of the code that comes next. All attempts of that code have this position. No other
        execution has it.
        """
        return f"{code.name}[{self.progress.next_seq - 1}]"

    def is_pausing(self, code: Code, now: int) -> bool:
        """Return whether code has failed and waits for its next attempt."""
        attempts = self.attempts
        return attempts is not None and attempts.due_at > now and attempts.position == self.position_of(code)

    def forget(self) -> None:
        """Drop a draft that was not committed. After that, the run has the rows and children that it had before the
        draft.
        """
        self.folding = None
        self.children.discard()
        self.joined = None

    @property
    def is_busy(self) -> bool:
        return self.in_commit or self.execution is not None or self.landing is not None or self.is_drafting

    @property
    def source(self) -> str:
        return source_of(self.handler, self.id)

    def view(self, now: int, children: Children | None = None) -> OperationRun:
        """Return the run in the form that the machine uses. It has the given children, or all children including those
        of the draft.

        The view does not contain the run's rows. Pass `progress` to the machine instead.
        """
        return OperationRun(
            lineage=self.lineage,
            handler=self.handler,
            origin=self.origin,
            rollback_request=self.rollback_request,
            asks=self.asks,
            children=self.children if children is None else children,
            wakes=self.wakes,
            returned=self.returned,
            now=now,
        )

    def take_in(self, report: ChildReport) -> bool:
        """Take in a child's report. Return False if the run has no child of that id."""
        child = self.children.get(report.run_id)
        if child is None:
            return False
        self.children.put(child.become(report.state, report.failure))
        for value in report.values:
            self.values.setdefault(value.key, value)
        return True

    def ask(self, ask: Ask) -> None:
        """Take in a request to this run, or to a run above it. If several requests have the same failure, the request
        to the deepest lineage counts.
        """
        same = [known for known in self.asks if known.failure.place == ask.failure.place]
        if all(known.depth < ask.depth for known in same):
            self.asks = (*(known for known in self.asks if known not in same), ask)

    def learn(self, view: OperationRun, values: Iterable[ReturnValue]) -> None:
        """Take in the rows that other writers have written: a rollback request, requests to give up, and the states of
        its children.
        """
        self.rollback_request = view.rollback_request or self.rollback_request
        self.asks = view.asks
        for child in view.children:
            known = self.children.get(child.id)
            if known is None:
                self.children.add(child)
            else:
                self.children.put(known.become(child.state, child.failure))
        for value in values:
            self.values.setdefault(value.key, value)

    def close(self) -> None:
        self.is_closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Draft:
    """The writes of a run's next commit, and the action after that commit."""

    __slots__ = (
        "asked", "awaits", "began", "code", "dismissed", "failure", "has_members", "keeps_attempts", "late",
        "messages", "notices", "own", "registry_version", "rows", "runs", "seen", "staged", "state", "status",
        "stopped", "until", "until_stored", "values", "wait",
    )  # fmt: skip

    def __init__(self, status: Status) -> None:
        self.status = status
        self.asked = 0  # `LiveOperation.asked` when the draft was made
        self.rows: list[MessageEvent] = []  # rows of its own lineage and of other lineages
        self.own: list[MessageEvent] = []  # the rows of its own lineage
        self.messages: tuple[Message, ...] = ()
        self.values: tuple[ReturnValue, ...] = ()
        self.runs: tuple[NewRun, ...] = ()
        self.has_members = False  # whether the commit leaves mail about the tokens of new runs
        self.began: tuple[LiveOperation, ...] = ()  # new runs that this engine takes with the commit
        self.seen: tuple[tuple[str, str], ...] = ()
        self.notices: tuple[Notify | Settle, ...] = ()
        self.awaits: Awaits = "any"  # which children must end before the run goes on, if it suspends
        self.until: int | None = None  # the time at which it goes on by itself
        self.until_stored: int | None = None  # that time, if it must be stored
        self.code: Code | None = None
        self.state: State | None = None  # the state in which it ends
        self.failure: Failure | None = None
        self.stopped: Window | None = None  # the window whose called runs it stops
        self.dismissed: Window | None = None  # the window whose missing children it dismisses
        self.registry_version = 0  # the version of the registry that emissions and late runs use
        self.late: dict[str, str] = {}  # topics of earlier messages that get new runs, by message
        self.staged = ""  # the position of the staged outcome that this draft turns into rows
        self.keeps_attempts = False  # whether the next code has failed attempts
        self.wait: KernelWait | None = None  # the wait that stores these attempts

    @property
    def cause(self) -> str:
        """The cause of the change of status, for the audit trail."""
        if self.code is not None:
            return self.code.name
        if self.wait is not None:
            return "step failed"
        return self.own[-1].type.lower() if self.own else "notified"

    @property
    def begins(self) -> bool:
        """Whether a run begins with this draft. If so, the draft writes SEEN, and the run does not end at once."""
        return bool(self.own) and self.own[0].type is EventType.SEEN and self.state is None

    def apply(self, live: LiveOperation) -> None:
        """Bring the run up to date after the draft was committed."""
        live.events += self.own
        live.children.keep()
        if self.messages:
            live.wakes |= wakes_of(self.messages)
            live.topics |= {message.id: message.topic for message in self.messages}
        if self.values:
            live.returned.update(value.variable for value in self.values)
            live.values |= {value.key: value for value in self.values}
        live.until = self.until_stored
        if not self.keeps_attempts:
            live.attempts = None
        live.stopped = self.stopped or live.stopped
        live.dismissed = self.dismissed or live.dismissed


def wakes_of(messages: Iterable[Message]) -> dict[str, int]:
    return {message.id: wake_of(message) for message in messages if message.topic == SLEEP_TOPIC}


def revived(
    operation: Operation[Any], run: Run, view: OperationRun, payload: str, hierarchy: Hierarchy
) -> LiveOperation:
    """Return a run in memory that is made from its rows."""
    emitted = [row.message_id for row in view.events if row.type is EventType.EMITTED]
    return LiveOperation(
        operation=operation,
        lineage=view.lineage,
        claim=run.claim,
        origin=view.origin,
        payload=payload,
        events=view.events,
        revived=RevivedState(
            rollback_request=view.rollback_request,
            asks=view.asks,
            children=view.children,
            wakes=dict(view.wakes),
            topics={message_id: hierarchy.messages[message_id].topic for message_id in emitted},
            returned=view.returned,
            values=hierarchy.values_of(view),
            has_waited=True,
        ),
    )
