"""Messages, their events, return values and handlers: the rows that a batch adds, and reading them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple, replace

from perdure.errors import StoreBroken
from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import (
    Cooperation,
    HandlerList,
    HandlerRow,
    MessageEventRow,
    MessageRow,
    OperationRow,
    ReturnValueRow,
    ScopeRows,
    asked_from_above,
)
from perdure.kernel.lineages import read_origin
from perdure.storage.damage import record_of, shown
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import load_queries

_ROWS_AT_ONCE_MAX: Final = 2_048  # rows in one statement

QUERIES: Final = load_queries(Path(__file__).with_name("cooperation.sql").read_text("utf-8"))


def cooperation_of(batch: Batch) -> dict[str, Any]:
    """Return the parts of the type cooperation_v1."""
    added = batch.cooperation
    assert added is not None
    return {
        "cooperation_at": batch.at,
        "book": added.registry_version,
        "messages": [astuple(row) for row in added.messages],
        "message_events": [astuple(row) for row in added.events],
        "return_values": [astuple(row) for row in added.values],
        "seen": [*dict.fromkeys(added.seen)],
    }


def is_large(batch: Batch) -> bool:
    """Return whether the rows of messages are sent in several statements. While the driver encodes a statement, nothing
    else can run.
    """
    added = batch.cooperation
    return added is not None and len(added.messages) + len(added.events) > _ROWS_AT_ONCE_MAX


def cooperation_in_parts(batch: Batch) -> Iterator[dict[str, Any]]:
    """Yield the parts of `cooperation_of`, for several statements in one transaction.

    The last statement compares the version of the handler registry. So nobody can register a handler between this
    comparison and the other parts.
    """
    added = batch.cooperation
    assert added is not None
    if not is_large(batch):
        yield cooperation_of(batch)
        return
    common = cooperation_of(replace(batch, cooperation=Cooperation()))
    for start in range(0, len(added.messages), _ROWS_AT_ONCE_MAX):
        yield common | {"messages": [astuple(row) for row in added.messages[start : start + _ROWS_AT_ONCE_MAX]]}
    for start in range(0, len(added.events), _ROWS_AT_ONCE_MAX):
        yield common | {"message_events": [astuple(row) for row in added.events[start : start + _ROWS_AT_ONCE_MAX]]}
    rest = replace(
        batch, cooperation=Cooperation(values=added.values, seen=added.seen, registry_version=added.registry_version)
    )
    yield cooperation_of(rest)


async def fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    """Return the rows of a named query."""
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


def book_of(rows: Sequence[Sequence[Any]]) -> HandlerList:
    if not rows:
        raise StoreBroken(
            "the store is damaged: handler_book has no row; stop all engines, then restore it from a backup, or run"
            " this SQL: insert into handler_book values (1000000)"
        )
    handlers = tuple(_handler(row[:-1]) for row in rows if row[0] is not None)
    return HandlerList(version=rows[0][-1], handlers=handlers)


def event_of(row: Sequence[Any]) -> MessageEventRow:
    event: MessageEventRow = _record(MessageEventRow, row)
    return event


async def scopes(connection: Connection, ids: Sequence[str]) -> ScopeRows:
    """Read the rows of scopes. This must be called in a snapshot."""
    own = await _runs(connection, "operations", ids)
    events = await _events(connection, "events_of_scopes", ids)
    emitted = [event.message_id for event in events.values() if event.type == "EMITTED"]
    above, far = asked_from_above(own.values(), events.values())
    runs = own | await _runs(connection, "operations", above - own.keys()) | await _runs(connection, "children", ids)
    events |= await _events(connection, "keyed_events", {read_origin(run.origin)[0] for run in runs.values()})
    if far:
        rest = await _runs(connection, "ancestors", far)
        events |= await _events(connection, "asks", {read_origin(run.origin)[0] for run in rest.values()})
        runs = rest | runs
    messages = [*emitted, *(read_origin(run.origin)[0] for run in own.values())]
    return await _rows(connection, runs, events, messages)


async def hierarchy(connection: Connection, id: str) -> ScopeRows:
    """Read the rows of a whole hierarchy. This must be called in a snapshot."""
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


def _handler(row: Sequence[Any]) -> HandlerRow:
    return shown(HandlerRow, dict(zip(HandlerRow.__struct_fields__, row, strict=True)), row)


def _record(kind: type[Any], row: Sequence[Any]) -> Any:
    return record_of(kind, dict(zip(kind.__struct_fields__, row, strict=True)), row)


class PostgresCooperation(PostgresSlice):
    """Handlers and messages."""

    async def handlers(self) -> HandlerList:
        return book_of(await self._db.read(QUERIES["handlers"]))

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        async with self._db.snapshot() as connection:
            return await scopes(connection, ids)

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        scopes, seqs = [scope for scope, _ in places], [seq for _, seq in places]
        return [event_of(row) for row in await self._db.read(QUERIES["events_at"], scopes=scopes, seqs=seqs)]

    async def hierarchy(self, id: str) -> ScopeRows:
        async with self._db.snapshot() as connection:
            return await hierarchy(connection, id)

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        rows = await self._db.read(QUERIES["emitted"], message_id=message_id)
        return event_of(rows[0]) if rows else None
