"""The store in one SQLite file: one thread writes, another reads. What the methods promise stands in perdure.ports."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.errors import CommitRefused, InvariantViolated, Misuse, RunNotFound, StoreBroken, UnstorableValue
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Mail, PublishedValue, Run, Wait
from perdure.ports import LoadedRun, Ripe, RunFilter, StoredRun, StreamPage
from perdure.storage.sqlite.commit import check_fence, commit, plan
from perdure.storage.sqlite.connection import connect_reader, connect_writer
from perdure.storage.sqlite.faults import BINDING_ERRORS, store_fault
from perdure.storage.sqlite.listing import listing
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.pace import brisk_switching
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import (
    audit_of,
    engine_of,
    entry_of,
    event_of,
    json_text,
    letter_of,
    mail_of,
    run_of,
    stored_run_of,
    wait_of,
)
from perdure.storage.sqlite.streams import read_published, read_stream
from perdure.storage.sqlite.thread import DatabaseThread
from perdure.storage.sqlite.transaction import snapshot, transaction

T = TypeVar("T")


class SqliteStore:
    """A store in the file at `path`, which is made if there is none.

    Beside it are SQLite's own -wal and -shm files while it is open, and a lock file per living engine.
    """

    def __init__(self, path: str | Path) -> None:
        # Resolved, since engines that come by different links must look at the same lock files.
        self.path = Path(path).resolve()
        self._signs = SignsOfLife(self.path)
        self._writer = DatabaseThread("perdure-sqlite-writer", self.path, connect_writer)
        self._reader = DatabaseThread("perdure-sqlite-reader", self.path, connect_reader)
        self._state = "new"

    async def open(self) -> None:
        if self._state != "new":
            raise Misuse(f"the store on {self.path} was opened before; make another one")
        self._state = "open"
        try:
            await self._writer.start()
            await self._reader.start()
        except BaseException:
            self.abandon()
            raise

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            try:
                await self._reader.stop()
                await self._writer.stop()
            finally:
                self._signs.end(tidy=True)

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            # What is being written at this moment lands, or meets the fence of whoever finds the sign gone.
            self._writer.abandon()
            self._reader.abandon()
            self._signs.end(tidy=False)

    async def enroll(self, *, engine_id: str, host: str, pid: int, workflows: Sequence[str], at: int) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": [*workflows], "started_at": at}
        return await self._write(partial(_enroll, signs=self._signs, row=row))

    async def retire(self, engine_id: str) -> None:
        await self._write(partial(_retire, engine_id=engine_id))

    async def bury(self) -> builtins.list[str]:
        return await self._write(partial(_bury, signs=self._signs))

    async def engines(self) -> builtins.list[Engine]:
        return [engine_of(row) for row in await self._fetch("engines", {})]

    async def commit(self, batch: Batch) -> Committed:
        try:
            planned = plan(batch)
        except BINDING_ERRORS as error:
            raise store_fault(error, self.path) from error
        with brisk_switching:
            return await self._write(partial(commit, planned=planned))

    async def claim(
        self, *, engine_id: str, epoch: int, fingerprints: Mapping[str, str], limit: int
    ) -> builtins.list[LoadedRun]:
        return await self._write(
            partial(_claim, engine_id=engine_id, epoch=epoch, fingerprints=dict(fingerprints), limit=limit)
        )

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        return {loaded.run.id: loaded for loaded in await self._read(partial(_load, ids=[*ids]))}

    async def children(self, ids: Sequence[str]) -> builtins.list[LoadedRun]:
        return await self._read(partial(_children, ids=[*ids]))

    async def ripe(self, *, workflows: Sequence[str], before: int, limit: int) -> builtins.list[Ripe]:
        wanted = {"workflows": json_text([*workflows]), "before": before, "limit": max(0, limit)}
        waits = [(due, run_id, False) for run_id, due in await self._fetch("ripe_waits", wanted)]
        deadlines = [(due, run_id, True) for run_id, due in await self._fetch("ripe_deadlines", wanted)]
        found = sorted([*waits, *deadlines])[: max(0, limit)]
        return [Ripe(run_id=run_id, due_at=due, deadline=deadline) for due, run_id, deadline in found]

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._fetch("sent", {"ids": json_text([*keys])})) if keys else {}

    async def spreading(self) -> builtins.list[str]:
        return [event_id for (event_id,) in await self._fetch("spreading", {})]

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        if run_id is None:
            rows = await self._fetch("queued_events", {"name": name, "limit": max(0, limit)})
            return [event_of(row) for row in rows]
        found = [event_of(row) for row in await self._fetch("events", {"ids": json_text([run_id])})]
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[DeadLetter]:
        rows = await self._fetch("letters", {"name": name, "after": after, "limit": max(0, limit)})
        return [letter_of(row) for row in rows]

    async def letter(self, letter_id: str) -> DeadLetter | None:
        rows = await self._fetch("letter", {"id": letter_id})
        return letter_of(rows[0]) if rows else None

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        return await self._write(partial(_purge, at=at, keys_before=keys_before, limit=limit))

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        return await self._read(partial(_journal, run_id=run_id))

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        return [(row[0], entry_of(row[1:])) for row in await self._fetch("archived", {"run_id": run_id})]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        rows = await self._read(
            lambda connection: connection.execute(QUERIES["stored_runs"], {"ids": json_text([*ids])}).fetchall()
        )
        return {row[0]: stored_run_of(row) for row in rows}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        rows = await self._read(lambda connection: connection.execute(*listing(wanted)).fetchall())
        return [run_of(row) for row in rows]

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._fetch("audit", {"run_id": run_id})]

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        return await self._read(partial(read_published, run_id=run_id, key=key))

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        return await self._read(partial(read_stream, run_id=run_id, name=name, after=after, limit=limit))

    async def post(self, mail: Mail) -> int:
        return await self._write(partial(_post, mail=mail))

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        variables = {"engine_id": engine_id, "limit": max(0, limit)}
        return [mail_of(row) for row in await self._fetch("mail", variables)]

    async def collect(self, mail_id: int) -> str | None:
        # Who waits for a reply asks often: only an answer that is there is worth the writer's lock.
        if not await self._fetch("reply", {"id": mail_id}):
            return None
        return await self._write(partial(_collect, mail_id=mail_id))

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        return await self._writer.run(work)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        try:
            return await self._reader.run(work)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    async def _fetch(self, query: str, variables: Mapping[str, object]) -> builtins.list[tuple[Any, ...]]:
        return await self._read(lambda connection: connection.execute(QUERIES[query], variables).fetchall())

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreBroken(f"the store on {self.path} is {self._state}, not open", path=self.path)


# ---------------------------------------------------------------------------------------------------------------------
# Work for the threads


def _enroll(connection: sqlite3.Connection, *, signs: SignsOfLife, row: dict[str, Any]) -> Engine:
    engine_id: str = row["id"]
    # The sign comes first: an engine that is alive in the table must never be seen without it.
    if not signs.give(engine_id):
        raise CommitRefused(f"engine {engine_id!r} is enrolled already; every engine takes an id of its own")
    try:
        with transaction(connection):
            connection.execute(QUERIES["enroll"], {**row, "workflows": json_text(row["workflows"])})
            return engine_of(connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone())
    except BaseException:
        signs.withdraw(engine_id)
        raise


def _retire(connection: sqlite3.Connection, *, engine_id: str) -> None:
    with transaction(connection):
        connection.execute(QUERIES["mark_dead"], {"id": engine_id})
        connection.execute(QUERIES["release"], {"id": engine_id})


def _bury(connection: sqlite3.Connection, *, signs: SignsOfLife) -> list[str]:
    dead = signs.dead([engine_id for (engine_id,) in connection.execute(QUERIES["living"]).fetchall()])
    if not dead:
        return []
    is_done = False
    try:
        with transaction(connection):
            # An engine that retired in between is not counted.
            buried = [e for e in dead if connection.execute(QUERIES["mark_dead"], {"id": e}).rowcount]
        is_done = True
        return buried
    finally:
        for sign in dead.values():
            if sign:
                sign.let_go(tidy=is_done)


def _claim(
    connection: sqlite3.Connection, *, engine_id: str, epoch: int, fingerprints: dict[str, str], limit: int
) -> list[LoadedRun]:
    with transaction(connection):
        check_fence(connection, engine_id, epoch)
        owners = [None, *(owner for (owner,) in connection.execute(QUERIES["owners"]))]
        # One short walk through the index for each owner and workflow, in order, is never long, whatever else waits.
        found: list[tuple[int, str, bool]] = []
        for owner in owners:
            for workflow, fingerprint in fingerprints.items():
                wanted = {"owner": owner, "workflow": workflow, "fingerprint": fingerprint, "limit": max(0, limit)}
                for created_at, run_id in connection.execute(QUERIES["claimable"], wanted):
                    found.append((created_at, run_id, owner is not None))
        for workflow, fingerprint in fingerprints.items():
            wanted = {"workflow": workflow, "fingerprint": fingerprint, "limit": max(0, limit)}
            for created_at, run_id, owner in connection.execute(QUERIES["claimable_blocked"], wanted):
                found.append((created_at, run_id, owner is not None))
        orphaned = {run_id: is_orphaned for _, run_id, is_orphaned in sorted(found)[: max(0, limit)]}
        if not orphaned:
            return []
        ids = list(orphaned)
        connection.execute(QUERIES["take_over"], {"owner": engine_id, "ids": json_text(ids)})
        loaded = {one.run.id: one for one in _load_now(connection, ids)}
        return [replace(loaded[run_id], orphaned=orphaned[run_id]) for run_id in ids]


def _load(connection: sqlite3.Connection, *, ids: list[str]) -> list[LoadedRun]:
    with snapshot(connection):
        return _load_now(connection, ids)


def _load_now(connection: sqlite3.Connection, ids: list[str]) -> list[LoadedRun]:
    given = {"ids": json_text(ids)}
    waits: dict[str, list[Wait]] = {}
    for row in connection.execute(QUERIES["waits"], given):
        waits.setdefault(row[0], []).append(wait_of(row))
    events: dict[str, list[Event]] = {}
    for row in connection.execute(QUERIES["events"], given):
        event = event_of(row)
        events.setdefault(event.run_id or "", []).append(event)
    runs = [run_of(row) for row in connection.execute(QUERIES["runs"], given)]
    return [
        LoadedRun(run=run, waits=tuple(waits.get(run.id, ())), events=tuple(events.get(run.id, ()))) for run in runs
    ]


def _children(connection: sqlite3.Connection, *, ids: list[str]) -> list[LoadedRun]:
    with snapshot(connection):
        rows = connection.execute(QUERIES["children"], {"ids": json_text(ids)}).fetchall()
        return _load_now(connection, [row[0] for row in rows])


def _purge(connection: sqlite3.Connection, *, at: int, keys_before: int, limit: int) -> int:
    with transaction(connection):
        gone = connection.execute(QUERIES["purge_events"], {"at": at, "limit": limit}).fetchall()
        retained = [event_id for event_id, is_retained in gone if is_retained]
        if retained:
            connection.execute(QUERIES["purge_reads"], {"ids": json_text(retained)})
        return len(gone) + connection.execute(QUERIES["purge_keys"], {"before": keys_before, "limit": limit}).rowcount


def _journal(connection: sqlite3.Connection, *, run_id: str) -> tuple[str, list[Entry]]:
    with snapshot(connection):
        row = connection.execute(QUERIES["input"], {"run_id": run_id}).fetchone()
        if row is None:
            raise RunNotFound(run_id)
        if row[0] is None:
            raise InvariantViolated(f"the input of run {run_id!r} is gone from the table payloads", run_id=run_id)
        entries = connection.execute(QUERIES["journal"], {"run_id": run_id}).fetchall()
    return row[0], [entry_of(entry) for entry in entries]


def _post(connection: sqlite3.Connection, *, mail: Mail) -> int:
    with transaction(connection):
        row = {"run_id": mail.run_id, "sender": mail.sender, "op": mail.op, "at": mail.at}
        mail_id = connection.execute(QUERIES["post"], row).lastrowid
    assert mail_id is not None
    return mail_id


def _collect(connection: sqlite3.Connection, *, mail_id: int) -> str | None:
    with transaction(connection):
        row = connection.execute(QUERIES["reply"], {"id": mail_id}).fetchone()
        connection.execute(QUERIES["delete_reply"], {"id": mail_id})
    return None if row is None else row[0]
