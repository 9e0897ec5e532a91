"""The store in one SQLite file: one thread writes, another reads. What the methods promise stands in perdure.ports."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict

from perdure.errors import CommitRefused, EngineBug, Misuse, StoreBroken, UnstorableValue
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import HandlerBook, MessageEventRow, ScopeRows
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Hold, Mail, PublishedValue, Run, Staged
from perdure.kernel.stock import Artifact, Record, Task
from perdure.ports import (
    ArtifactFilter,
    ChangedRun,
    Clock,
    Insertion,
    Journal,
    LoadedRun,
    News,
    Offer,
    Ripe,
    RunFilter,
    StepPlace,
    StoredRun,
    StreamPage,
    TaskFilter,
    Transacts,
)
from perdure.storage.neighbours import Neighbour
from perdure.storage.sqlite import access, cooperation, fleet, reads, stock
from perdure.storage.sqlite.checkpoints import Checkpoints
from perdure.storage.sqlite.commit import Plan, commit, plan
from perdure.storage.sqlite.connection import connect_reader, connect_steps, connect_writer
from perdure.storage.sqlite.faults import BINDING_ERRORS, store_fault
from perdure.storage.sqlite.hints import LogWatch, Writes
from perdure.storage.sqlite.insertion import insertion
from perdure.storage.sqlite.lists import count_runs, list_runs
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.losses import FileWatch
from perdure.storage.sqlite.pace import brisk_switching
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import (
    archived_of,
    audit_of,
    engine_of,
    json_text,
    letter_of,
    mail_of,
    run_of,
    shown_event_of,
    stored_run_of,
)
from perdure.storage.sqlite.steps import StepTransactions
from perdure.storage.sqlite.streams import read_published, read_stream, read_streams
from perdure.storage.sqlite.thread import DatabaseThread
from perdure.storage.sqlite.transaction import transaction

T = TypeVar("T")


class SqliteStore:
    """A store in the file at `path`, which is made if there is none.

    Beside it are SQLite's own -wal and -shm files while it is open, and a lock file per living engine.
    """

    clock: Clock | None = None
    poll_s = 0.5
    transacts: Transacts = "plain"

    def __init__(self, path: str | Path) -> None:
        # Resolved, since engines that come by different links must look at the same lock files.
        self.path = Path(path).resolve()
        self._signs = SignsOfLife(self.path)
        self._writer = DatabaseThread("perdure-sqlite-writer", self.path, connect_writer, Checkpoints())
        self._reader = DatabaseThread("perdure-sqlite-reader", self.path, connect_reader)
        self._steps = StepTransactions(self._connect_steps)
        self._writes = Writes()
        self._files = FileWatch(self.path)
        self._watch: LogWatch | None = None
        self._neighbour = Neighbour(f"sqlite {self.path}")
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
            self._hear_nothing()
            try:
                await self._reader.stop()
                await self._writer.stop()
            except BaseException:
                self._reader.abandon()
                self._writer.abandon()
                raise
            finally:
                # What is noted in lock files tells the next one what a file that was replaced lacks.
                self._signs.end(tidy=not self._files.is_replaced)

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self._hear_nothing()
            # What is being written at this moment lands, or meets the fence of whoever finds the sign gone.
            self._writer.abandon()
            self._reader.abandon()
            self._signs.end(tidy=False)

    def is_surely_alive(self) -> bool:
        return bool(self._signs.held)  # However long a process is stopped, it keeps its locks.

    def withdraw(self, engine_id: str) -> None:
        self._signs.withdraw(engine_id)

    def listen(self, heard: Callable[[], object]) -> None:
        self._watch = LogWatch(self.path, heard, self._writes)
        self._neighbour.listen(heard)

    def _hear_nothing(self) -> None:
        self._neighbour.leave()
        if self._watch is not None:
            self._watch.end()

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
        self._files.check()
        return await self._read(partial(fleet.look, signs=self._signs, engine_id=engine_id, offers=[*offers], at=at))

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": [*workflows], "started_at": at}
        return await self._write(partial(fleet.enroll, path=self.path, signs=self._signs, row=row))

    async def retire(self, engine_id: str) -> None:
        await self._write(partial(fleet.retire, signs=self._signs, engine_id=engine_id))
        self._neighbour.tell()  # Its runs are nobody's now.

    async def mark_dead_engines(self) -> builtins.list[str]:
        return await self._write(partial(fleet.mark_dead_engines, signs=self._signs))

    async def engines(self, *, living: bool = False) -> builtins.list[Engine]:
        return [engine_of(row) for row in await self._fetch("living_engines" if living else "engines", {})]

    async def commit(self, batch: Batch) -> Committed:
        try:
            planned = plan(batch)
        except BINDING_ERRORS as error:
            raise store_fault(error, self.path) from error
        with brisk_switching:
            committed = await self._write(partial(self._commit, planned=planned))
        self._neighbour.tell_of(batch, committed)
        return committed

    def _commit(self, connection: sqlite3.Connection, *, planned: Plan) -> Committed:
        committed = commit(connection, planned)
        self._files.check()  # Else a commit that is not acknowledged would be missed as if it had been.
        self._signs.note(planned.batch.engine_id, planned.batch.number)
        return committed

    def insertion(self, batch: Batch) -> Insertion:
        self._check_open()
        return Insertion("sqlite", insertion(self.path, batch))

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        staged, error = await self._write(lambda _: self._steps.transact(place, body))
        if staged is None:
            raise error or EngineBug("a transaction came to nothing")
        return staged

    def _connect_steps(self) -> sqlite3.Connection:
        connection = connect_steps(self.path)
        self._writer.keep(connection)
        return connection

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        return await self._write(partial(fleet.claim, engine_id=engine_id, epoch=epoch, offers=[*offers], limit=limit))

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        return await self._write(partial(reads.set_aside, run_id=run_id, hold=hold, engine_id=engine_id, at=at))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        return {loaded.run.id: loaded for loaded in await self._read(partial(reads.load, ids=[*ids]))}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        return await self._read(partial(reads.load_whole, ids=[*ids])) if ids else {}

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        return await self._read(partial(reads.children, ids=[*ids], stopped=stopped))

    async def ripe(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[Ripe]:
        wanted = {"offers": fleet.offers_text(offers), "before": before, "limit": max(0, limit)}
        waits = await self._read(partial(reads.ripe_waits, wanted=wanted, limit=limit))
        deadlines = [(due, run_id, True) for run_id, due in await self._fetch("ripe_deadlines", wanted)]
        found = sorted([*waits, *deadlines])[: max(0, limit)]
        damaged = await self._fetch("damaged_waits", {"limit": max(0, limit - len(found))})
        found += [(before - 1, run_id, False) for (run_id,) in damaged]
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
            return [shown_event_of(row) for row in rows]
        found = [shown_event_of(row) for row in await self._fetch("events", {"ids": json_text([run_id])})]
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
        return await self._write(
            partial(_purge, path=self.path, signs=self._signs, at=at, keys_before=keys_before, limit=limit)
        )

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        return await self._read(partial(reads.journal, run_id=run_id))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        return await self._read(partial(reads.journals, ids=[*ids])) if ids else {}

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        return [archived_of(row) for row in await self._fetch("archived", {"run_id": run_id})]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        rows = await self._read(
            lambda connection: connection.execute(QUERIES["stored_runs"], {"ids": json_text([*ids])}).fetchall()
        )
        return {row[0]: stored_run_of(row) for row in rows}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        rows = await self._read(partial(list_runs, wanted=wanted))
        return [run_of(row) for row in rows]

    async def count(self, wanted: RunFilter) -> int:
        return await self._read(partial(count_runs, wanted=wanted))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        wanted = {"cells": json_text([*cells]), "limit": max(0, limit)}
        return [count for (count,) in await self._fetch("tally", wanted)]

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._fetch("audit", {"run_id": run_id})]

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        return await self._read(partial(read_published, run_id=run_id, key=key))

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        return await self._read(partial(read_stream, run_id=run_id, name=name, after=after, limit=limit))

    async def streams(self, run_id: str) -> dict[str, int]:
        return await self._read(partial(read_streams, run_id=run_id))

    async def artifacts(self, wanted: ArtifactFilter) -> builtins.list[Artifact]:
        return await self._read(partial(stock.artifacts, wanted=wanted))

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        return await self._read(partial(stock.artifact, id=id, name=name, version=version))

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return await self._read(partial(stock.chunk, artifact_id=artifact_id, number=number))

    async def tasks(self, wanted: TaskFilter) -> builtins.list[Task]:
        return await self._read(partial(stock.tasks, wanted=wanted))

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return await self._read(partial(stock.load_tasks, ids=[*ids])) if ids else {}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        claim = partial(
            stock.claim_tasks, queue=queue, worker=worker, lease_us=lease_us, at=at, limit=limit, actor=actor
        )
        return await self._write(claim)

    async def hold_task(
        self,
        *,
        task_id: str,
        worker: str,
        at: int,
        keep: bool,
        details: str | None = None,
        error: str | None = None,
        actor: str = "",
    ) -> bool:
        wanted = {
            "id": task_id,
            "worker": worker,
            "at": at,
            "keep": keep,
            "details": details,
            "error": error,
            "actor": actor,
        }
        return await self._write(partial(stock.hold_task, wanted=wanted))

    async def put_record(self, record: Record) -> int:
        return await self._write(partial(stock.put_record, record=record))

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        return await self._read(partial(stock.record, kind=kind, name=name, version=version))

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> builtins.list[Record]:
        return await self._read(partial(stock.records, kind=kind, after=after, limit=limit))

    async def audits(self, ids: Sequence[str]) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._fetch("audits", {"ids": json_text([*ids])})] if ids else []

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        wanted = {"since": since, "after": after, "limit": max(0, limit)}
        return [ChangedRun(*row) for row in await self._fetch("changed_runs", wanted)]

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> builtins.list[Record]:
        return await self._read(partial(stock.record_versions, since=since, after=after or ("", "", 0), limit=limit))

    async def put_token(self, token: StoredToken) -> bool:
        return await self._write(partial(access.put_token, token=token))

    async def token(self, name: str) -> StoredToken | None:
        return await self._read(partial(access.read_token, name=name))

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> builtins.list[StoredToken]:
        wanted = {"after": after, "limit": max(0, limit)}
        return await self._read(partial(access.read_tokens, query="tokens", variables=wanted))

    async def token_versions(
        self, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> builtins.list[StoredToken]:
        name, version = after or ("", 0)
        wanted = {"after_name": name, "after_version": version, "limit": max(0, limit)}
        return await self._read(partial(access.read_tokens, query="token_versions", variables=wanted))

    async def use_token(self, name: str, *, at: int) -> None:
        await self._write(partial(access.write, query="use_token", variables={"name": name, "at": at}))

    async def put_session(self, session: StoredSession) -> None:
        await self._write(partial(access.write, query="put_session", variables=asdict(session)))

    async def session(self, id: str) -> StoredSession | None:
        return await self._read(partial(access.read_session, id=id))

    async def end_session(self, id: str) -> None:
        await self._write(partial(access.write, query="end_session", variables={"id": id}))

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        wanted = {"at": at, "limit": max(0, limit)}
        return await self._write(partial(access.write, query="purge_sessions", variables=wanted))

    async def handlers(self) -> HandlerBook:
        return await self._read(cooperation.handlers)

    async def register(self, handlers: Sequence[tuple[str, str]], *, at: int) -> HandlerBook:
        return await self._write(partial(cooperation.register, handlers=handlers, at=at))

    async def unregister(self, topic: str, name: str, *, at: int) -> bool:
        return await self._write(partial(cooperation.unregister, topic=topic, name=name, at=at))

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        return await self._read(partial(cooperation.scopes, ids=[*ids])) if ids else ScopeRows()

    async def events_at(self, places: Sequence[tuple[str, int]]) -> builtins.list[MessageEventRow]:
        return await self._read(partial(cooperation.events_at, places=places))

    async def hierarchy(self, id: str) -> ScopeRows:
        return await self._read(partial(cooperation.hierarchy, id=id))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return await self._read(partial(cooperation.emitted, message_id=message_id))

    async def post(self, mail: Mail) -> int:
        mail_id = await self._write(partial(fleet.post, mail=mail))
        self._neighbour.tell()
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        variables = {"engine_id": engine_id, "limit": max(0, limit)}
        return [mail_of(row) for row in await self._fetch("mail", variables)]

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        # Who waits for a reply asks often: only an answer that is there is worth the writer's lock.
        there = [slot for (slot,) in await self._fetch("replies", {"ids": json_text([*slots])})]
        return await self._write(partial(fleet.collect, slots=there)) if there else {}

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        return await self._writer.run(partial(self._writes.do, partial(self._files.kept, work)))

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


def _purge(
    connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, at: int, keys_before: int, limit: int
) -> int:
    with transaction(connection):
        gone = connection.execute(QUERIES["purge_events"], {"at": at, "limit": limit}).fetchall()
        retained = [event_id for event_id, is_retained in gone if is_retained]
        if retained:
            connection.execute(QUERIES["purge_reads"], {"ids": json_text(retained)})
        before = {"before": keys_before, "limit": limit}
        return (
            len(gone)
            + fleet.purge_engines(connection, path=path, signs=signs, at=at, limit=limit)
            + sum(connection.execute(QUERIES[old], before).rowcount for old in ("purge_keys", "purge_replies"))
        )
