"""The rules of broadcasts and of the ends of runs. They decide which waits a broadcast or an end wins.

These rules are applied inside the transaction, because broadcasts and waits may come from any engine. `settle` does no
I/O. It yields questions about the tables. The store answers them inside the transaction. At its end, `settle` returns
the rows to write. Before `settle` is called, the store has written the batch's waits. It has also removed the waits
that the batch drops or clears, and the events that the batch reads.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch, Committed, Won
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.rows import Wait
from perdure.kernel.rules.unread_events import fallback_of
from perdure.kernel.status import FINISHED
from perdure.kernel.wait_matches import accepts

SPREAD_MAX: Final = 500  # how many waits may get a retained event in one commit
_QUEUE_PAGE: Final = 100


class Freed(Struct, frozen=True):
    """Asks for the events that have won one of these positions, or any position of the runs `on`. Also asks for all
    events that the runs `over` still have. The runs `on` have not ended. Their unread events, which may be many, stay
    with them.
    """

    positions: list[tuple[str, str]]
    over: list[str]
    on: list[str]


class Queue(Struct, frozen=True):
    """Asks for the events in the queue of a name that have not expired. They are in order, after the number `after`, up
    to a limit. Events for one reader and retained events are both included.
    """

    name: str
    after: int
    limit: int


class Shapes(Struct, frozen=True):
    """Asks for the field names by which the waits for this event name filter."""

    name: str


class Waiting(Struct, frozen=True):
    """Asks for the open waits for this name that filter by exactly these fields. The longest waiting come first, up to
    a limit.
    """

    name: str
    where: tuple[tuple[str, str], ...]
    after: int
    before: int | None
    limit: int


class Pending(Struct, frozen=True):
    """Asks for the number of events in the queue of a name that are not retained. If the number reaches `limit`,
    expired events must not be counted.
    """

    name: str
    limit: int


class HasRead(Struct, frozen=True):
    """Asks which of these retained events a run has read, was given, or may not get. The `mode` of a wait may exclude
    events that were sent before the run was created.
    """

    run_id: str
    events: list[tuple[str, int]]  # ids and numbers of the events
    mode: str


class Readers(Struct, frozen=True):
    """Asks which of these runs have read a retained event or were given it."""

    event_id: str
    run_ids: list[str]


class Ended(Struct, frozen=True):
    """Asks which of these runs have ended or do not exist."""

    run_ids: list[str]


class Awaiting(Struct, frozen=True):
    """Asks for the waits for the end of these runs."""

    run_ids: list[str]


class Kept(Struct, frozen=True):
    """Asks for a retained event that has not reached all waiting runs yet, and for the number of the last wait that has
    got it.
    """

    event_id: str


Question = Freed | Queue | Shapes | Waiting | Pending | HasRead | Readers | Ended | Awaiting | Kept
Asking = Generator[Question, Any, Any]


class Settlement(Struct, kw_only=True):
    """The rows to write to the tables of events and waits. The results for the coordinator are in `found`.

    - `queued` and `given`: new rows, including the batch's own events
    - `moved`: events that go from the queue of their name to a run
    - `back`: events that go from a run back to the queue of their name
    - `freed`: events that stay with their run and lose their position
    - `gone`: events that are removed from their run
    - `spreading`: for each retained event, the number of the last wait that has got it, or None if it has reached all
      waits

    An event in `back` or `gone` may be new in this batch. Then it is not in the tables.
    """

    queued: list[Event] = field(default_factory=list)
    given: list[Event] = field(default_factory=list)
    moved: list[Event] = field(default_factory=list)
    back: list[Event] = field(default_factory=list)
    freed: list[Event] = field(default_factory=list)
    gone: list[Event] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    spreading: dict[str, int | None] = field(default_factory=dict)
    marks: list[tuple[str, str]] = field(default_factory=list)  # the positions that were won, as (run id, position)
    found: Committed = field(default_factory=Committed)


def settle(batch: Batch, base: int) -> Generator[Question, Any, Settlement]:
    """Match the batch's waits, events and ends of runs with those in the tables. `base` is added to the batch's
    numbers.
    """
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
        self._copied: set[tuple[str, str]] = set()  # (run id, id of a retained event)
        self._shapes: dict[str, list[tuple[str, ...]]] = {}
        # By event name and filter. All waits up to the number `_past` are won. `_next` is the number of the first wait
        # that is not won.
        self._past: dict[tuple[str, Any], int] = {}
        self._next: dict[tuple[str, Any], int] = {}

    # Events whose waits were dropped or cleared.

    def free(self) -> Asking:
        """Free the events whose waits were dropped or cleared. If this batch sends events to runs that it also ends,
        apply the fallback of these events, because these runs cannot read them.
        """
        batch = self.batch
        over = {r for r in batch.waits_cleared if r in batch.runs and batch.runs[r].run.status in FINISHED}
        again = {(run_id, event_id) for run_id, event_id, _, _ in batch.events_given}
        freed: list[Event] = []
        if batch.waits_dropped or batch.waits_cleared or batch.continued:
            on = [run_id for run_id in batch.waits_cleared if run_id not in over]
            freed = yield Freed(batch.waits_dropped, sorted(over), [*on, *batch.continued])
        # An event is found twice if its position is dropped and its run's waits are cleared.
        for event in {(event.run_id, event.id): event for event in freed}.values():
            if event.shared and not event.consumed:
                self.out.gone.append(event)  # This is a copy. The event itself is kept.
            elif event.shared:
                self.returning.append(event)
            elif event.run_id in over:
                self._route(event)
            # If it is in `again`, it has won another position in this batch.
            elif (event.run_id, event.id) not in again:
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
        """Apply the fallback of an event, because the run that it was sent to has ended."""
        goes_on, dead = fallback_of(event, self.batch.runs[event.run_id or ""].run)
        if goes_on:
            self.returning.append(event)
            return
        self.out.gone.append(event)
        if dead is not None:
            self.out.dead.append(dead)

    # New waits look for queued events.

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
        """Return the event that was sent first and fits a wait. It is in the queue, or is going back into the queue."""
        back = (event for event in self.out.back if event.consumed and accepts(wait, event))
        returned = min(back, key=lambda event: event.number, default=None)
        after = 0
        limit = 1  # Mostly the first event fits, and a queue may have thousands of events.
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
        """Let an event win a wait. The event is in the queue, or is going back into the queue."""
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
        if wait.kind == "event" and self._next.get(key := (wait.name, wait.where)) == wait.number:
            self._past[key] = wait.number
        self.out.marks.append((wait.run_id, wait.position))
        self.out.found.won.append(
            Won(run_id=wait.run_id, position=wait.position, option=wait.option, event=event, target=target)
        )
        write = self.batch.runs.get(wait.run_id)
        if write is not None and write.awake is not None:
            self.out.found.awake.add(wait.run_id)

    # Broadcasts look for waits.

    def send(self, event: Event, pending_max: int) -> Asking:
        """Give a new broadcast to the waits that it fits, or queue it."""
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
        """Give an event that comes back to the longest waiting run. If no run waits, put it back into its queue, in the
        order of its number. Waits that begin in this batch look in the queue after that.
        """
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
        """Give a copy of the event to the runs that waited when it was sent, the longest waiting first. Note the last
        wait that got a copy. A run gets only one copy, even if several of its tasks wait for the event.
        """
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
        """Give a retained event to runs that began to wait after it was sent, in the same batch. These runs did not
        find the event in its queue.
        """
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
        """Return up to `limit` waits that the event fits, the longest waiting first. Their numbers are after `after`
        and before `before`.
        """
        if event.name not in self._shapes:
            self._shapes[event.name] = yield Shapes(event.name)
        found: list[Wait] = []
        for shape in self._shapes[event.name]:
            if all(name in event.fields for name in shape):
                where = tuple((name, event.fields[name]) for name in shape)
                # If this batch gives many events to waits with the same filter, each search begins after the waits that
                # are already won.
                key = event.name, where
                last, missing = max(after, self._past.get(key, 0)), limit
                while missing > 0:
                    page: list[Wait] = yield Waiting(event.name, where, last, before, missing)
                    fresh = [wait for wait in page if (wait.run_id, wait.position) not in self._won]
                    if last == self._past.get(key, 0):
                        self._note_first(key, page, fresh)
                    found += fresh
                    if len(page) < missing:
                        break
                    last, missing = page[-1].number, missing - len(fresh)
        return sorted(found, key=lambda wait: wait.number)[:limit]

    def _note_first(self, key: tuple[str, Any], page: list[Wait], fresh: list[Wait]) -> None:
        """Note the first of these waits that is not won. They are the waits for one name and filter that have waited
        longest.
        """
        won = page[: page.index(fresh[0])] if fresh else page
        if won:
            self._past[key] = won[-1].number
        if fresh:
            self._next[key] = fresh[0].number

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
