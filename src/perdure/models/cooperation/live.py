"""A run of an operation in memory: all that the rules need to know of it, kept up to date as rows are committed and
word arrives; and what it is about to write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.coordinator.timers import Timer
from perdure.kernel.ops import Settle, Tell
from perdure.kernel.records import Staged
from perdure.kernel.status import Status
from perdure.models.cooperation.define import Operation, Plan
from perdure.models.cooperation.events import (
    SLEEP_TOPIC,
    Lineage,
    Message,
    MessageEvent,
    ReturnValue,
    State,
)
from perdure.models.cooperation.failures import Failure, source_of
from perdure.models.cooperation.gathering import wake_of
from perdure.models.cooperation.moves import (
    Ask,
    Child,
    Handle,
    Invoke,
    NewRun,
    OperationRun,
    Undo,
)
from perdure.models.cooperation.progress import Folding, Progress
from perdure.models.transacting import Fate

Code = Invoke | Handle | Undo  # moves that name code to be run

_RANKS: Final = {
    State.CREATED: 0,
    State.ACTIVE: 1,
    State.COMMITTED: 2,
    State.ROLLING_BACK: 3,
    State.ROLLED_BACK: 4,
    State.ROLLBACK_FAILED: 4,
    State.DISMISSED: 4,
}


class News(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a parent is told of a child."""

    run_id: str
    state: State
    failure: Failure | None = None
    values: tuple[ReturnValue, ...] = ()


class LiveOperation:
    """One run. It does one thing at a time: it runs code, or has something committed, or waits."""

    __slots__ = (
        "asks", "children", "claim", "events", "execution", "folding", "handler", "has_waited", "heard", "id",
        "in_commit", "is_closed", "is_stale", "is_undone", "lineage", "message", "operation", "origin", "returned",
        "staged", "stopped", "timer", "told", "topics", "until", "values", "wakes",
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
        self.handler = operation.name
        self.lineage = lineage
        self.claim = claim
        self.origin = origin
        self.message: Any = operation.topic.read(payload)
        self.events = list(events)
        self.told = told
        self.asks = asks
        self.children = {child.lineage[-1]: child for child in children}
        self.wakes = wakes or {}
        self.topics = topics or {}  # of what it has emitted
        self.returned = frozenset(returned)
        self.values = list(values)  # its own and its children's
        self.has_waited = has_waited
        self.until: int | None = None  # the time in the store at which it goes on by itself
        self.stopped: set[str] = set()  # called runs that were told to stop
        self.heard = 0  # how often it has got word
        self.in_commit = False
        self.is_closed = False
        self.is_stale = False  # It is being read anew.
        self.is_undone = False  # It was told so.
        self.staged: Staged | None = None  # what code of it came to that has not become rows yet
        self.execution: Any = None
        self.timer: Timer | None = None
        self.folding: Folding | None = None

    @property
    def progress(self) -> Progress:
        """What its rows come to. Raises Mismatch."""
        return self.folded().progress()

    def folded(self) -> Folding:
        """With the rows that it is about to write, while it is: see `forget`. Raises Mismatch."""
        if self.folding is None:
            folding = Folding(self.plan)
            for row in self.events:
                folding.add(row)
            self.folding = folding
        return self.folding

    def forget(self) -> None:
        """What it was about to write is not written: its rows are those that it had before."""
        self.folding = None

    @property
    def plan(self) -> Plan:
        return self.operation.plan

    @property
    def is_busy(self) -> bool:
        return self.in_commit or self.execution is not None

    @property
    def source(self) -> str:
        return source_of(self.handler, self.id)

    def view(self, now: int, children: Iterable[Child] = ()) -> OperationRun:
        """As the rules see it, with children that are about to be written. Its rows are not in it: its progress is
        what they come to."""
        return OperationRun(
            lineage=self.lineage,
            handler=self.handler,
            origin=self.origin,
            told=self.told,
            asks=self.asks,
            children=(*self.children.values(), *children),
            wakes=self.wakes,
            returned=self.returned,
            now=now,
        )

    def with_news(self, news: Iterable[News]) -> list[Child]:
        """Its children after they were heard of."""
        children = dict(self.children)
        for one in news:
            child = children.get(one.run_id)
            if child is not None and _RANKS[one.state] > _RANKS[child.state]:
                children[one.run_id] = replace(child, state=one.state, failure=one.failure)
        return list(children.values())

    def hear(self, news: News) -> bool:
        """Take in what a child has become; False if there is no such child."""
        if news.run_id not in self.children:
            return False
        self.children = {child.lineage[-1]: child for child in self.with_news([news])}
        known = {(value.lineage, value.variable) for value in self.values}
        self.values += [value for value in news.values if (value.lineage, value.variable) not in known]
        return True

    def learn(self, view: OperationRun, values: Iterable[ReturnValue]) -> None:
        """Take in what others wrote: what it was told, what is asked of it, what its children have become."""
        self.told = view.told or self.told
        self.asks = view.asks
        known = {child.lineage[-1]: child for child in view.children}
        news = [News(child.lineage[-1], child.state, child.failure) for child in known.values()]
        self.children = {child.lineage[-1]: child for child in self.with_news(news)}
        for run_id, child in known.items():
            self.children.setdefault(run_id, child)
        have = {(value.lineage, value.variable) for value in self.values}
        self.values += [value for value in values if (value.lineage, value.variable) not in have]

    def close(self) -> None:
        self.is_closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Draft:
    """What a run is about to write, in one commit, and what it does then."""

    __slots__ = (
        "began", "children", "code", "failure", "late", "messages", "own", "rows", "runs", "seen", "staged", "state",
        "status", "stopped", "tells", "until", "until_stored", "values",
    )  # fmt: skip

    def __init__(self, status: Status) -> None:
        self.status = status
        self.rows: list[MessageEvent] = []  # of its own lineage and of others
        self.own: list[MessageEvent] = []  # those of its own
        self.messages: tuple[Message, ...] = ()
        self.values: tuple[ReturnValue, ...] = ()
        self.runs: tuple[NewRun, ...] = ()
        self.children: tuple[Child, ...] = ()
        self.began: tuple[LiveOperation, ...] = ()  # new runs that this engine takes at once
        self.seen: tuple[tuple[str, str], ...] = ()
        self.tells: tuple[Tell | Settle, ...] = ()
        self.until: int | None = None  # when it goes on by itself
        self.until_stored: int | None = None  # the same, if it is to be in the store
        self.code: Code | None = None
        self.state: State | None = None  # that it ends in
        self.failure: Failure | None = None
        self.stopped: list[str] = []  # called runs that are told to stop
        self.late: dict[str, str] = {}  # messages that were emitted before, for which there are new runs; their topics
        self.staged = ""  # where what becomes rows now was staged

    @property
    def cause(self) -> str:
        """Why its status changes, for the audit trail."""
        if self.code is not None:
            return self.code.name
        return self.own[-1].type.lower() if self.own else "told"

    def apply(self, live: LiveOperation) -> None:
        """It is committed."""
        live.events += self.own
        if self.children:
            live.children |= {child.lineage[-1]: child for child in self.children}
        if self.messages:
            live.wakes |= wakes_of(self.messages)
            live.topics |= {message.id: message.topic for message in self.messages}
        if self.values:
            live.returned |= {value.variable for value in self.values}
            live.values += self.values
        live.until = self.until_stored
        live.stopped.update(self.stopped)


def wakes_of(messages: Iterable[Message]) -> dict[str, int]:
    return {message.id: wake_of(message) for message in messages if message.topic == SLEEP_TOPIC}


class StepExecution:
    """Code of a run in flight, for carriers."""

    __slots__ = ("code", "context", "coroutine", "dropped", "fate", "live", "task")

    def __init__(self, live: LiveOperation, code: Code) -> None:
        self.live = live
        self.code = code
        self.coroutine: Any = None
        self.context: Any = None
        self.task: asyncio.Future[Any] | None = None
        self.dropped = False
        self.fate: Fate | None = None  # of what it writes in a transaction

    @property
    def label(self) -> str:
        return f"step {self.code.name!r} of run {self.live.id!r}"

    def suspended(self) -> None:
        """There is no time limit but the deadlines, which are looked at between steps."""

    def drop(self) -> None:
        """The outcome no longer matters. What runs in a thread is left to end."""
        self.dropped = True
        if self.fate is not None:
            self.fate.give_up()
        if self.task is not None and not self.task.done():
            self.task.cancel()
