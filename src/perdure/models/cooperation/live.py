"""A run of an operation in memory: all that the rules need to know of it, kept up to date as rows are committed and
word arrives; and what it is about to write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from perdure.kernel.ops import Settle, Tell
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.records import Run, Staged
from perdure.kernel.records import Wait as KernelWait
from perdure.kernel.status import Status
from perdure.models.cooperation.attempts import Attempts
from perdure.models.cooperation.children import Child, Children
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.events import (
    SLEEP_TOPIC,
    EventType,
    Lineage,
    Message,
    MessageEvent,
    ReturnValue,
    State,
)
from perdure.models.cooperation.failures import Failure, source_of
from perdure.models.cooperation.hierarchy import Hierarchy, wake_of
from perdure.models.cooperation.moves import (
    Ask,
    Handle,
    Invoke,
    NewRun,
    OperationRun,
    Undo,
)
from perdure.models.cooperation.progress import Folding, Progress, Window
from perdure.ports import TimerHandle

Code = Invoke | Handle | Undo  # moves that name code to be run


class News(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a parent is told of a child."""

    run_id: str
    state: State
    failure: Failure | None = None
    values: tuple[ReturnValue, ...] = ()


class LiveOperation:
    """One run. It does one thing at a time: it runs code, or has something committed, or waits."""

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
        "heard",
        "id",
        "in_commit",
        "is_closed",
        "is_drafting",
        "is_stale",
        "is_undone",
        "joined",
        "landing",
        "lineage",
        "message",
        "operation",
        "origin",
        "plan",
        "returned",
        "staged",
        "stopped",
        "timer",
        "told",
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
        told: MessageEvent | None = None,
        asks: tuple[Ask, ...] = (),
        children: Iterable[Child] = (),
        wakes: dict[str, int] | None = None,
        topics: dict[str, str] | None = None,
        returned: Iterable[str] = (),
        values: Iterable[ReturnValue] = (),
        has_waited: bool = False,
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
        self.told = told
        self.asks = asks
        self.children = children if isinstance(children, Children) else Children(children)
        self.wakes = wakes or {}
        self.topics = topics or {}  # of what it has emitted
        self.returned = frozenset(returned)
        self.values = {value.key: value for value in values}  # its own and its children's
        self.has_waited = has_waited
        self.until: int | None = None  # the time in the store at which it goes on by itself
        # The window whose called runs were told to stop, whose missing children were told not to begin, and that was
        # compared with which version of the book of handlers.
        self.stopped: Window | None = None
        self.dismissed: Window | None = None
        self.joined: tuple[Window, int] | None = None
        self.heard = 0  # how often it has got word
        self.asked = 0  # and how often it had when it was last asked to give up
        self.landing: Callable[[], None] | None = None  # writes what code came to, once the run has been read anew
        self.in_commit = False
        self.is_closed = False
        self.is_drafting = False  # What it is about to write takes more than one turn of the loop.
        self.is_stale = False  # It is being read anew.
        self.is_undone = False  # It was told so.
        self.staged: Staged | None = None  # what code of it came to that has not become rows yet
        self.attempts: Attempts | None = None  # at code that has not come to its end
        self.execution: Any = None
        self.timer: TimerHandle | None = None
        self.folding: Folding | None = None
        self._emissions: dict[str, MessageEvent] = {}
        self._emissions_of = 0  # the number of rows that these were looked for in

    @property
    def progress(self) -> Progress:
        """What its rows come to. Raises Mismatch."""
        return (self.folding or self.folded()).progress()

    def folded(self) -> Folding:
        """With the rows that it is about to write, while it is: see `forget`. Raises Mismatch."""
        return self.folding or at_once(self.folded_in_pieces())

    def folded_in_pieces(self) -> Pieces[Folding]:
        """As `folded`: one that was brought back to life, and has many rows, takes several pieces."""
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
        """Its EMITTED rows, by message. Each row is looked at once, however often this is asked for."""
        for start, part in parts(self.events[self._emissions_of :]):
            if start:
                yield
            self._emissions |= {row.message_id: row for row in part if row.type is EventType.EMITTED}
        self._emissions_of = len(self.events)
        return self._emissions

    def position_of(self, code: Code) -> str:
        """Where code stands that comes next: the same for all its attempts, and for no other execution."""
        return f"{code.name}[{self.progress.next_seq - 1}]"

    def is_pausing(self, code: Code, now: int) -> bool:
        """Whether code has failed, and its next attempt is not due yet."""
        attempts = self.attempts
        return attempts is not None and attempts.due_at > now and attempts.position == self.position_of(code)

    def forget(self) -> None:
        """What it was about to write is not written: its rows and its children are those that it had before."""
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
        """As the rules see it, with children that are about to be written, or with those that are given. Its rows are
        not in it: its progress is what they come to."""
        return OperationRun(
            lineage=self.lineage,
            handler=self.handler,
            origin=self.origin,
            told=self.told,
            asks=self.asks,
            children=self.children if children is None else children,
            wakes=self.wakes,
            returned=self.returned,
            now=now,
        )

    def topics_of_children(self) -> dict[str, str]:
        """The topic of the message that each child handles, by the child's id."""
        return {child.id: self.topics.get(child.message_id, "") for child in self.children}

    def hear(self, news: News) -> bool:
        """Take in what a child has become; False if there is no such child."""
        child = self.children.get(news.run_id)
        if child is None:
            return False
        self.children.put(child.become(news.state, news.failure))
        for value in news.values:
            self.values.setdefault(value.key, value)
        return True

    def ask(self, ask: Ask) -> None:
        """Take in what is asked of it, or of a run above it, once: what concerns this run most counts."""
        same = [known for known in self.asks if known.failure.place == ask.failure.place]
        if all(known.depth < ask.depth for known in same):
            self.asks = (*(known for known in self.asks if known not in same), ask)

    def learn(self, view: OperationRun, values: Iterable[ReturnValue]) -> None:
        """Take in what others wrote: what it was told, what is asked of it, what its children have become."""
        self.told = view.told or self.told
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
    """What a run is about to write, in one commit, and what it does then."""

    __slots__ = (
        "asked", "began", "book", "code", "dismissed", "failure", "has_members", "keeps_attempts", "late", "messages",
        "own", "rows", "runs", "seen", "staged", "state", "status", "stopped", "tells", "until", "until_stored",
        "values", "wait",
    )  # fmt: skip

    def __init__(self, status: Status) -> None:
        self.status = status
        self.asked = 0  # as LiveOperation.asked when this was drafted
        self.rows: list[MessageEvent] = []  # of its own lineage and of others
        self.own: list[MessageEvent] = []  # those of its own
        self.messages: tuple[Message, ...] = ()
        self.values: tuple[ReturnValue, ...] = ()
        self.runs: tuple[NewRun, ...] = ()
        self.has_members = False  # Mail is left about tokens of these runs.
        self.began: tuple[LiveOperation, ...] = ()  # new runs that this engine takes at once
        self.seen: tuple[tuple[str, str], ...] = ()
        self.tells: tuple[Tell | Settle, ...] = ()
        self.until: int | None = None  # when it goes on by itself
        self.until_stored: int | None = None  # the same, if it is to be in the store
        self.code: Code | None = None
        self.state: State | None = None  # that it ends in
        self.failure: Failure | None = None
        self.stopped: Window | None = None  # whose called runs are told to stop
        self.dismissed: Window | None = None  # whose missing children are told not to begin
        self.book = 0  # the version of the book of handlers that emissions and late runs go by
        self.late: dict[str, str] = {}  # messages that were emitted before, for which there are new runs; their topics
        self.staged = ""  # where what becomes rows now was staged
        self.keeps_attempts = False  # The code that comes next has been tried before.
        self.wait: KernelWait | None = None  # what is to be stored of these attempts

    @property
    def cause(self) -> str:
        """Why its status changes, for the audit trail."""
        if self.code is not None:
            return self.code.name
        if self.wait is not None:
            return "step failed"
        return self.own[-1].type.lower() if self.own else "told"

    @property
    def begins(self) -> bool:
        """Whether this is what a run's code begins with: SEEN, and not because it never will."""
        return bool(self.own) and self.own[0].type is EventType.SEEN and self.state is None

    def apply(self, live: LiveOperation) -> None:
        """It is committed."""
        live.events += self.own
        live.children.keep()
        if self.messages:
            live.wakes |= wakes_of(self.messages)
            live.topics |= {message.id: message.topic for message in self.messages}
        if self.values:
            live.returned |= {value.variable for value in self.values}
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
    """A run that is brought back to life from its rows."""
    emitted = [row.message_id for row in view.events if row.type is EventType.EMITTED]
    return LiveOperation(
        operation=operation,
        lineage=view.lineage,
        claim=run.claim,
        origin=view.origin,
        payload=payload,
        events=view.events,
        told=view.told,
        asks=view.asks,
        children=view.children,
        wakes=dict(view.wakes),
        topics={message_id: hierarchy.messages[message_id].topic for message_id in emitted},
        returned=view.returned,
        values=hierarchy.values_of(view),
        has_waited=True,
    )
