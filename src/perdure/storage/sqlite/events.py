"""Events and waits inside a commit. It answers the questions of the matching, and writes its results.

All of this runs in the writer's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import decode as from_json
from msgspec.structs import replace

from perdure.kernel.batch import Batch
from perdure.kernel.events import DeadLetter, Event
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
from perdure.kernel.status import FINISHED
from perdure.storage.broadcasts import settled
from perdure.storage.damage import sound
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import DELETE_LETTERS, INSERT_EVENTS, MARK_WAITS, PUT_WAITS, QUERIES, Execution
from perdure.storage.sqlite.rows import (
    event_of,
    event_rows,
    json_text,
    letter_of,
    shape_of,
    shown_event_of,
    wait_of,
    wait_rows,
)

_MANY = 2**62  # greater than any stored number


class LettersGone(Exception):
    """Another process has already replayed or removed a dead letter."""


def is_matched(connection: sqlite3.Connection, batch: Batch) -> bool:
    """Return whether the batch is about events, or about ends of runs that some run waits for."""
    if batch.numbered or batch.events_given or batch.events_read or batch.spread or batch.dead_letters_gone:
        return True
    if any(wait.target is not None for wait in batch.waits.values()):
        return True
    is_over = any(write.run.status in FINISHED for write in batch.runs.values())
    if not batch.waits_dropped and not batch.waits_cleared and not batch.continued and not is_over:
        return False
    has_events, is_awaited = connection.execute(QUERIES["is_eventful"]).fetchone()
    return bool(has_events or is_awaited)


def match(connection: sqlite3.Connection, batch: Batch) -> Settlement:
    """Write the batch's events and waits, match them, and write the result of the matching."""
    base: int = connection.execute(QUERIES["last_number"]).fetchone()[0]
    if batch.numbered:
        connection.execute(QUERIES["take_numbers"], {"count": batch.numbered})
        _execute(connection, PUT_WAITS.executions(wait_rows((w for w in batch.waits.values() if w.number), base)))
    settlement = settled(batch, base, _Answers(connection, batch).answer)
    refused = [key for key, event_id in batch.keys.items() if event_id in settlement.found.refused]
    if refused:
        connection.execute(QUERIES["delete_keys"], {"ids": json_text(refused)})
    gone = [(letter,) for letter in batch.dead_letters_gone if letter not in settlement.found.refused]
    if sum(connection.execute(*one).rowcount for one in DELETE_LETTERS.executions(gone)) != len(gone):
        raise LettersGone
    for run_id, event_id, position, option in batch.events_given:
        given = {"run_id": run_id, "id": event_id, "position": position, "option": option}
        connection.execute(QUERIES["give_event"], given)
    _write(connection, settlement)
    return settlement


def _write(connection: sqlite3.Connection, settlement: Settlement) -> None:
    for event in (*settlement.gone, *settlement.back):
        connection.execute(QUERIES["delete_event"], {"run_id": event.run_id, "id": event.id})
    for event in settlement.freed:
        connection.execute(QUERIES["free_event"], {"run_id": event.run_id, "id": event.id})
    for event in settlement.moved:
        connection.execute(QUERIES["delete_queued"], {"name": event.name, "number": event.number})
    back = [replace(event, run_id=None, shared=False, position=None) for event in settlement.back]
    placed = (*back, *settlement.moved, *settlement.queued, *settlement.given)
    _execute(connection, INSERT_EVENTS.executions(event_rows(placed)))
    for letter in settlement.dead:
        connection.execute(QUERIES["insert_letter"], _letter_row(letter))
    kept = {event.id: event for event in placed}
    for event_id, reached in settlement.spreading.items():
        event = kept.get(event_id) or event_of(connection.execute(QUERIES["kept"], {"id": event_id}).fetchone()[:-1])
        key = {"name": event.name, "number": event.number, "reached": reached}
        connection.execute(QUERIES["set_reached"], key)
    _execute(connection, MARK_WAITS.executions(settlement.marks))


def _letter_row(letter: DeadLetter) -> dict[str, object]:
    return {
        "id": letter.id,
        "name": letter.name,
        "fields": json_text(letter.fields),
        "run_id": letter.run_id,
        "status": letter.status,
        "ended_at": letter.ended_at,
        "consumed": letter.consumed,
        "at": letter.at,
        "value": letter.value,
    }


def _execute(connection: sqlite3.Connection, executions: list[Execution]) -> None:
    for sql, variables in executions:
        connection.execute(sql, variables)


class _Answers:
    def __init__(self, connection: sqlite3.Connection, batch: Batch) -> None:
        self._connection = connection
        self._batch = batch

    def answer(self, question: Question) -> Any:
        match question:
            case Freed(positions, over, on):
                runs = json_text([*over, *on])
                asked = {"positions": json_text(positions), "ids": runs, "cleared": json_text(over)}
                return self._events("freed", asked)
            case Queue(name, after, limit):
                return self._events("queue", {"name": name, "after": after, "at": self._batch.at, "limit": limit})
            case Shapes(name):
                return [_names(shape) for (shape,) in self._rows("shapes", {"name": name})]
            case Waiting(name, where, after, before, limit):
                wanted = {
                    "name": name,
                    "shape": shape_of(where),
                    "filter": json_text(where) if where else "",
                    "after": after,
                    "before": _MANY if before is None else before,
                    "limit": limit,
                }
                return sound(wait_of, self._rows("waiting", wanted))
            case Pending(name, limit):
                length = sum(length for (length,) in self._rows("pending", {"name": name}))
                if length >= limit:  # Expired events are counted only in this case.
                    length -= self._rows("pending_expired", {"name": name, "at": self._batch.at})[0][0]
                return length
            case Readers(event_id, run_ids):
                wanted = {"event_id": event_id, "ids": json_text(run_ids)}
                return {run_id for (run_id,) in self._rows("readers", wanted)}
            case HasRead():
                return self._seen(question)
            case Ended(run_ids):
                active = {run_id for (run_id,) in self._rows("still_active", {"ids": json_text(run_ids)})}
                return set(run_ids) - active
            case Awaiting(run_ids):
                return sound(wait_of, self._rows("awaiting", {"ids": json_text(run_ids)}))
            case Kept(event_id):
                rows = self._rows("kept", {"id": event_id})
                return (event_of(rows[0][:-1]), rows[0][-1]) if rows else None

    def _seen(self, question: HasRead) -> set[str]:
        ids = json_text([event_id for event_id, _ in question.events])
        seen = {event_id for (event_id,) in self._rows("has_read", {"run_id": question.run_id, "ids": ids})}
        if question.mode == "after_create":
            born = sum(number for (number,) in self._rows("born", {"run_id": question.run_id}))
            seen |= {event_id for event_id, number in question.events if number <= born}
        return seen

    def _events(self, query: str, variables: Mapping[str, object]) -> list[Event]:
        return sound(event_of, self._rows(query, variables))

    def _rows(self, query: str, variables: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._connection.execute(QUERIES[query], variables).fetchall()


def _names(shape: str) -> tuple[str, ...]:
    return from_json(shape, type=tuple[str, ...]) if shape else ()


class SqliteEvents(SqliteSlice):
    """Events and dead letters."""

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._db.fetch("sent", {"ids": json_text([*keys])})) if keys else {}

    async def spreading(self) -> list[str]:
        return [event_id for (event_id,) in await self._db.fetch("spreading", {})]

    async def events(self, *, name: str | None = None, run_id: str | None = None, limit: int = 100) -> list[Event]:
        if run_id is None:
            rows = await self._db.fetch("queued_events", {"name": name, "limit": max(0, limit)})
            return [shown_event_of(row) for row in rows]
        found = [shown_event_of(row) for row in await self._db.fetch("events", {"ids": json_text([run_id])})]
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        rows = await self._db.fetch("letters", {"name": name, "after": after, "limit": max(0, limit)})
        return [letter_of(row) for row in rows]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        rows = await self._db.fetch("letter", {"id": letter_id})
        return letter_of(rows[0]) if rows else None
