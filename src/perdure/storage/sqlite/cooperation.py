"""Messages, their events, return values and handlers: writes inside a commit or in transactions of their own, and
reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import (
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
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import Execution, WideStatement, load_queries
from perdure.storage.sqlite.rows import Row, json_text
from perdure.storage.sqlite.transaction import snapshot

QUERIES: Final = load_queries(Path(__file__).with_name("cooperation.sql").read_text("utf-8"))
_INSERT_MESSAGES: Final = WideStatement(QUERIES["insert_messages"])
_INSERT_EVENTS: Final = WideStatement(QUERIES["insert_events"])
_INSERT_VALUES: Final = WideStatement(QUERIES["insert_values"])


class RegistryChanged(Exception):
    """The registry of handlers has another version than the batch expects."""

    def __init__(self, version: int) -> None:
        self.version = version


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Insert the rows that the batch adds. Raises RegistryChanged, sqlite3.IntegrityError."""
    added = batch.cooperation
    assert added is not None
    if added.registry_version is not None and (version := _version(connection)) != added.registry_version:
        raise RegistryChanged(version)
    executions = [
        *_INSERT_MESSAGES.executions([astuple(row) for row in added.messages]),
        *_INSERT_EVENTS.executions([astuple(row) for row in added.events]),
        *_INSERT_VALUES.executions([astuple(row) for row in added.values]),
    ]
    for sql, variables in executions:
        connection.execute(sql, variables)
    for topic, name in added.seen:
        if connection.execute(QUERIES["see"], {"topic": topic, "name": name, "at": batch.at}).rowcount:
            connection.execute(QUERIES["turn_page"])


def insert_events(events: Sequence[MessageEventRow]) -> list[Execution]:
    """Return the statements that insert events."""
    return _INSERT_EVENTS.executions([astuple(row) for row in events])


def event_of(row: Sequence[Any]) -> MessageEventRow:
    event: MessageEventRow = _record(MessageEventRow, tuple(row))
    return event


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute(QUERIES["book_version"]).fetchone()[0]
    return version


# ---------------------------------------------------------------------------------------------------------------------
# Handlers


def handlers(connection: sqlite3.Connection) -> HandlerList:
    with snapshot(connection):
        return _book(connection)


def _book(connection: sqlite3.Connection) -> HandlerList:
    rows = connection.execute(QUERIES["handlers"]).fetchall()
    return HandlerList(version=_version(connection), handlers=tuple(_handler(row) for row in rows))


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def emitted(connection: sqlite3.Connection, *, message_id: str) -> MessageEventRow | None:
    row = connection.execute(QUERIES["emitted"], {"message_id": message_id}).fetchone()
    return None if row is None else _record(MessageEventRow, row)


def scopes(connection: sqlite3.Connection, *, ids: list[str]) -> ScopeRows:
    with snapshot(connection):
        own = _runs(connection, "operations", ids)
        events = _events(connection, "events_of_scopes", ids)
        emitted = [event.message_id for event in events.values() if event.type == "EMITTED"]
        above, far = asked_from_above(own.values(), events.values())
        runs = own | _runs(connection, "operations", above - own.keys()) | _runs(connection, "children", ids)
        events |= _events(connection, "keyed_events", {read_origin(run.origin)[0] for run in runs.values()})
        if far:
            rest = _runs(connection, "ancestors", far)
            events |= _events(connection, "asks", {read_origin(run.origin)[0] for run in rest.values()})
            runs = rest | runs
        messages = [*emitted, *(read_origin(run.origin)[0] for run in own.values())]
        return _rows(connection, runs, events, messages)


def events_at(connection: sqlite3.Connection, *, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
    rows = connection.execute(QUERIES["events_at"], {"places": json_text([*places])}).fetchall()
    return [_record(MessageEventRow, row) for row in rows]


def hierarchy(connection: sqlite3.Connection, *, id: str) -> ScopeRows:
    with snapshot(connection):
        runs = _runs(connection, "operations", [id])
        level: Iterable[str] = [id]
        while level:
            below = _runs(connection, "children", level)
            runs |= below
            level = list(below)
        events = _events(connection, "events_of_scopes", {id, *runs})
        return _rows(connection, runs, events, [event.message_id for event in events.values()])


def _rows(
    connection: sqlite3.Connection,
    runs: dict[str, OperationRow],
    events: dict[tuple[str, int], MessageEventRow],
    messages: Iterable[str],
) -> ScopeRows:
    return ScopeRows(
        runs=tuple(runs[one] for one in sorted(runs)),
        messages=tuple(_record(MessageRow, row) for row in _fetch(connection, "messages", messages)),
        events=tuple(events[place] for place in sorted(events)),
        values=tuple(_record(ReturnValueRow, row) for row in _fetch(connection, "values", runs)),
    )


def _runs(connection: sqlite3.Connection, query: str, ids: Iterable[str]) -> dict[str, OperationRow]:
    return {row[0]: _record(OperationRow, row) for row in _fetch(connection, query, ids)}


def _events(connection: sqlite3.Connection, query: str, ids: Iterable[str]) -> dict[tuple[str, int], MessageEventRow]:
    return {(row[0], row[1]): _record(MessageEventRow, row) for row in _fetch(connection, query, ids)}


def _fetch(connection: sqlite3.Connection, query: str, ids: Iterable[str]) -> list[Row]:
    return connection.execute(QUERIES[query], {"ids": json_text([*ids])}).fetchall()


def _handler(row: Row) -> HandlerRow:
    return shown(HandlerRow, dict(zip(HandlerRow.__struct_fields__, row, strict=True)), row)


def _record(kind: type[Any], row: Row) -> Any:
    return record_of(kind, dict(zip(kind.__struct_fields__, row, strict=True)), row)


class SqliteCooperation(SqliteSlice):
    """Handlers and messages."""

    async def handlers(self) -> HandlerList:
        return await self._db.read(handlers)

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        return await self._db.read(partial(scopes, ids=[*ids])) if ids else ScopeRows()

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        return await self._db.read(partial(events_at, places=places))

    async def hierarchy(self, id: str) -> ScopeRows:
        return await self._db.read(partial(hierarchy, id=id))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return await self._db.read(partial(emitted, message_id=message_id))
