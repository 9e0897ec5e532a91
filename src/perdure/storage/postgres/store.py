"""The store in a Postgres database. What the methods promise stands in perdure.ports."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg
from msgspec.structs import asdict

from perdure.errors import CommitRefused, Misuse, StoreBroken, StoreBusy, StoreError, UnstorableValue
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.batch import Batch, Committed, winners_elsewhere
from perdure.kernel.cooperation import HandlerBook, MessageEventRow, ScopeRows
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Hold, Mail, PublishedValue, Run, Staged
from perdure.kernel.status import FINISHED
from perdure.kernel.stock import Artifact, Record, Task
from perdure.ports import (
    ENGINES_KEPT_US,
    STREAM_PAGE_CHARS_MAX,
    ArtifactFilter,
    ChangedRun,
    Insertion,
    Journal,
    LoadedRun,
    News,
    Offer,
    Ripe,
    Rows,
    RunFilter,
    Statement,
    StepPlace,
    StoredRun,
    StreamPage,
    Taken,
    TaskFilter,
    Transacts,
)
from perdure.storage.damage import sound
from perdure.storage.neighbours import Neighbour, is_free
from perdure.storage.postgres import access, cooperation, stock
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.clock import ServerClock, passed_us
from perdure.storage.postgres.commit import commit
from perdure.storage.postgres.connection import Lane, Lanes, check_session, connect
from perdure.storage.postgres.faults import LOCKED, sqlstate, store_fault
from perdure.storage.postgres.fleet import Claims, look, offered
from perdure.storage.postgres.hints import ANYBODY, Listener, Notifier
from perdure.storage.postgres.insertion import insertion
from perdure.storage.postgres.lists import LISTING, count_runs, list_runs
from perdure.storage.postgres.liveness import SignsOfLife, now
from perdure.storage.postgres.lookout import Lookout
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.reads import (
    Snapshot,
    fetch,
    journal,
    journals,
    load_now,
    load_whole,
    ripe_waits,
    status,
)
from perdure.storage.postgres.rows import (
    audit_of,
    engine_of,
    json_text,
    letter_of,
    mail_of,
    published_of,
    run_of,
    shown_entry_of,
    shown_event_of,
    stored_run_of,
    stream_item_of,
)
from perdure.storage.postgres.schema import migrate
from perdure.storage.postgres.steps import StepTransactions

_LANES: Final = 4  # connections for all but commits, opened as they are needed


class PostgresStore:
    """A store in the schema of a database, which is made if there is none.

    Commits have a connection of their own; so have hints to others, hints from them, and the heartbeat in its thread.
    Transactional steps have a few.
    """

    transacts: Transacts = "async"

    def __init__(self, address: Address) -> None:
        self.address = address
        self._writer = Lane(address, "writer")
        self._lanes = Lanes(address, "reader", _LANES)
        self.clock = ServerClock()
        self._signs = SignsOfLife(address, self.clock)
        self._steps = StepTransactions(address, self._lanes, self._signs)
        self._notifier = Notifier(address)
        self._listener = Listener(address)
        self._neighbour = Neighbour(f"{address.name} {address.schema}")
        self._lookout = Lookout(self._lanes, self._notifier)
        self._state = "new"
        self._claims = Claims()
        self._senders: dict[int, str] = {}  # of mail that is to be answered

    async def open(self) -> None:
        if self._state != "new":
            raise Misuse(f"the store on {self.address.name} was opened before; make another one")
        self._state = "open"
        try:
            address = self.address.direct
            connection = await connect(address, "migration", patient=True)
            try:
                if not address.is_pooled:
                    await check_session(connection, address)
                await migrate(connection, self.address.schema)
                asked_at = passed_us()
                self.clock.learn(await connection.fetchval(QUERIES["time"].sql), asked_at, passed_us())
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
            self.abandon()
            raise store_fault(error, self.address.name) from error
        except BaseException:
            self.abandon()
            raise
        self._lookout.open()

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            try:
                await self._close()
            except BaseException:
                self._drop()  # Nothing may go on as if somebody were there.
                raise

    async def _close(self) -> None:
        self._neighbour.leave()
        await self._lookout.close()
        await self._listener.close()
        await self._notifier.close()
        await self._steps.close()
        await self._writer.close()
        await self._lanes.close()
        await self._signs.finish()

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            # What is being written at this moment lands, or meets the fence of whoever finds the sign gone.
            self._drop()

    def _drop(self) -> None:
        self._neighbour.leave()
        self._lookout.abandon()
        self._listener.abandon()
        self._notifier.abandon()
        self._steps.abandon()
        self._writer.abandon()
        self._lanes.abandon()
        self._signs.end()

    @property
    def poll_s(self) -> float:
        # Who cannot be told that there is something looks more often.
        return min(0.25 if self.address.direct.is_pooled else 1.0, self.address.lease_s / 4)

    def is_surely_alive(self) -> bool:
        return self._signs.is_lasting()

    def withdraw(self, engine_id: str) -> None:
        self._signs.withdraw(engine_id)

    def listen(self, heard: Callable[[], object]) -> None:
        self._listener.listen(heard)
        self._neighbour.listen(heard)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
        self._check_open()
        async with self._lanes.use() as connection:
            return await look(connection, engine_id=engine_id, offers=offers, at=at)

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": json_text([*workflows]), "started_at": at}
        asked_at = now()
        rows = await self._write("enroll", **row, lease=timedelta(seconds=self.address.lease_s))
        self._signs.give(engine_id, asked_at)
        self._listener.answer_to(engine_id)
        return engine_of(rows[0])

    async def retire(self, engine_id: str) -> None:
        await self._write("retire", id=engine_id)
        await self._write("forget_engine", id=engine_id)
        self._notifier.tell([], [ANYBODY])  # Its runs are nobody's now.
        self._neighbour.tell()

    async def mark_dead_engines(self) -> builtins.list[str]:
        try:
            rows = await self._write("mark_dead_engines")
        except StoreBusy as busy:
            await self._cut_off(busy)
            raise
        # Not only of those marked now: whoever marked one may have died before it did this.
        with suppress(StoreBroken):  # It may have no right to: then the server ends them in time.
            await self._write("end_dead_steps")
        return builtins.list(rows[0][0])

    async def engines(self, *, living: bool = False) -> builtins.list[Engine]:
        return [engine_of(row) for row in await self._read("living_engines" if living else "engines")]

    async def commit(self, batch: Batch) -> Committed:
        self._check_open()
        try:
            async with self._writer.use() as connection:
                committed = await commit(connection, batch)
        except StoreBusy as busy:
            await self._cut_off(busy)
            raise
        self._signs.committed(batch.engine_id, batch.number)
        if not self._signs.is_lasting():
            # The engine is alive, as the commit shows; its heartbeat has trouble, or the process stood still.
            with suppress(StoreError):
                async with self._lanes.use() as connection:
                    await self._signs.renew(connection)
        self._neighbour.tell_of(batch, committed)
        self._notifier.tell(*self._addressees(batch, committed))
        return committed

    def insertion(self, batch: Batch) -> Insertion:
        self._check_open()
        return Insertion("postgresql", self._insertion(batch))

    def _insertion(self, batch: Batch) -> Generator[Statement, Rows, Taken]:
        taken = yield from insertion(self.address, batch)
        if taken is None:
            self._lookout.expect(batch.runs)
        return taken

    async def _cut_off(self, busy: StoreBusy) -> None:
        """If a lock was not to be had in time, end whoever may keep it for no good reason; the next try may get it."""
        if busy.__cause__ is not None and sqlstate(busy.__cause__) == LOCKED:
            with suppress(StoreError):
                await self._write("cut_off", silence=timedelta(seconds=self.address.silence_s))

    def _addressees(self, batch: Batch, committed: Committed) -> tuple[set[str], set[str]]:
        """Runs whose owners, or whoever could be one, may have something to do after a batch; engines with answers."""
        runs = {mail.run_id for mail in batch.mail}
        if committed.won:
            runs.update(winners_elsewhere(batch, committed))
        for run_id, write in batch.runs.items():
            if is_free(write.run.owner, write.run.status):
                runs.add(run_id)
        engines = {self._senders[mail_id] for mail_id in batch.mail_done if mail_id in self._senders}
        return runs, engines

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        self._check_open()
        return await self._steps.transact(place, body)

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        self._check_open()
        async with self._lanes.use() as connection:
            return await self._claims.claim(connection, engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        given = {"kind": hold.kind, "reason": hold.reason, "hold": json_text(hold), "at": at}
        return bool(await self._write("set_aside", run_id=run_id, engine_id=engine_id, **given))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        async with self._snapshot() as connection:
            return {loaded.run.id: loaded for loaded in await load_now(connection, ids)}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        if not ids:
            return {}
        self._check_open()
        async with self._lanes.use() as connection:
            return await load_whole(connection, ids)

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        if not ids:
            return []
        async with self._snapshot() as connection:
            rows = await fetch(connection, "stopped_children" if stopped else "children", ids=[*ids])
            return await load_now(connection, [row[0] for row in rows])

    async def ripe(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[Ripe]:
        limit = max(0, limit)
        wanted = {**offered(offers), "before": before, "limit": limit}
        async with self._snapshot() as connection:
            waits = await ripe_waits(connection, wanted, limit)
            rows = await fetch(connection, "ripe_deadlines", **wanted)
        found = sorted([*waits, *((due, run_id, True) for run_id, due in rows)])[:limit]
        return [Ripe(run_id=run_id, due_at=due, deadline=deadline) for due, run_id, deadline in found]

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        return dict(map(_pair, await self._read("sent", ids=[*keys]))) if keys else {}

    async def spreading(self) -> builtins.list[str]:
        return [event_id for (event_id,) in await self._read("spreading")]

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        if run_id is None:
            return [shown_event_of(row) for row in await self._read("queued_events", name=name, limit=max(0, limit))]
        found = [shown_event_of(row) for row in await self._read("events", ids=[run_id])]
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
        replies = await self._write("purge_replies", before=keys_before, limit=max(0, limit))
        await self._write("note_ended", at=at, limit=10 * max(0, limit))
        engines = await self._write("purge_engines", before=at - ENGINES_KEPT_US, limit=max(0, limit))
        forgotten: int = events[0][0] + keys[0][0] + replies[0][0] + engines[0][0]
        return forgotten

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        async with self._snapshot() as connection:
            return await journal(connection, run_id)

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        if not ids:
            return {}
        async with self._snapshot() as connection:
            return await journals(connection, ids)

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        return [
            (row[0], shown_entry_of(row[1:], "journal_archive")) for row in await self._read("archived", run_id=run_id)
        ]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        return {row[0]: stored_run_of(row) for row in await self._read("stored_runs", ids=[*ids])}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        async with self._snapshot(LISTING) as connection:
            return [run_of(row) for row in await list_runs(connection, wanted)]

    async def count(self, wanted: RunFilter) -> int:
        async with self._snapshot(LISTING) as connection:
            return await count_runs(connection, wanted)

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        statuses, begins, ends = ([cell[number] for cell in cells] for number in range(3))
        async with self._snapshot(LISTING) as connection:
            rows = await fetch(connection, "tally", statuses=statuses, begins=begins, ends=ends, limit=max(0, limit))
        return [count for (count,) in rows]

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._read("audit", run_id=run_id)]

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        async with self._snapshot() as connection:
            await status(connection, run_id)
            rows = await fetch(connection, "published", run_id=run_id, key=key)
            return [published_of(row) for row in rows]

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        async with self._snapshot() as connection:
            has_ended = await status(connection, run_id) in FINISHED
            wanted = {"run_id": run_id, "stream": name, "after": after, "limit": max(0, limit)}
            rows = await fetch(connection, "stream", **wanted, chars_max=STREAM_PAGE_CHARS_MAX)
            return StreamPage(items=tuple(stream_item_of(row) for row in rows), has_ended=has_ended)

    async def streams(self, run_id: str) -> dict[str, int]:
        async with self._snapshot() as connection:
            await status(connection, run_id)
            return {row[0]: row[1] for row in await fetch(connection, "streams", run_id=run_id)}

    async def artifacts(self, wanted: ArtifactFilter) -> builtins.list[Artifact]:
        query, variables = stock.listing_of_artifacts(wanted)
        return [stock.artifact_of(row) for row in await self._read_stock(query, **variables)]

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        query, variables = stock.search_of_artifact(id, name, version)
        rows = await self._read_stock(query, **variables)
        return stock.artifact_of(rows[0]) if rows else None

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        rows = await self._read_stock("chunk", artifact_id=artifact_id, number=number)
        return rows[0][0] if rows else None

    async def tasks(self, wanted: TaskFilter) -> builtins.list[Task]:
        query, variables = stock.listing_of_tasks(wanted)
        return [stock.task_of(row) for row in await self._read_stock(query, **variables)]

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return {row[0]: stock.task_of(row) for row in await self._read_stock("tasks", ids=[*ids])} if ids else {}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        """If the connection breaks, tasks may be claimed that nobody knows of: their lease ends."""
        wanted = {
            "queue": queue,
            "worker": worker,
            "lease_us": lease_us,
            "at": at,
            "limit": max(0, limit),
            "actor": actor,
        }
        found = [stock.task_of(row) for row in await self._write_stock("claim_tasks", **wanted)]
        return [task for task in found if task.status == "open"]

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
        return bool(await self._write_stock("hold_task", **wanted))

    async def put_record(self, record: Record) -> int:
        rows = await self._write_stock("put_record", **asdict(record))
        version: int = rows[0][0]
        return version

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        query = "newest_record" if version is None else "record"
        rows = await self._read_stock(query, kind=kind, name=name, version=version)
        return stock.stored_record_of(rows[0]) if rows else None

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> builtins.list[Record]:
        rows = await self._read_stock("records", kind=kind, after=after, limit=max(0, limit))
        return sound(stock.stored_record_of, rows)

    async def audits(self, ids: Sequence[str]) -> builtins.list[Audit]:
        return [audit_of(row) for row in await self._read("audits", ids=[*ids])] if ids else []

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        rows = await self._read("changed_runs", since=since, after=after, limit=max(0, limit))
        return [ChangedRun(*row) for row in rows]

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> builtins.list[Record]:
        kind, name, version = after or ("", "", 0)
        wanted = {"since": since, "kind": kind, "name": name, "version": version, "limit": max(0, limit)}
        return sound(stock.stored_record_of, await self._read_stock("record_versions", **wanted))

    async def put_token(self, token: StoredToken) -> bool:
        rows = await self._access("put_token", **asdict(token))
        return bool(rows[0][0])

    async def token(self, name: str) -> StoredToken | None:
        rows = await self._read_access("token", name=name)
        return access.token_of(rows[0]) if rows else None

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> builtins.list[StoredToken]:
        return sound(access.token_of, await self._read_access("tokens", after=after, limit=max(0, limit)))

    async def token_versions(
        self, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> builtins.list[StoredToken]:
        name, version = after or ("", 0)
        rows = await self._read_access("token_versions", after_name=name, after_version=version, limit=max(0, limit))
        return sound(access.token_of, rows)

    async def use_token(self, name: str, *, at: int) -> None:
        await self._access("use_token", name=name, at=at)

    async def put_session(self, session: StoredSession) -> None:
        await self._access("put_session", **asdict(session))

    async def session(self, id: str) -> StoredSession | None:
        rows = await self._read_access("session", id=id)
        return access.session_of(rows[0]) if rows else None

    async def end_session(self, id: str) -> None:
        await self._access("end_session", id=id)

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        rows = await self._access("purge_sessions", at=at, limit=max(0, limit))
        gone: int = rows[0][0]
        return gone

    async def _access(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        self._check_open()
        async with self._lanes.use() as connection:
            return await access.fetch(connection, query, **variables)

    async def _read_access(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        try:
            return await self._access(query, **variables)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    async def handlers(self) -> HandlerBook:
        return cooperation.book_of(await self._cooperate("handlers"))

    async def register(self, handlers: Sequence[tuple[str, str]], *, at: int) -> HandlerBook:
        await self._cooperate("register", handlers=[*handlers], at=at)
        return await self.handlers()

    async def unregister(self, topic: str, name: str, *, at: int) -> bool:
        return bool(await self._cooperate("unregister", topic=topic, name=name, at=at))

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        async with self._snapshot() as connection:
            return await cooperation.scopes(connection, ids)

    async def hierarchy(self, id: str) -> ScopeRows:
        async with self._snapshot() as connection:
            return await cooperation.hierarchy(connection, id)

    async def events_at(self, places: Sequence[tuple[str, int]]) -> builtins.list[MessageEventRow]:
        scopes, seqs = [scope for scope, _ in places], [seq for _, seq in places]
        return [cooperation.event_of(row) for row in await self._cooperate("events_at", scopes=scopes, seqs=seqs)]

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        rows = await self._cooperate("emitted", message_id=message_id)
        return cooperation.event_of(rows[0]) if rows else None

    async def _cooperate(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        self._check_open()
        async with self._lanes.use() as connection:
            return await cooperation.fetch(connection, query, **variables)

    async def post(self, mail: Mail) -> int:
        """If the connection breaks, mail with a slot may be posted again; other mail may then be there twice."""
        left = {"run_id": mail.run_id, "sender": mail.sender, "slot": mail.slot or None, "op": mail.op, "at": mail.at}
        rows = await self._write("post", **left)
        self._notifier.tell([mail.run_id])
        self._neighbour.tell()
        mail_id: int = rows[0][0]
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        found = [mail_of(row) for row in await self._read("mail", engine_id=engine_id, limit=max(0, limit))]
        self._senders = {mail.id: mail.sender for mail in found if mail.slot}
        return found

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        # Read first: answers that are deleted by a statement whose own answer is lost would be lost with it. Those that
        # could not be deleted are purged in time.
        found = dict(map(_pair, await self._read("replies", slots=[*slots]))) if slots else {}
        if found:
            with suppress(StoreBusy):
                await self._write("delete_replies", slots=[*found])
        return found

    async def _write(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        """A statement that is a transaction of its own, and may be done again."""
        self._check_open()
        async with self._lanes.use() as connection:
            return await fetch(connection, query, **variables)

    async def _write_stock(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        self._check_open()
        async with self._lanes.use() as connection:
            return await stock.fetch(connection, query, **variables)

    async def _read_stock(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        try:
            return await self._write_stock(query, **variables)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    async def _read(self, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
        try:
            return await self._write(query, **variables)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    def _snapshot(self, settings: str = "") -> Snapshot:
        self._check_open()
        return Snapshot(self._lanes.use(), settings)

    def _check_open(self) -> None:
        if self._state != "open":
            raise StoreBroken(f"the store on {self.address.name} is {self._state}, not open")


def _pair(row: Sequence[Any]) -> tuple[str, str]:
    key, value = row
    return key, value
