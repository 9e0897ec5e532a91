"""Reads of runs, in a snapshot or inside a transaction that writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from perdure.errors import CommitRefused, RunNotFound, UnstorableValue
from perdure.kernel.events import Event
from perdure.kernel.rows import Entry, Staged, Wait
from perdure.ports import Journal, LoadedRun
from perdure.storage.damage import Readings, loaded
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.faults import is_lost
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import entry_of, event_of, run_of, shown_entry_of, staged_of, wait_of

_EVENT_RUN_AT: Final = Event.__struct_fields__.index("run_id")


async def fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    """Return the rows of a named query."""
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


async def due_waits(connection: Connection, wanted: Mapping[str, Any], limit: int) -> list[tuple[int, str, bool]]:
    """Return the runs whose waits are due.

    Waits are read page by page, because a run can have many waits but is listed only once.
    """
    found: dict[str, int] = {}
    offset = 0
    while limit:
        rows = await fetch(connection, "ripe_waits", **wanted, offset=offset)
        for run_id, due_at in rows:
            found.setdefault(run_id, due_at)
        offset += len(rows)
        if len(rows) < limit or len(found) >= limit:
            break
    return [(due_at, run_id, False) for run_id, due_at in found.items()]


async def load_now(connection: Connection, ids: Sequence[str]) -> list[LoadedRun]:
    waits, events = await _mailboxes(connection, ids)
    rows = await fetch(connection, "runs", ids=[*ids])
    return [loaded(run_of(row), waits, events, forsaken=row[-1]) for row in rows]


async def mailboxes_now(
    connection: Connection, ids: Sequence[str]
) -> list[tuple[str, tuple[Wait, ...], tuple[Event, ...]]]:
    """Return the waits of runs, and the events that were sent or given to these runs."""
    waits, events = await _mailboxes(connection, ids)
    return [(run_id, waits.of(run_id), events.of(run_id)) for run_id in ids]


async def _mailboxes(connection: Connection, ids: Sequence[str]) -> tuple[Readings[Wait], Readings[Event]]:
    waits, events = Readings(wait_of), Readings(event_of)
    for row in await fetch(connection, "waits", ids=[*ids]):
        waits.add(row[0], row)
    for row in await fetch(connection, "events", ids=[*ids]):
        events.add(row[_EVENT_RUN_AT], row)
    return waits, events


async def journal(connection: Connection, run_id: str) -> tuple[str, list[Entry]]:
    """Return a run's input and journal, for display. Raises RunNotFound."""
    inputs = await fetch(connection, "inputs", ids=[run_id])
    entries = [shown_entry_of(row) for row in await fetch(connection, "journals", ids=[run_id])]
    if not inputs:
        raise RunNotFound(run_id)
    return inputs[0][1], entries


async def journals(connection: Connection, ids: Sequence[str]) -> dict[str, Journal]:
    return await _journals(connection, ids, await _waits(connection, ids))


async def load_whole(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
    """Load runs with their journals.

    This uses no snapshot, because a snapshot would take two more requests. Instead, the journals are read after their
    runs.
    """
    found = {one.run.id: one for one in await load_now(connection, ids)}
    whole = await _journals(connection, [*found], {run_id: one.waits for run_id, one in found.items()})
    return {run_id: (found[run_id], journal) for run_id, journal in whole.items()}


async def _journals(
    connection: Connection, ids: Sequence[str], waits: Mapping[str, Sequence[Wait]]
) -> dict[str, Journal]:
    inputs = await fetch(connection, "inputs", ids=[*ids])
    entry_rows = await fetch(connection, "journals", ids=[*ids])
    entries: dict[str, list[Entry]] = {}
    for row in entry_rows:
        entries.setdefault(row[0], []).append(entry_of(row))
    staged: dict[str, list[Staged]] = {}
    for row in await fetch(connection, "staged", ids=[*ids]):
        staged.setdefault(row[0], []).append(staged_of(row))
    return {
        id: Journal(text, entries.get(id, []), tuple(waits.get(id, ())), staged=tuple(staged.get(id, ())))
        for id, text in inputs
    }


async def _waits(connection: Connection, ids: Sequence[str]) -> dict[str, list[Wait]]:
    waits: dict[str, list[Wait]] = {}
    for row in await fetch(connection, "waits", ids=[*ids]):
        waits.setdefault(row[0], []).append(wait_of(row))
    return waits


async def status(connection: Connection, run_id: str) -> str:
    rows = await fetch(connection, "status", run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    found: str = rows[0][0]
    return found


class Snapshot:
    """Several reads of the same state of the database, with one connection."""

    def __init__(self, lane: AbstractAsyncContextManager[Connection], settings: str = "") -> None:
        """Take the connection from `lane`. The statements in `settings` apply only to these reads."""
        self._lane = lane
        self._begin = f"begin isolation level repeatable read read only; {settings}"
        self._connection: Connection

    async def __aenter__(self) -> Connection:
        connection = await self._lane.__aenter__()
        try:
            await connection.execute(self._begin)
        except BaseException as error:
            await self._lane.__aexit__(type(error), error, error.__traceback__)
            raise
        self._connection = connection
        return connection

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is None or (isinstance(error, Exception) and not is_lost(error)):
                await self._connection.execute("rollback")
        except BaseException as fault:
            await self._lane.__aexit__(type(fault), fault, fault.__traceback__)
            raise
        try:
            await self._lane.__aexit__(kind, error, traceback)
        except CommitRefused as refused:
            raise UnstorableValue(f"nothing in a store can match this: {refused}") from refused
