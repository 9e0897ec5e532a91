"""The store in a Postgres database. What the methods promise stands in perdure.ports."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import asyncpg
from msgspec.structs import replace

from perdure.errors import CommitRefused, Misuse, OutcomeUnknown, RunNotFound, StoreBroken, StoreBusy, UnstorableValue
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Mail, PublishedValue, Run, Wait
from perdure.kernel.status import FINISHED, Status
from perdure.ports import STREAM_PAGE_CHARS_MAX, Journal, LoadedRun, Ripe, RunFilter, StoredRun, StreamPage
from perdure.storage.postgres.commit import check_fence, commit
from perdure.storage.postgres.connection import Address, Connection, Lane, Lanes, connect
from perdure.storage.postgres.faults import is_lost, store_fault
from perdure.storage.postgres.hints import Listener, Notifier
from perdure.storage.postgres.listing import listing
from perdure.storage.postgres.liveness import SignsOfLife
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import (
    audit_of,
    engine_of,
    entry_of,
    event_of,
    json_text,
    letter_of,
    mail_of,
    published_of,
    run_of,
    stored_run_of,
    stream_item_of,
    wait_of,
)
from perdure.storage.postgres.schema import migrate

_LANES: Final = 4  # connections for all but commits, opened as they are needed


class PostgresStore:
    """A store in the schema of a database, which is made if there is none.

    Commits have a connection of their own; so have the heartbeat, in a thread of its own, hints to others and from them.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._writer = Lane(address, "writer")
        self._lanes = Lanes(address, "reader", _LANES)
        self._signs = SignsOfLife(address)
        self._notifier = Notifier(address)
        self._listener = Listener(address)
        self._state = "new"
        self._doubtful: dict[str, LoadedRun] = {}  # claimed, if the commit that claimed them has landed

    async def open(self) -> None:
        if self._state != "new":
            raise Misuse(f"the store on {self.address.name} was opened before; make another one")
        self._state = "open"
        try:
            connection = await connect(self.address, "migration", patient=True)
            try:
                await migrate(connection, self.address.schema)
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            self.abandon()
            raise store_fault(error, self.address.name) from error
        except BaseException:
            self.abandon()
            raise

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            await self._listener.close()
            await self._notifier.close()
            await self._writer.close()
            await self._lanes.close()
            await asyncio.to_thread(self._signs.end)

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            # What is being written at this moment lands, or meets the fence of whoever finds the sign gone.
            self._listener.abandon()
            self._notifier.abandon()
            self._writer.abandon()
            self._lanes.abandon()
            self._signs.end()

    async def enroll(self, *, engine_id: str, host: str, pid: int, workflows: Sequence[str], at: int) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": json_text([*workflows]), "started_at": at}
        rows = await self._write("enroll", **row, lease=timedelta(seconds=self.address.lease_s))
        self._signs.give(engine_id)
        self._listener.answer_to(engine_id)
        return engine_of(rows[0])

    async def retire(self, engine_id: str) -> None:
        await self._write("retire", id=engine_id)

    async def bury(self) -> builtins.list[str]:
        rows = await self._write("bury")
        return builtins.list(rows[0][0])

    async def engines(self) -> builtins.list[Engine]:
        return [engine_of(row) for row in await self._read("engines")]

    async def commit(self, batch: Batch) -> Committed:
        self._check_open()
        async with self._writer.use() as connection:
            committed = await commit(connection, batch)
        if batch.mail:
            self._notifier.tell(mail.run_id for mail in batch.mail)
        return committed

    async def claim(
        self, *, engine_id: str, epoch: int, fingerprints: Mapping[str, str], limit: int
    ) -> builtins.list[LoadedRun]:
        self._check_open()
        async with self._lanes.use() as connection:
            if self._doubtful:
                return await self._claimed_before_all(connection, engine_id)
            await connection.execute("begin")
            try:
                row = await connection.fetchrow(QUERIES["fence"].sql, engine_id)
                check_fence(engine_id, epoch, row)
                claimed = await _claim(connection, engine_id, fingerprints, max(0, limit))
            except Exception as error:
                if not is_lost(error):
                    await connection.execute("rollback")
                raise
            try:
                await connection.execute("commit")
            except Exception as error:
                if is_lost(error):
                    self._doubtful = {one.run.id: one for one in claimed}
                raise
            return claimed

    async def _claimed_before_all(self, connection: Connection, engine_id: str) -> builtins.list[LoadedRun]:
        """The runs of a claim whose commit was not answered, if it has landed."""
        rows = await _fetch(connection, "runs", ids=[*self._doubtful])
        doubtful, self._doubtful = self._doubtful, {}
        found = {run.id: run for run in map(run_of, rows)}
        return [
            one
            for run_id, one in doubtful.items()
            if run_id in found and (found[run_id].owner, found[run_id].claim) == (engine_id, one.run.claim)
        ]

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        async with self._snapshot() as connection:
            return {loaded.run.id: loaded for loaded in await _load(connection, ids)}

    async def children(self, ids: Sequence[str]) -> builtins.list[LoadedRun]:
        if not ids:
            return []
        async with self._snapshot() as connection:
            rows = await _fetch(connection, "children", ids=[*ids])
            return await _load(connection, [row[0] for row in rows])

    async def ripe(self, *, workflows: Sequence[str], before: int, limit: int) -> builtins.list[Ripe]:
        limit = max(0, limit)
        wanted = {"workflows": [*workflows], "before": before, "limit": limit}
        async with self._snapshot() as connection:
            waits = await _ripe_waits(connection, wanted, limit)
            rows = await _fetch(connection, "ripe_deadlines", **wanted)
        found = sorted([*waits, *((due, run_id, True) for run_id, due in rows)])[:limit]
        return [Ripe(run_id=run_id, due_at=due, deadline=deadline) for due, run_id, deadline in found]

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: event_id for key, event_id in await self._read("sent", ids=[*keys])} if keys else {}

    async def spreading(self) -> builtins.list[str]:
        return [event_id for (event_id,) in await self._read("spreading")]

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        if run_id is None:
            return [event_of(row) for row in await self._read("queued_events", name=name, limit=max(0, limit))]
        found = [event_of(row) for row in await self._read("events", ids=[run_id])]
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[DeadLetter]:
        rows = await self._read("letters", name=name, after=after, limit=max(0, limit))
        return [letter_of(row) for row in rows]

    async def letter(self, letter_id: str) -> DeadLetter | None:
        rows = await self._read("letter", id=letter_id)
        return letter_of(rows[0]) if rows else None

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        events = await self._write("purge_events", at=at, limit=max(0, limit))
        keys = await self._write("purge_keys", before=keys_before, limit=max(0, limit))
        forgotten: int = events[0][0] + keys[0][0]
        return forgotten

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        found = await self.journals([run_id])
        if run_id not in found:
            raise RunNotFound(run_id)
        return found[run_id].input, found[run_id].entries

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        if not ids:
            return {}
        async with self._snapshot() as connection:
            inputs = await _fetch(connection, "inputs", ids=[*ids])
            entry_rows = await _fetch(connection, "journals", ids=[*ids])
            waits = await _waits(connection, ids)
        entries: dict[str, list[Entry]] = {}
        for row in entry_rows:
            entries.setdefault(row[0], []).append(entry_of(row))
        return {id: Journal(text, entries.get(id, []), tuple(waits.get(id, ()))) for id, text in inputs}

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        return [(row[0], entry_of(row[1:])) for row in await self._read("archived", run_id=run_id)]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        return {row[0]: stored_run_of(row) for row in await self._read("stored_runs", ids=[*ids])}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        query, variables = listing(wanted)
        return [run_of(row) for row in await self._read(query, **variables)]

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._read("audit", run_id=run_id)]

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        async with self._snapshot() as connection:
            await _status(connection, run_id)
            rows = await _fetch(connection, "published", run_id=run_id, key=key)
            return [published_of(row) for row in rows]

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        async with self._snapshot() as connection:
            has_ended = await _status(connection, run_id) in FINISHED
            wanted = {"run_id": run_id, "stream": name, "after": after, "limit": max(0, limit)}
            rows = await _fetch(connection, "stream", **wanted, chars_max=STREAM_PAGE_CHARS_MAX)
            return StreamPage(items=tuple(stream_item_of(row) for row in rows), has_ended=has_ended)

    async def post(self, mail: Mail) -> int:
        """Raises OutcomeUnknown if the connection broke: it may have been left."""
        try:
            rows = await self._write("post", run_id=mail.run_id, sender=mail.sender, op=mail.op, at=mail.at)
        except StoreBusy as error:
            if error.__cause__ is not None and is_lost(error.__cause__):
                raise OutcomeUnknown(f"mail for run {mail.run_id!r} may have been left: {error}") from error
            raise
        self._notifier.tell([mail.run_id])
        mail_id: int = rows[0][0]
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        return [mail_of(row) for row in await self._read("mail", engine_id=engine_id, limit=max(0, limit))]

    async def collect(self, mail_id: int) -> str | None:
        # Read first: an answer that is deleted by a statement whose own answer is lost would be lost with it.
        rows = await self._read("reply", id=mail_id)
        if not rows:
            return None
        await self._write("delete_reply", id=mail_id)
        reply: str = rows[0][0]
        return reply

    async def _write(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        """A statement that is a transaction of its own, and may be done again."""
        self._check_open()
        async with self._lanes.use() as connection:
            return await _fetch(connection, query, **variables)

    async def _read(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        try:
            return await self._write(query, **variables)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    def _snapshot(self) -> _Snapshot:
        self._check_open()
        return _Snapshot(self._lanes)

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreBroken(f"the store on {self.address.name} is {self._state}, not open")


class _Snapshot:
    """Several reads of one state of the database."""

    def __init__(self, lanes: Lanes) -> None:
        self._lane = lanes.use()

    async def __aenter__(self) -> Connection:
        connection = await self._lane.__aenter__()
        try:
            await connection.execute("begin isolation level repeatable read read only")
        except BaseException as error:
            await self._lane.__aexit__(type(error), error, error.__traceback__)
            raise
        self._connection = connection
        return connection

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is None or not is_lost(error):
                await self._connection.execute("rollback")
        except Exception as fault:  # noqa: BLE001 - the lane knows what to make of it
            await self._lane.__aexit__(type(fault), fault, fault.__traceback__)
            raise
        try:
            await self._lane.__aexit__(kind, error, traceback)
        except CommitRefused as refused:
            raise UnstorableValue(f"nothing in a store can match this: {refused}") from refused


# ---------------------------------------------------------------------------------------------------------------------
# On a connection


async def _fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


async def _claim(
    connection: Connection, engine_id: str, fingerprints: Mapping[str, str], limit: int
) -> list[LoadedRun]:
    wanted = {"workflows": [*fingerprints], "fingerprints": [*fingerprints.values()], "limit": limit}
    owners = [owner for (owner,) in await _fetch(connection, "owners")]
    found = [*await _fetch(connection, "claimable", **wanted)]
    if owners:
        found += await _fetch(connection, "claimable_orphans", **wanted, owners=owners)
    found += await _fetch(connection, "claimable_blocked", **wanted)
    orphaned = {run_id: is_orphaned for _, run_id, is_orphaned in sorted(found, key=tuple)[:limit]}
    if not orphaned:
        return []
    ids = [*orphaned]
    await _fetch(connection, "take_over", owner=engine_id, ids=ids)
    loaded = {one.run.id: one for one in await _load(connection, ids)}
    return [replace(loaded[run_id], orphaned=orphaned[run_id]) for run_id in ids]


async def _ripe_waits(connection: Connection, wanted: Mapping[str, Any], limit: int) -> list[tuple[int, str, bool]]:
    """Page by page, since a run can have many waits and is told once."""
    found: dict[str, int] = {}
    offset = 0
    while limit:
        rows = await _fetch(connection, "ripe_waits", **wanted, offset=offset)
        for run_id, due_at in rows:
            found.setdefault(run_id, due_at)
        offset += len(rows)
        if len(rows) < limit or len(found) >= limit:
            break
    return [(due_at, run_id, False) for run_id, due_at in found.items()]


async def _load(connection: Connection, ids: Sequence[str]) -> list[LoadedRun]:
    waits = await _waits(connection, ids)
    events: dict[str, list[Event]] = {}
    for row in await _fetch(connection, "events", ids=[*ids]):
        event = event_of(row)
        events.setdefault(event.run_id or "", []).append(event)
    runs = [run_of(row) for row in await _fetch(connection, "runs", ids=[*ids])]
    return [
        LoadedRun(run=run, waits=tuple(waits.get(run.id, ())), events=tuple(events.get(run.id, ()))) for run in runs
    ]


async def _waits(connection: Connection, ids: Sequence[str]) -> dict[str, list[Wait]]:
    waits: dict[str, list[Wait]] = {}
    for row in await _fetch(connection, "waits", ids=[*ids]):
        waits.setdefault(row[0], []).append(wait_of(row))
    return waits


async def _status(connection: Connection, run_id: str) -> Status | str:
    rows = await _fetch(connection, "status", run_id=run_id)
    if not rows:
        raise RunNotFound(run_id)
    status: str = rows[0][0]
    return status
