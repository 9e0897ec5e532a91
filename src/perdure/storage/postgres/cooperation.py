"""Messages, their events, return values and handlers: what a batch adds to them, and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import (
    HandlerBook,
    HandlerRow,
    MessageEventRow,
    MessageRow,
    OperationRow,
    ReturnValueRow,
    ScopeRows,
    read_origin,
)
from perdure.storage.postgres.connection import Connection
from perdure.storage.postgres.queries import load_queries
from perdure.storage.postgres.rows import record_of

QUERIES: Final = load_queries(Path(__file__).with_name("cooperation.sql").read_text("utf-8"))


def cooperation_of(batch: Batch) -> dict[str, Any]:
    """The parts of the type cooperation_v1."""
    added = batch.cooperation
    assert added is not None
    return {
        "cooperation_at": batch.at,
        "book": added.book,
        "messages": [astuple(row) for row in added.messages],
        "message_events": [astuple(row) for row in added.events],
        "return_values": [astuple(row) for row in added.values],
        "seen": [*dict.fromkeys(added.seen)],
    }


async def fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    """The rows of a named query."""
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


def book_of(rows: Sequence[Sequence[Any]]) -> HandlerBook:
    handlers = tuple(_record(HandlerRow, row[:-1]) for row in rows if row[0] is not None)
    return HandlerBook(version=rows[0][-1], handlers=handlers)


def event_of(row: Sequence[Any]) -> MessageEventRow:
    event: MessageEventRow = _record(MessageEventRow, row)
    return event


async def scopes(connection: Connection, ids: Sequence[str]) -> ScopeRows:
    """In a snapshot."""
    own = await _runs(connection, "operations", ids)
    above = {one for run in own.values() for one in read_origin(run.origin)[1]} - own.keys()
    runs = own | await _runs(connection, "operations", above) | await _runs(connection, "children", own)
    events = await _events(connection, "events_of_scopes", own)
    emitted = [event.message_id for event in events.values() if event.type == "EMITTED"]
    events |= await _events(connection, "keyed_events", {read_origin(run.origin)[0] for run in runs.values()})
    messages = [*emitted, *(read_origin(run.origin)[0] for run in own.values())]
    return await _rows(connection, runs, events, messages)


async def hierarchy(connection: Connection, id: str) -> ScopeRows:
    """In a snapshot."""
    runs = await _runs(connection, "operations", [id])
    level: Iterable[str] = [id]
    while level:
        below = await _runs(connection, "children", level)
        runs |= below
        level = list(below)
    events = await _events(connection, "events_of_scopes", {id, *runs})
    return await _rows(connection, runs, events, [event.message_id for event in events.values()])


async def _rows(
    connection: Connection,
    runs: dict[str, OperationRow],
    events: dict[tuple[str, int], MessageEventRow],
    messages: Iterable[str],
) -> ScopeRows:
    return ScopeRows(
        runs=tuple(runs[one] for one in sorted(runs)),
        messages=tuple(_record(MessageRow, row) for row in await fetch(connection, "messages", ids=[*messages])),
        events=tuple(events[place] for place in sorted(events)),
        values=tuple(_record(ReturnValueRow, row) for row in await fetch(connection, "values", ids=[*runs])),
    )


async def _runs(connection: Connection, query: str, ids: Iterable[str]) -> dict[str, OperationRow]:
    return {row[0]: _record(OperationRow, row) for row in await fetch(connection, query, ids=[*ids])}


async def _events(connection: Connection, query: str, ids: Iterable[str]) -> dict[tuple[str, int], MessageEventRow]:
    return {(row[0], row[1]): event_of(row) for row in await fetch(connection, query, ids=[*ids])}


def _record(kind: type[Any], row: Sequence[Any]) -> Any:
    return record_of(kind, dict(zip(kind.__struct_fields__, row, strict=True)), row)
