"""Broadcasts and ends of runs: who waits for them. Decided inside the transaction, since both sides are everybody's.

`settle` does no I/O: it yields questions about the tables, which its store answers from inside the transaction, and
returns what is to be written. Before it is asked, the batch's waits are in the tables, those dropped or cleared are
not, and the events that it reads are gone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch, Committed, Won
from perdure.kernel.mailboxes import accepts
from perdure.kernel.records import DeadLetter, Event, Run, Wait
from perdure.kernel.status import FINISHED

SPREAD_MAX: Final = 500  # so many get a retained event in one commit
_QUEUE_PAGE: Final = 100


class Freed(Struct, frozen=True):
    """Events that had won one of these positions, all that the runs `over` still have, and what has won any position of
    the runs `on`, which go on: the rest of what these have stays where it is, and there may be much of it."""

    positions: list[tuple[str, str]]
    over: list[str]
    on: list[str]


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
    """How many events to be consumed are in the queue of a name. If there are as many as `limit`, those that have
    expired must not be counted."""

    name: str
    limit: int


class HasRead(Struct, frozen=True):
    """Which of these retained events a run has read or was given, or were sent before it was created."""

    run_id: str
    events: list[tuple[str, int]]  # ids and numbers
    mode: str


class Readers(Struct, frozen=True):
    """Which of these runs have read a retained event, or were given it."""

    event_id: str
    run_ids: list[str]


class Ended(Struct, frozen=True):
    """Which of these runs have ended, or do not exist."""

    run_ids: list[str]


class Awaiting(Struct, frozen=True):
    """Who waits for the end of these runs."""

    run_ids: list[str]


class Kept(Struct, frozen=True):
    """A retained event that is still on its way to those who wait for it, and the number of the last who has it."""

    event_id: str


Question = Freed | Queue | Shapes | Waiting | Pending | HasRead | Readers | Ended | Awaiting | Kept
Asking = Generator[Question, Any, Any]


class Settlement(Struct, kw_only=True):
    """What is to be written to the tables of events and waits, and what the commit found out.

    `queued` and `given` are new rows, the batch's own events among them; `back` leave their run for the queue of their
    name; `moved` leave the queue for a run; `freed` stay with their run, `gone` do not; `spreading` says for retained
    events up to which wait they have come (None: all). What leaves may be new in this batch, and not be in the tables.
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
    for event in matching.returning:
        yield from matching.offer(event)
    yield from matching.look_in_queues()
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
        self.out = Settlement(dead=list(batch.dead))
        self.returning: list[Event] = []
        self._won = {(run_id, position) for run_id, _, position, _ in batch.events_given}
        self._won |= {(event.run_id or "", event.position) for event in batch.events if event.position is not None}
        self.out.marks += sorted(self._won)
        self._taken: set[str] = set()
        self._copied: set[tuple[str, str]] = set()  # run id, retained event
        self._shapes: dict[str, list[tuple[str, ...]]] = {}

    # What had been given to waits that are gone.

    def free(self) -> Asking:
        """Also the batch's own events, for runs that end in it before they could read them."""
        batch = self.batch
        over = {r for r in batch.waits_cleared if r in batch.runs and batch.runs[r].run.status in FINISHED}
        again = {(run_id, event_id) for run_id, event_id, _, _ in batch.events_given}
        freed: list[Event] = []
        if batch.waits_dropped or batch.waits_cleared or batch.continued:
            on = [run_id for run_id in batch.waits_cleared if run_id not in over]
            freed = yield Freed(batch.waits_dropped, sorted(over), [*on, *batch.continued])
        # One that is dropped by its position and cleared with its run is found twice.
        for event in {(event.run_id, event.id): event for event in freed}.values():
            if event.shared and not event.consumed:
                self.out.gone.append(event)  # A copy: the event itself is kept.
            elif event.shared:
                self.returning.append(event)
            elif event.run_id in over:
                self._route(event)
            elif (event.run_id, event.id) not in again:  # Else it has won another position by now.
                self.out.freed.append(event)
        for event in batch.events:
            if event.run_id is not None:
                sent = replace(event, number=self.base + event.number)
                if event.run_id in over:
                    self._route(sent)
                else:
                    self.out.given.append(sent)
        self.returning.sort(key=lambda event: event.number)

    def _route(self, event: Event) -> None:
        """The run that it was sent to has ended."""
        if event.fallback == "broadcast":
            self.returning.append(event)
            return
        self.out.gone.append(event)
        if event.fallback == "dead_letter":
            self.out.dead.append(self._dead_letter(event))

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
        """The earliest sent of what is in the queue and what is on its way back there."""
        back = (event for event in self.out.back if event.consumed and accepts(wait, event))
        returned = min(back, key=lambda event: event.number, default=None)
        after = 0
        limit = 1  # Mostly the first one fits, and a queue may have thousands.
        while True:
            page: list[Event] = yield Queue(wait.name, after, limit)
            fitting = [event for event in page if event.id not in self._taken and accepts(wait, event)]
            retained = [(event.id, event.number) for event in fitting if not event.consumed]
            seen: set[str] = {event_id for event_id, _ in retained if (wait.run_id, event_id) in self._copied}
            if retained and wait.mode != "after_wait":
                seen |= yield HasRead(wait.run_id, retained, wait.mode)
            for event in fitting:
                if event.consumed or (wait.mode != "after_wait" and event.id not in seen):
                    return event if returned is None or event.number < returned.number else returned
            if len(page) < limit:
                return returned
            after, limit = page[-1].number, _QUEUE_PAGE

    def _give(self, event: Event, wait: Wait) -> None:
        """Let an event of the queue, or one on its way there, win a wait."""
        given = self._won_by(event, wait)
        if not event.consumed:
            self.out.given.append(given)
        elif event.run_id is not None:
            self.out.back = [other for other in self.out.back if other is not event]
            self.out.gone.append(event)
            self.out.given.append(given)
        else:
            self._taken.add(event.id)
            self.out.moved.append(given)

    def _won_by(self, event: Event, wait: Wait) -> Event:
        given = replace(event, run_id=wait.run_id, shared=True, position=wait.position, option=wait.option)
        if not event.consumed:
            self._copied.add((wait.run_id, event.id))
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
            reached: tuple[str, ...] = yield from self._spread(event, 0)
            reached += self._give_to_later(event)
            if reached or pending_max:
                self.out.queued.append(event)
                sent[event.id] = reached
            else:
                self.out.found.refused[event.id] = 0
                del self.out.spreading[event.id]
            return
        wait: Wait | None = yield from self._longest(event)
        if wait is not None:
            self.out.given.append(self._won_by(event, wait))
            sent[event.id] = (wait.run_id,)
            return
        pending: int = yield Pending(event.name, pending_max)
        pending += sum(e.name == event.name and e.consumed for e in (*self.out.queued, *self.out.back))
        pending -= sum(moved.name == event.name for moved in self.out.moved)
        if pending >= pending_max:
            self.out.found.refused[event.id] = pending
        else:
            self.out.queued.append(event)
            sent[event.id] = ()

    def offer(self, event: Event) -> Asking:
        """An event that comes back: to whoever has been waiting, or to its queue, where its number gives it its place.
        Those who begin to wait in this batch look there."""
        if event.expires_at <= self.batch.at:
            self.out.gone.append(event)
            return
        if not event.consumed:
            self.out.back.append(event)
            yield from self._spread(event, 0)
            return
        wait: Wait | None = yield from self._longest(event, self.base + 1)
        if wait is None:
            self.out.back.append(event)
        else:
            self.out.gone.append(event)
            self.out.given.append(self._won_by(event, wait))

    def go_on_spreading(self, event_id: str) -> Asking:
        found: tuple[Event, int] | None = yield Kept(event_id)
        if found is None:
            return
        if found[0].expires_at <= self.batch.at:
            self.out.spreading[event_id] = None
        else:
            yield from self._spread(*found)

    def _spread(self, event: Event, after: int) -> Asking:
        """Give a copy to those who waited when it was sent, the longest waiting first, and keep in mind how far that
        got. A run gets it once, however many of its tasks wait for it."""
        waits: list[Wait] = yield from self._all_waiting(event, after, event.number, SPREAD_MAX + 1)
        is_more = len(waits) > SPREAD_MAX
        self.out.spreading[event.id] = waits[SPREAD_MAX - 1].number if is_more else None
        if is_more:
            self.out.found.spreading.append(event.id)
        chosen = {wait.run_id: wait for wait in reversed(waits[:SPREAD_MAX])}
        if after and chosen:
            for run_id in (yield Readers(event.id, list(chosen))):
                del chosen[run_id]
        for wait in reversed(chosen.values()):
            self.out.given.append(self._won_by(event, wait))
        return tuple(reversed(chosen))

    def _give_to_later(self, event: Event) -> tuple[str, ...]:
        """Runs that began to wait after a retained event was sent, but in the same batch, so that they did not find it
        in its queue."""
        found: list[str] = []
        for wait in self.batch.waits.values():
            is_later = wait.kind == "event" and self.base + wait.number > event.number
            if not is_later or wait.mode == "after_wait" or not accepts(wait, event):
                continue
            if (wait.run_id, wait.position) in self._won or (wait.run_id, event.id) in self._copied:
                continue
            new = self.batch.runs.get(wait.run_id)
            is_younger = new is not None and new.expected_version is None and self.base + new.born >= event.number
            if wait.mode == "all" or not is_younger:
                self.out.given.append(self._won_by(event, wait))
                found.append(wait.run_id)
        return tuple(found)

    def _longest(self, event: Event, before: int | None = None) -> Asking:
        waits: list[Wait] = yield from self._all_waiting(event, 0, before, 1)
        return waits[0] if waits else None

    def _all_waiting(self, event: Event, after: int, before: int | None, limit: int) -> Asking:
        """Up to `limit` waits that the event fits and whose number is between the two, the longest waiting first."""
        if event.name not in self._shapes:
            self._shapes[event.name] = yield Shapes(event.name)
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
        return sorted(found, key=lambda wait: wait.number)[:limit]

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
