"""Events, waits and dead letters of the store in memory.

The tables answer the questions of the matching, and store its results.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.batch import Batch, without_reads
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.rows import Wait
from perdure.kernel.rules.broadcasts import (
    Awaiting,
    Ended,
    Freed,
    HasRead,
    Kept,
    Pending,
    Question,
    Queue,
    Readers,
    Settlement,
    Shapes,
    Waiting,
)
from perdure.kernel.status import FINISHED, Status
from perdure.storage.broadcasts import settled

Key = tuple[str, str]  # the owner (a run's id, or "" for the queue of a name), and the event's id
Where = tuple[tuple[str, str], ...]
WaitKey = tuple[int, str, str, int]  # number, run, position, option


class NameQueue(Struct, eq=False):
    """The events of one name that any run may get. It has the events by number, the numbers in order, and the number of
    events that are not retained.
    """

    events: dict[int, Event] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    consumed: int = 0

    def put(self, event: Event) -> None:
        if (known := self.events.get(event.number)) is not None:
            self.consumed -= known.consumed
        else:
            insort(self.numbers, event.number)
        self.events[event.number] = event
        self.consumed += event.consumed

    def remove(self, number: int) -> None:
        if (event := self.events.pop(number, None)) is not None:
            self.consumed -= event.consumed
            del self.numbers[bisect_left(self.numbers, number)]

    def after(self, number: int) -> Iterator[Event]:
        for index in range(bisect_right(self.numbers, number), len(self.numbers)):
            yield self.events[self.numbers[index]]

    def copied(self) -> NameQueue:
        return NameQueue(dict(self.events), list(self.numbers), self.consumed)


class Waiters(Struct, eq=False):
    """Open waits for one name that have the same filter, the longest waiting first."""

    waits: dict[WaitKey, Wait] = field(default_factory=dict)
    keys: list[WaitKey] = field(default_factory=list)

    def put(self, wait: Wait) -> None:
        key = (wait.number, wait.run_id, wait.position, wait.option)
        if key not in self.waits:
            insort(self.keys, key)
        self.waits[key] = wait

    def remove(self, wait: Wait) -> None:
        key = (wait.number, wait.run_id, wait.position, wait.option)
        if self.waits.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def between(self, after: int, before: int | None, limit: int) -> list[Wait]:
        start = bisect_left(self.keys, (after + 1, "", "", 0))
        end = len(self.keys) if before is None else bisect_left(self.keys, (before, "", "", 0))
        return [self.waits[key] for key in self.keys[start : min(end, start + limit)]]

    def copied(self) -> Waiters:
        return Waiters(dict(self.waits), list(self.keys))


class EventTables(Struct, eq=False):
    """The tables. Each wait and each event is in every table in which it is looked up."""

    waits: dict[str, dict[str, dict[int, Wait]]] = field(default_factory=dict)  # by run, position and option
    events: dict[str, dict[str, Event]] = field(default_factory=dict)  # by owner, then by id
    # retained events that are being delivered -> the last wait that was reached
    cursors: dict[str, int] = field(default_factory=dict)
    reads: set[tuple[str, str]] = field(default_factory=set)  # (run id, id of a retained event)
    born: dict[str, int] = field(default_factory=dict)  # run id -> the value of the sequence when the run was created
    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    letters: dict[str, DeadLetter] = field(default_factory=dict)
    sequence: int = 0
    open_waits: dict[str, dict[Where, Waiters]] = field(default_factory=dict)  # by name and filter
    awaiting: dict[str, set[Key]] = field(default_factory=dict)  # target -> (run, position) of the waits for its end
    queues: dict[str, NameQueue] = field(default_factory=dict)  # by name: events without an owner
    winners: dict[str, dict[str, dict[str, None]]] = field(default_factory=dict)  # by run and position: ids of events

    def apply(self, batch: Batch, statuses: dict[str, Status]) -> Settlement:
        """Write the batch's waits and events, and return the result of the matching.

        `statuses` are the statuses of all runs that are not in the batch.
        """
        base = self.numbered(batch)
        self.begin(batch, base)
        answers = Answers(self, batch, statuses)
        settlement = settled(batch, base, answers.answer)
        self.finish(batch, settlement)
        return settlement

    def numbered(self, batch: Batch) -> int:
        """Reserve numbers of the sequence for the batch, and return the value to add to the batch's numbers."""
        base = self.sequence
        self.sequence += batch.numbered
        return base

    def begin(self, batch: Batch, base: int) -> None:
        """Write the rows that must exist before the matching asks about the tables."""
        for run_id in batch.waits_cleared:
            self.drop(run_id, None)
        for run_id in batch.continued:
            self.drop(run_id, None)
        for run_id, position in batch.waits_dropped:
            self.drop(run_id, position)
        for run_id, event_id in batch.events_read:
            event = self._remove(run_id, event_id)
            if event is not None and not event.consumed:
                self.reads.add((run_id, event_id))
        if self.reads and (over := set(without_reads(batch))):
            self.reads = {read for read in self.reads if read[0] not in over}
        for wait in batch.waits.values():
            self._put_wait(replace(wait, number=base + wait.number) if wait.number else wait)
        for run_id, write in batch.runs.items():
            if write.expected_version is None:
                self.born[run_id] = base + write.born
        for key, event_id in batch.keys.items():
            self.keys[key] = (event_id, batch.at)

    def finish(self, batch: Batch, settlement: Settlement) -> None:
        """Write the result of the matching."""
        for run_id, event_id, position, option in batch.events_given:
            if (given := self.events.get(run_id, {}).get(event_id)) is not None:
                self._put(replace(given, position=position, option=option))
        for letter_id in batch.dead_letters_gone:
            if letter_id not in settlement.found.refused:
                self.letters.pop(letter_id, None)
        for key, event_id in batch.keys.items():
            if event_id in settlement.found.refused:
                del self.keys[key]
        self._write(settlement)

    def copied(self) -> EventTables:
        """Return a copy of these tables that can be changed independently."""
        return EventTables(
            waits={
                run_id: {position: dict(options) for position, options in waits.items()}
                for run_id, waits in self.waits.items()
            },
            events={run_id: dict(events) for run_id, events in self.events.items()},
            cursors=dict(self.cursors),
            reads=set(self.reads),
            born=dict(self.born),
            keys=dict(self.keys),
            letters=dict(self.letters),
            sequence=self.sequence,
            open_waits={
                name: {where: waiters.copied() for where, waiters in choices.items()}
                for name, choices in self.open_waits.items()
            },
            awaiting={target: set(keys) for target, keys in self.awaiting.items()},
            queues={name: queue.copied() for name, queue in self.queues.items()},
            winners={
                run_id: {position: dict(ids) for position, ids in won.items()} for run_id, won in self.winners.items()
            },
        )

    def _write(self, settlement: Settlement) -> None:
        for event in settlement.gone:
            self._remove(event.run_id or "", event.id)
        for event in settlement.freed:
            self._put(replace(event, position=None))
        for event in settlement.back:
            self._remove(event.run_id or "", event.id)
            self._put(replace(event, run_id=None, shared=False, position=None))
        for event in settlement.moved:
            self._remove("", event.id)
            self._put(event)
        for event in (*settlement.queued, *settlement.given):
            self._put(event)
        for letter in settlement.dead:
            self.letters[letter.id] = letter
        for event_id, cursor in settlement.spreading.items():
            if cursor is None:
                self.cursors.pop(event_id, None)
            else:
                self.cursors[event_id] = cursor
        for run_id, position in settlement.marks:
            options = self.waits.get(run_id, {}).get(position, {})
            for option, wait in list(options.items()):
                self._forget_wait(wait)
                options[option] = replace(wait, due_at=0)

    def of(self, run_id: str) -> tuple[Event, ...]:
        """Return a run's events, in the order of sending."""
        return tuple(sorted(self.events.get(run_id, {}).values(), key=lambda event: event.number))

    def waits_of(self, run_id: str) -> tuple[Wait, ...]:
        waits = self.waits.get(run_id, {})
        return tuple(waits[position][option] for position in sorted(waits) for option in sorted(waits[position]))

    def has_read(self, run_id: str, event_id: str) -> bool:
        """Return whether a run has read a retained event or was given it."""
        return (run_id, event_id) in self.reads or event_id in self.events.get(run_id, {})

    def purge(self, at: int, keys_before: int, limit: int) -> int:
        """Delete expired rows, except events that are still being delivered. Returns how many rows were deleted."""
        expired = [
            event
            for owned in self.events.values()
            for event in owned.values()
            if event.expires_at <= at and event.position is None and event.id not in self.cursors
        ][:limit]
        for event in expired:
            self._remove(event.run_id or "", event.id)
        gone = {event.id for event in expired if event.run_id is None and not event.consumed}
        self.reads = {read for read in self.reads if read[1] not in gone}
        old = [key for key, (_, sent) in self.keys.items() if sent < keys_before][:limit]
        for key in old:
            del self.keys[key]
        return len(expired) + len(old)

    def won_by(self, run_id: str) -> list[Event]:
        """Return a run's events that have won a position."""
        return [event for position in self.winners.get(run_id, ()) for event in self.won_at(run_id, position)]

    def won_at(self, run_id: str, position: str) -> list[Event]:
        """Return a run's events that have won this position."""
        return [self.events[run_id][event_id] for event_id in self.winners.get(run_id, {}).get(position, ())]

    def _put(self, event: Event) -> None:
        self._remove(event.run_id or "", event.id)
        self.events.setdefault(event.run_id or "", {})[event.id] = event
        if event.run_id is None:
            self.queues.setdefault(event.name, NameQueue()).put(event)
        elif event.position is not None:
            self.winners.setdefault(event.run_id, {}).setdefault(event.position, {})[event.id] = None

    def _remove(self, whose: str, event_id: str) -> Event | None:
        event = self.events.get(whose, {}).pop(event_id, None)
        if event is not None and event.run_id is None:
            self.queues[event.name].remove(event.number)
        elif event is not None and event.position is not None:
            won = self.winners[whose]
            won[event.position].pop(event_id)
            if not won[event.position]:
                del won[event.position]
        return event

    def _put_wait(self, wait: Wait) -> None:
        options = self.waits.setdefault(wait.run_id, {}).setdefault(wait.position, {})
        if (known := options.get(wait.option)) is not None:
            self._forget_wait(known)
        options[wait.option] = wait
        key = (wait.run_id, wait.position)
        if wait.kind == "event":
            self.open_waits.setdefault(wait.name, {}).setdefault(wait.where, Waiters()).put(wait)
        elif wait.target is not None:
            self.awaiting.setdefault(wait.target, set()).add(key)

    def drop(self, run_id: str, position: str | None) -> None:
        """Remove the waits of a run at a position. With None, remove its waits at all positions."""
        waits = self.waits.get(run_id, {})
        for one in [*waits] if position is None else [position]:
            for wait in waits.pop(one, {}).values():
                self._forget_wait(wait)

    def _forget_wait(self, wait: Wait) -> None:
        """Remove a wait from the open waits."""
        key = (wait.run_id, wait.position)
        if wait.kind == "event":
            choices = self.open_waits.get(wait.name, {})
            if (waiters := choices.get(wait.where)) is not None:
                waiters.remove(wait)
                if not waiters.keys:
                    del choices[wait.where]
        elif wait.target is not None:
            self.awaiting.get(wait.target, set()).discard(key)


_NO_QUEUE: Final = NameQueue()


class Answers:
    """Answers the questions of the matching from these tables."""

    def __init__(self, tables: EventTables, batch: Batch, statuses: dict[str, Status]) -> None:
        self._tables = tables
        self._batch = batch
        self._statuses = statuses

    def answer(self, question: Question) -> Any:
        tables = self._tables
        match question:
            case Freed(positions, over, on):
                return [
                    *(event for run, at in positions for event in tables.won_at(run, at)),
                    *(event for run in over for event in tables.events.get(run, {}).values()),
                    *(event for run in on for event in tables.won_by(run)),
                ]
            case Queue(name, after, limit):
                queue = tables.queues.get(name, _NO_QUEUE)
                return list(islice((e for e in queue.after(after) if e.expires_at > self._batch.at), limit))
            case Shapes(name):
                return sorted({tuple(field for field, _ in where) for where in tables.open_waits.get(name, {})})
            case Waiting(name, where, after, before, limit):
                waiters = tables.open_waits.get(name, {}).get(where)
                return [] if waiters is None else waiters.between(after, before, limit)
            case Pending(name, limit):
                queue = tables.queues.get(name, _NO_QUEUE)
                if queue.consumed < limit:
                    return queue.consumed
                return sum(e.consumed and e.expires_at > self._batch.at for e in queue.events.values())
            case HasRead(run_id, events, mode):
                born = tables.born.get(run_id, 0) if mode == "after_create" else 0
                return {one for one, number in events if tables.has_read(run_id, one) or number <= born}
            case Readers(event_id, run_ids):
                return {one for one in run_ids if tables.has_read(one, event_id)}
            case Ended(run_ids):
                return {one for one in run_ids if one not in self._statuses or self._statuses[one] in FINISHED}
            case Awaiting(run_ids):
                keys = [key for run_id in run_ids for key in sorted(tables.awaiting.get(run_id, ()))]
                found = [wait for run_id, at in keys for wait in tables.waits[run_id].get(at, {}).values()]
                return [w for w in found if w.target in run_ids]
            case Kept(event_id):
                if event_id not in tables.cursors:
                    return None
                return tables.events[""][event_id], tables.cursors[event_id]
