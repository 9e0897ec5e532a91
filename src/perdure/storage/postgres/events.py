"""Events and waits inside a commit. It answers the questions of the matching, and writes its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.json import decode as from_json
from msgspec.structs import replace

from perdure.kernel.batch import Batch, Committed, without_reads
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
from perdure.storage.broadcasts import settled_by
from perdure.storage.damage import sound
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import (
    event_of,
    event_rows,
    json_text,
    letter_of,
    letter_row,
    pair_of,
    shape_of,
    shown_event_of,
    wait_of,
    wait_rows,
)

_MANY = 2**62  # greater than any stored number


async def prepared(connection: Connection, batch: Batch) -> tuple[int, int]:
    """Check the fence, take the locks, and write the batch's waits.

    Returns the state of the batch, and the number to add to the batch's numbers.
    """
    over = {run_id for run_id, write in batch.runs.items() if write.run.status in FINISHED}
    # If an event is sent to a run that ends in this batch, it may still go to the queue of its name.
    sent = {event.name for event in batch.events if event.run_id is None or event.run_id in over}
    variables = {
        "engine": batch.engine_id,
        "epoch": batch.epoch,
        "number": batch.number,
        "at": batch.at,
        "numbered": batch.numbered > 0,
        "names_sent": list(sent),
        "names_awaited": list({wait.name for wait in batch.waits.values() if wait.kind == "event"}),
        "spread": batch.spread,
        "changed": [
            (run_id, write.expected_owner, write.expected_version, write.expected_claim)
            for run_id, write in batch.runs.items()
            if write.expected_version is not None
        ],
        "guards": [(run_id, *expected) for run_id, expected in batch.guards.items()],
        "keys": list(batch.keys.items()),
        "targets": [wait.target for wait in batch.waits.values() if wait.target is not None],
        "cleared": [*batch.waits_cleared, *batch.continued],
        "forgotten": without_reads(batch),
        "dropped": batch.waits_dropped,
        "read": batch.events_read,
        "put": wait_rows(batch.waits.values()),
    }
    query = QUERIES["prepare"]
    row = await connection.fetchrow(query.sql, *query.arguments(variables))
    assert row is not None
    return row[0], row[1]


async def match(connection: Connection, batch: Batch, base: int) -> tuple[Committed, dict[str, Any]]:
    """Match the batch's events and waits. Returns the results for the coordinator, and the variables of the rows to
    write."""
    answers = _Answers(connection, batch)
    settlement = await settled_by(batch, base, answers.answer)
    refused = settlement.found.refused
    back = [replace(event, run_id=None, shared=False, position=None) for event in settlement.back]
    placed = (*back, *settlement.moved, *settlement.queued, *settlement.given)
    variables: dict[str, Any] = {
        "keys_refused": [key for key, event_id in batch.keys.items() if event_id in refused],
        "letters_gone": [letter for letter in batch.dead_letters_gone if letter not in refused],
        "given": batch.events_given,
        "gone": [(event.run_id, event.id) for event in (*settlement.gone, *settlement.back)],
        "freed": [(event.run_id, event.id) for event in settlement.freed],
        "moved": [(event.name, event.number, None) for event in settlement.moved],
        "placed": event_rows(placed),
        "dead": [letter_row(letter) for letter in settlement.dead],
        "far": await _far(settlement, {event.id: event for event in placed}, answers),
        "marks": settlement.marks,
        "won": list({(won.run_id, won.position) for won in settlement.found.won}),
    }
    return settlement.found, variables


async def _far(
    settlement: Settlement, placed: Mapping[str, Event], answers: _Answers
) -> list[tuple[str, int, int | None]]:
    """Return how far each retained event was delivered, with its name and number."""
    found: list[tuple[str, int, int | None]] = []
    for event_id, reached in settlement.spreading.items():
        event = placed.get(event_id)
        if event is None:
            kept = await answers.answer(Kept(event_id))
            event = kept[0]
        found.append((event.name, event.number, reached))
    return found


class _Answers:
    def __init__(self, connection: Connection, batch: Batch) -> None:
        self._connection = connection
        self._batch = batch
        self._pending: dict[tuple[str, int], int] = {}

    async def answer(self, question: Question) -> Any:
        match question:
            case Freed(positions, over, on):
                return await self._events(
                    "freed",
                    run_ids=[run_id for run_id, _ in positions],
                    positions=[position for _, position in positions],
                    ids=[*over, *on],
                    cleared=over,
                )
            case Queue(name, after, limit):
                return await self._events("queue", name=name, after=after, at=self._batch.at, limit=limit)
            case Shapes(name):
                return [_names(shape) for (shape,) in await self._rows("shapes", name=name)]
            case Waiting(name, where, after, before, limit):
                rows = await self._rows(
                    "waiting",
                    name=name,
                    shape=shape_of(where),
                    filter=json_text(where) if where else "",
                    after=after,
                    before=_MANY if before is None else before,
                    limit=limit,
                )
                return sound(wait_of, rows)
            case Pending(name, limit):
                return await self._count(name, limit)
            case Readers(event_id, run_ids):
                return {run_id for (run_id,) in await self._rows("readers", event_id=event_id, ids=run_ids)}
            case HasRead():
                return await self._seen(question)
            case Ended(run_ids):
                active = {run_id for (run_id,) in await self._rows("still_active", ids=run_ids)}
                return set(run_ids) - active
            case Awaiting(run_ids):
                return sound(wait_of, await self._rows("awaiting", ids=run_ids))
            case Kept(event_id):
                rows = await self._rows("kept", id=event_id)
                return (event_of(rows[0]), rows[0][-1]) if rows else None

    async def _count(self, name: str, limit: int) -> int:
        """Count once for all events of a name. This is correct, because nothing is written before all questions are
        answered.
        """
        if (name, limit) not in self._pending:
            rows = await self._rows("pending", name=name, at=self._batch.at, limit=limit)
            self._pending[name, limit] = rows[0][0]
        return self._pending[name, limit]

    async def _seen(self, question: HasRead) -> set[str]:
        ids = [event_id for event_id, _ in question.events]
        seen = {event_id for (event_id,) in await self._rows("has_read", run_id=question.run_id, ids=ids)}
        if question.mode == "after_create":
            born = sum(number for (number,) in await self._rows("born", run_id=question.run_id))
            seen |= {event_id for event_id, number in question.events if number <= born}
        return seen

    async def _events(self, query: str, **variables: Any) -> list[Event]:
        return sound(event_of, await self._rows(query, **variables))

    async def _rows(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        named = QUERIES[query]
        return await self._connection.fetch(named.sql, *named.arguments(variables))


def _names(shape: str) -> tuple[str, ...]:
    return from_json(shape, type=tuple[str, ...]) if shape else ()


class PostgresEvents(PostgresSlice):
    """Events and dead letters."""

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return dict(map(pair_of, await self._db.read(QUERIES["sent"], ids=[*keys]))) if keys else {}

    async def spreading(self) -> list[str]:
        return [event_id for (event_id,) in await self._db.read(QUERIES["spreading"])]

    async def events(self, *, name: str | None = None, run_id: str | None = None, limit: int = 100) -> list[Event]:
        if run_id is None:
            return [
                shown_event_of(row)
                for row in await self._db.read(QUERIES["queued_events"], name=name, limit=max(0, limit))
            ]
        found = [shown_event_of(row) for row in await self._db.read(QUERIES["events"], ids=[run_id])]
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        rows = await self._db.read(QUERIES["letters"], name=name, after=after, limit=max(0, limit))
        return [letter_of(row) for row in rows]

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        rows = await self._db.read(QUERIES["letter"], id=letter_id)
        return letter_of(rows[0]) if rows else None
