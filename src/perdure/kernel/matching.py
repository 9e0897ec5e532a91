"""Broadcasts and ends of runs: who waits for them. Decided inside the transaction, since both sides are everybody's.

`settle` does no I/O: it yields questions about the tables, which its store answers from inside the transaction, and
returns what is to be written. Before it is asked, the batch's waits are in the tables, those dropped or cleared are
not, and the events that it reads are gone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch, Committed, Won
from perdure.kernel.boxes import accepts
from perdure.kernel.records import DeadLetter, Event, Run, Wait
from perdure.kernel.status import FINISHED

SPREAD_MAX: Final = 500  # so many get a retained event in one commit
_QUEUE_PAGE: Final = 100


class Freed(Struct, frozen=True):
    """Events that had won one of these positions, and all that these runs still have."""

    positions: list[tuple[str, str]]
    runs: list[str]


class Queue(Struct, frozen=True):
    """Events in the queue of a name that have not expired, in order, those to be consumed and those retained; from
    `after` on."""

    name: str
    after: int
    limit: int


class Shapes(Struct, frozen=True):
    """By which fields waits for this name choose: the names of their fields."""

    name: str


class Waiting(Struct, frozen=True):
    """Open waits for this name that choose by exactly these fields, the longest waiting first, up to a number."""

    name: str
    where: tuple[tuple[str, str], ...]
    after: int
    before: int | None
    limit: int


class Pending(Struct, frozen=True):
    """How many events to be consumed are in the queue of a name."""

    name: str


class HasRead(Struct, frozen=True):
    """Which of these retained events a run has read, or was sent before it was created."""

    run_id: str
    events: list[tuple[str, int]]  # ids and numbers
    mode: str


class Ended(Struct, frozen=True):
    """Which of these runs have ended, or do not exist."""

    run_ids: list[str]


class Awaiting(Struct, frozen=True):
    """Who waits for the end of these runs."""

    run_ids: list[str]


class Kept(Struct, frozen=True):
    """A retained event that is still on its way to those who wait for it, and the number of the last who has it."""

    event_id: str


Question = Freed | Queue | Shapes | Waiting | Pending | HasRead | Ended | Awaiting | Kept
Asking = Generator[Question, Any, Any]


class Settlement(Struct, kw_only=True):
    """What is to be written to the tables of events and waits, and what the commit found out.

    `queued` and `given` are new rows; `back` leave their run for the queue of their name; `moved` leave the queue for a
    run; `freed` stay with their run; `spreading` says for retained events up to which wait they have come (None: all).
    """

    queued: list[Event] = field(default_factory=list)
    given: list[Event] = field(default_factory=list)
    moved: list[Event] = field(default_factory=list)
    back: list[Event] = field(default_factory=list)
    freed: list[Event] = field(default_factory=list)
    gone: list[Event] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    spreading: dict[str, int | None] = field(default_factory=dict)
    marks: list[tuple[str, str]] = field(default_factory=list)  # positions that were won: run id, position
    found: Committed = field(default_factory=Committed)


def settle(batch: Batch, base: int) -> Generator[Question, Any, Settlement]:
    """Match what the batch brings with what is there. `base` is added to the batch's numbers."""
    matching = _Matching(batch, base)
    yield from matching.free()
    yield from matching.look_in_queues()
    for event in matching.returning:
        yield from matching.offer(event)
    for event in batch.events:
        if event.run_id is None:
            yield from matching.send(replace(event, number=base + event.number), batch.pending_max[event.id])
    for event_id in batch.spread:
        yield from matching.go_on_spreading(event_id)
    yield from matching.look_for_ends()
    return matching.out


class _Matching:
    def __init__(self, batch: Batch, base: int) -> None:
        self.batch = batch
        self.base = base
        self.out = Settlement()
        self.returning: list[Event] = []
        self._won = {(run_id, position) for run_id, _, position, _ in batch.events_given}
        self._won |= {(event.run_id or "", event.position) for event in batch.events if event.position is not None}
        self.out.marks += sorted(self._won)
        self._taken: set[str] = set()
        self._shapes: dict[str, list[tuple[str, ...]]] = {}

    # What had been given to waits that are gone.

    def free(self) -> Asking:
        batch = self.batch
        if not batch.waits_dropped and not batch.waits_cleared and not batch.hops:
            return
        cleared = set(batch.waits_cleared)
        freed: list[Event] = yield Freed(batch.waits_dropped, [*batch.waits_cleared, *batch.hops])
        for event in freed:
            if event.shared and not event.consumed:
                self.out.gone.append(event)  # A copy: the event itself is kept.
            elif event.shared:
                self.returning.append(event)
            elif event.run_id not in cleared:
                self.out.freed.append(event)
            elif event.fallback == "broadcast":
                self.returning.append(event)
            else:
                self.out.gone.append(event)
                if event.fallback == "dead_letter":
                    self.out.dead.append(self._dead_letter(event))
        self.returning.sort(key=lambda event: event.number)

    def _dead_letter(self, event: Event) -> DeadLetter:
        target: Run = self.batch.runs[event.run_id or ""].run
        return DeadLetter(
            id=event.id,
            name=event.name,
            value=event.value,
            fields=event.fields,
            run_id=target.id,
            status=target.status,
            ended_at=target.completed_at or target.updated_at,
            consumed=event.consumed,
            at=event.at,
        )

    # New waits look for what is there.

    def look_in_queues(self) -> Asking:
        groups: dict[tuple[str, str], list[Wait]] = {}
        for wait in self.batch.waits.values():
            if wait.kind == "event" and (wait.run_id, wait.position) not in self._won:
                groups.setdefault((wait.run_id, wait.position), []).append(wait)
        for group in groups.values():
            best: tuple[Event, Wait] | None = None
            for wait in group:
                event: Event | None = yield from self._earliest(wait)
                if event is not None and (best is None or event.number < best[0].number):
                    best = event, wait
            if best is not None:
                self._give(*best)

    def _earliest(self, wait: Wait) -> Asking:
        after = 0
        while True:
            page: list[Event] = yield Queue(wait.name, after, _QUEUE_PAGE)
            fitting = [event for event in page if event.id not in self._taken and accepts(wait, event)]
            retained = [(event.id, event.number) for event in fitting if not event.consumed]
            seen: set[str] = set()
            if retained and wait.mode != "after_wait":
                seen = yield HasRead(wait.run_id, retained, wait.mode)
            for event in fitting:
                if event.consumed or (wait.mode != "after_wait" and event.id not in seen):
                    return event
            if len(page) < _QUEUE_PAGE:
                return None
            after = page[-1].number

    def _give(self, event: Event, wait: Wait) -> None:
        """Let an event of the queue win a wait."""
        given = self._won_by(event, wait)
        if event.consumed:
            self._taken.add(event.id)
            self.out.moved.append(given)
        else:
            self.out.given.append(given)

    def _won_by(self, event: Event, wait: Wait) -> Event:
        given = replace(event, run_id=wait.run_id, shared=True, position=wait.position, option=wait.option)
        self._win(wait, given, None)
        return given

    def _win(self, wait: Wait, event: Event | None, target: str | None) -> None:
        self._won.add((wait.run_id, wait.position))
        self.out.marks.append((wait.run_id, wait.position))
        self.out.found.won.append(
            Won(run_id=wait.run_id, position=wait.position, option=wait.option, event=event, target=target)
        )
        write = self.batch.runs.get(wait.run_id)
        if write is not None and write.awake is not None:
            self.out.found.awake.add(wait.run_id)

    # Broadcasts look for who waits.

    def send(self, event: Event, pending_max: int) -> Asking:
        """A new broadcast."""
        sent = self.out.found.sent
        if not event.consumed:
            self.out.queued.append(event)
            sent[event.id] = yield from self._spread(event, 0)
            return
        wait: Wait | None = yield from self._longest(event)
        if wait is not None:
            self.out.given.append(self._won_by(event, wait))
            sent[event.id] = (wait.run_id,)
            return
        pending: int = yield Pending(event.name)
        pending += sum(other.name == event.name and other.consumed for other in self.out.queued)
        if pending >= pending_max:
            self.out.found.refused[event.id] = pending
        else:
            self.out.queued.append(event)
            sent[event.id] = ()

    def offer(self, event: Event) -> Asking:
        """An event that comes back: to whoever waits now, or to its queue, where its number gives it its place."""
        if event.expires_at <= self.batch.at:
            self.out.gone.append(event)
            return
        if not event.consumed:
            self.out.back.append(event)
            yield from self._spread(event, 0)
            return
        wait: Wait | None = yield from self._longest(event)
        if wait is None:
            self.out.back.append(event)
        else:
            self.out.gone.append(event)
            self.out.given.append(self._won_by(event, wait))

    def go_on_spreading(self, event_id: str) -> Asking:
        found: tuple[Event, int] | None = yield Kept(event_id)
        if found is not None:
            yield from self._spread(*found)

    def _spread(self, event: Event, after: int) -> Asking:
        """Give a copy to those who wait, the longest waiting first, and keep in mind how far that got."""
        waits: list[Wait] = yield from self._all_waiting(event, after, SPREAD_MAX + 1)
        for wait in waits[:SPREAD_MAX]:
            self.out.given.append(self._won_by(event, wait))
        if len(waits) > SPREAD_MAX:
            self.out.spreading[event.id] = waits[SPREAD_MAX - 1].number
            self.out.found.spreading.append(event.id)
        else:
            self.out.spreading[event.id] = None
        return tuple(wait.run_id for wait in waits[:SPREAD_MAX])

    def _longest(self, event: Event) -> Asking:
        waits: list[Wait] = yield from self._all_waiting(event, 0, 1)
        return waits[0] if waits else None

    def _all_waiting(self, event: Event, after: int, limit: int) -> Asking:
        """Up to `limit` waits that the event fits, the longest waiting first, one per position."""
        if event.name not in self._shapes:
            self._shapes[event.name] = yield Shapes(event.name)
        before = event.number if not event.consumed else None
        found: list[Wait] = []
        for shape in self._shapes[event.name]:
            if all(name in event.fields for name in shape):
                where = tuple((name, event.fields[name]) for name in shape)
                last, missing = after, limit
                while missing > 0:
                    page: list[Wait] = yield Waiting(event.name, where, last, before, missing)
                    fresh = [wait for wait in page if (wait.run_id, wait.position) not in self._won]
                    found += fresh
                    if len(page) < missing:
                        break
                    last, missing = page[-1].number, missing - len(fresh)
        found.sort(key=lambda wait: wait.number)
        return list(_one_per_position(found))[:limit]

    # Ends of runs.

    def look_for_ends(self) -> Asking:
        runs = self.batch.runs
        ended = [run_id for run_id, write in runs.items() if write.run.status in FINISHED]
        targets = {
            wait.target: wait
            for wait in self.batch.waits.values()
            if wait.target is not None and (wait.target not in runs or runs[wait.target].run.status in FINISHED)
        }
        over: set[str] = set()
        if targets:
            asked = [target for target in targets if target not in runs]
            over = set((yield Ended(asked))) if asked else set()
            over |= {target for target in targets if target in runs}
        for wait in self.batch.waits.values():
            if wait.target in over and (wait.run_id, wait.position) not in self._won:
                self._win(wait, None, wait.target)
        if ended:
            awaiting: list[Wait] = yield Awaiting(ended)
            for wait in awaiting:
                if (wait.run_id, wait.position) not in self._won:
                    self._win(wait, None, wait.target)


def _one_per_position(waits: list[Wait]) -> Iterator[Wait]:
    seen: set[tuple[str, str]] = set()
    for wait in waits:
        if (wait.run_id, wait.position) not in seen:
            seen.add((wait.run_id, wait.position))
            yield wait
