"""The store in memory, for tests: the same promises as SQLite's, but for surviving the process."""

from __future__ import annotations

import asyncio
import builtins
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec.structs import astuple, replace

from perdure.errors import CommitRefused, Misuse, StoreBroken
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import HandlerBook, MessageEventRow, OperationRow, ScopeRows
from perdure.kernel.fingerprints import may_fit
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.kernel.records import (
    Audit,
    DeadLetter,
    Engine,
    Entry,
    Event,
    Hold,
    Mail,
    PublishedValue,
    Run,
    Staged,
)
from perdure.kernel.status import FINISHED, Status
from perdure.kernel.stock import Artifact, Record, Task
from perdure.ports import (
    ENGINES_KEPT_US,
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
from perdure.storage.claims import better_models, fits
from perdure.storage.memory_commit import (
    check_fence,
    check_rows,
    check_runs,
    check_storable,
    check_values,
    has_landed,
    write_batch,
)
from perdure.storage.memory_database import MemoryDatabase

T = TypeVar("T")

_SIGNED_OFF: Final = 0  # instead of the time when an engine was found to be dead


class MemoryStore:
    """A store on a MemoryDatabase, a new one unless given."""

    clock: Clock | None = None
    poll_s = 1.0
    transacts: Transacts = "no"

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        self._enrolled: set[str] = set()
        self._state = "new"

    async def open(self) -> None:
        if self._state != "new":
            raise Misuse("this store was opened before; make another one on the same database")
        self._state = "open"

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self.database.listeners.pop(self, None)
            with self.database.lock:
                self.database.living -= self._enrolled

    def is_surely_alive(self) -> bool:
        return bool(self._enrolled)

    def withdraw(self, engine_id: str) -> None:
        with self.database.lock:
            self._enrolled.discard(engine_id)
            self.database.living.discard(engine_id)

    def listen(self, heard: Callable[[], object]) -> None:
        self.database.listeners[self] = heard

    def _tell_others(self) -> None:
        for store, heard in self.database.listeners.items():
            if store is not self:
                asyncio.get_running_loop().call_soon(heard)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
        database = self._database()
        with database.lock:
            return News(
                mail=any(_is_for(database, mail, engine_id) for mail in database.mail.values()),
                dead=any(engine.alive and engine.id not in database.living for engine in database.engines.values()),
                stray=bool(_claimable(database, offers) or _ripe(database, offers, at + 1)),
                blocked=any(_may_be_unblocked(run, offer) for run, offer in _free(database, offers)),
            )

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        database = self._database()
        check_storable(engine_id, host, pid, at, *(text for pair in workflows for text in pair))
        with database.lock:
            if engine_id in database.engines:
                raise CommitRefused(f"engine {engine_id!r} is enrolled already; every engine takes an id of its own")
            engine = Engine(
                id=engine_id,
                epoch=1 + max((known.epoch for known in database.engines.values()), default=0),
                alive=True,
                batch=0,
                host=host,
                pid=pid,
                workflows=[*workflows],
                started_at=at,
            )
            database.engines[engine_id] = engine
            database.living.add(engine_id)
            self._enrolled.add(engine_id)
        return engine

    async def retire(self, engine_id: str) -> None:
        database = self._database()
        with database.lock:
            if engine := database.engines.get(engine_id):
                database.engines[engine_id] = replace(engine, alive=False)
            for run_id in database.active:
                stored = database.runs[run_id]
                if stored.run.owner == engine_id:
                    database.runs[run_id] = replace(stored, run=replace(stored.run, owner=None))
            if engine is not None:
                database.ended[engine_id] = _SIGNED_OFF
                _forget_signed_off(database)
        self._tell_others()

    async def mark_dead_engines(self) -> builtins.list[str]:
        database = self._database()
        with database.lock:
            dead = [e for e in database.engines.values() if e.alive and e.id not in database.living]
            database.engines.update({engine.id: replace(engine, alive=False) for engine in dead})
        return [engine.id for engine in dead]

    async def engines(self, *, living: bool = False) -> builtins.list[Engine]:
        found = [engine for engine in self._database().engines.values() if engine.alive or not living]
        return sorted(found, key=lambda engine: engine.epoch)

    async def commit(self, batch: Batch) -> Committed:
        self._database()
        await asyncio.sleep(0)  # As with a real store, others get their turn while a commit is in flight.
        refusal = await _refusal(batch)
        database = self._database()
        with database.lock:
            if has_landed(database, batch):
                return Committed(landed=True)
            check_runs(database, batch)
            if refusal is not None:
                raise refusal
            check_rows(database, batch)
            statuses = {one: stored.run.status for one, stored in database.runs.items()} if batch.waits else {}
            committed = write_batch(database, batch, database.tables.apply(batch, statuses))
        self._tell_others()
        if len(batch.runs) > PIECE_ITEMS_MAX:
            await asyncio.sleep(0)
        return committed

    def insertion(self, batch: Batch) -> Insertion:
        what = f"run {min(batch.runs)!r} cannot be started" if batch.cooperation is None else "nothing can be emitted"
        raise Misuse(
            f"{what} on a connection: memory:// has none; leave connection= out, or use an SQLite file or Postgres"
        )

    async def transact(self, _place: StepPlace, _body: Callable[[Any], Any], /) -> Staged:
        raise Misuse("a store in memory has no transactions for steps: use sqlite:///… or postgresql://…")

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        database = self._database()
        with database.lock:
            check_fence(database, engine_id, epoch)
            claimed: builtins.list[LoadedRun] = []
            for was in _claimable(database, offers)[: max(0, limit)]:
                model = better_models([was], offers).get(was.id, was.model)
                run = replace(was, owner=engine_id, claim=was.claim + 1, model=model)
                database.runs[run.id] = replace(database.runs[run.id], run=run)
                claimed.append(replace(_loaded(database, run), orphaned=was.owner is not None))
            return claimed

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        database = self._database()
        with database.lock:
            run = database.runs[run_id].run
            if run.hold is not None or (run.owner != engine_id and database.is_alive(run.owner)):
                return False
            held = replace(run, owner=None, hold=hold, tried="", revision=run.revision + 1)
            database.runs[run_id] = replace(database.runs[run_id], run=held)
            database.audit.setdefault(run_id, {})[held.revision] = Audit(
                run_id=run_id,
                seq=held.revision,
                version=held.version,
                was=held.status,
                became=hold.kind,
                cause=hold.reason,
                actor="",
                at=at,
            )
            return True

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        database = self._database()
        with database.lock:
            return {one: _loaded(database, database.runs[one].run) for one in ids if one in database.runs}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        loaded = await self.load(ids)
        journals = await self.journals([*loaded])
        return {one: (loaded[one], journals[one]) for one in journals}

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        database = self._database()
        with database.lock:
            found = {child for run_id in ids for child in database.children.get(run_id, ())}
            runs = (database.runs[run_id].run for run_id in sorted(found if stopped else found & database.active))
            wanted = (run for run in runs if run.status not in (Status.SUCCEEDED, Status.FAILED))
            return [_loaded(database, run) for run in wanted if run.bond != "detached"]

    async def ripe(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[Ripe]:
        database = self._database()
        with database.lock:
            return _ripe(database, offers, before)[:limit]

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        known = self._database().tables.keys
        return {key: known[key][0] for key in keys if key in known}

    async def spreading(self) -> builtins.list[str]:
        return sorted(self._database().tables.cursors)

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        tables = self._database().tables
        found = tables.of("" if run_id is None else run_id)
        return [event for event in found if name in (None, event.name)][: max(0, limit)]

    async def letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[DeadLetter]:
        letters = self._database().tables.letters
        found = [letters[one] for one in sorted(letters) if name in (None, letters[one].name)]
        return [letter for letter in found if after is None or letter.id > after][: max(0, limit)]

    async def letter(self, letter_id: str) -> DeadLetter | None:
        return self._database().tables.letters.get(letter_id)

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        database = self._database()
        with database.lock:
            old = [slot for slot, (_, given) in database.replies.items() if given < keys_before][:limit]
            for slot in old:
                del database.replies[slot]
            return len(old) + _purge_engines(database, at, limit) + database.tables.purge(at, keys_before, limit)

    async def journal(self, run_id: str) -> tuple[str, builtins.list[Entry]]:
        with self._database().holding(run_id) as database:
            return database.runs[run_id].input, _in_order(database.journal.get(run_id, {}))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        database = self._database()
        with database.lock:
            return {
                one: Journal(
                    database.runs[one].input,
                    _in_order(database.journal.get(one, {})),
                    _loaded(database, database.runs[one].run).waits,
                )
                for one in ids
                if one in database.runs
            }

    async def archived(self, run_id: str) -> builtins.list[tuple[int, Entry]]:
        database = self._database()
        with database.lock:
            aside = database.archive.get(run_id, {})
            return [(attempt, aside[attempt, seq]) for attempt, seq in sorted(aside)]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        database = self._database()
        with database.lock:
            return {one: database.runs[one] for one in ids if one in database.runs}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        database = self._database()
        with database.lock:
            found = [stored.run for stored in database.runs.values() if _matches(stored.run, wanted)]
            found.sort(key=lambda run: (run.created_at, run.id), reverse=True)
            return found[: max(0, wanted.limit)]

    async def count(self, wanted: RunFilter) -> int:
        database = self._database()
        with database.lock:
            found = (stored for stored in database.runs.values() if _matches(stored.run, wanted))
            return sum(1 for _ in islice(found, max(0, wanted.limit)))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        database = self._database()
        with database.lock:
            times: dict[str, builtins.list[int]] = {}
            for stored in database.runs.values():
                times.setdefault(stored.run.status, []).append(stored.run.created_at)
            for found in times.values():
                found.sort()
            return [
                max(0, min(limit, bisect_left(times.get(status, ()), end) - bisect_left(times.get(status, ()), begin)))
                for status, begin, end in cells
            ]

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        database = self._database()
        with database.lock:
            return _in_order(database.audit.get(run_id, {}))

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        with self._database().holding(run_id) as database:
            return database.streams.published(run_id, key)

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        with self._database().holding(run_id) as database:
            items = database.streams.page(run_id, name, after, max(0, limit))
            return StreamPage(items=items, has_ended=database.runs[run_id].run.status in FINISHED)

    async def streams(self, run_id: str) -> dict[str, int]:
        with self._database().holding(run_id) as database:
            return database.streams.lengths(run_id)

    async def artifacts(self, wanted: ArtifactFilter) -> builtins.list[Artifact]:
        database = self._database()
        with database.lock:
            return database.stock.list_artifacts(wanted, database.runs)

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        database = self._database()
        with database.lock:
            return database.stock.artifact(id, name, version)

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return self._database().stock.chunk(artifact_id, number)

    async def tasks(self, wanted: TaskFilter) -> builtins.list[Task]:
        database = self._database()
        with database.lock:
            return database.stock.list_tasks(wanted, database.runs)

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        known = self._database().stock.tasks
        return {one: known[one] for one in ids if one in known}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        database = self._database()
        check_storable(queue, worker, at + lease_us, actor)
        with database.lock:
            return database.stock.claim_tasks(queue, worker, lease_us, at, limit, actor)

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
        database = self._database()
        check_storable(worker, details, error, actor)
        with database.lock:
            return database.stock.hold_task(task_id, worker, at, keep, details, error, actor)

    async def put_record(self, record: Record) -> int:
        database = self._database()
        check_storable(*astuple(record))
        with database.lock:
            return database.stock.put_record(record)

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        database = self._database()
        with database.lock:
            return database.stock.record(kind, name, version)

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> builtins.list[Record]:
        database = self._database()
        with database.lock:
            return database.stock.list_records(kind, after, limit)

    async def audits(self, ids: Sequence[str]) -> builtins.list[Audit]:
        return [row for run_id in sorted({*ids}) for row in await self.audit(run_id)]

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        database = self._database()
        with database.lock:
            found = sorted(
                (stored.run.id, stored.run.workflow)
                for stored in database.runs.values()
                if stored.run.updated_at >= since or stored.run.hold is not None
            )
        return [ChangedRun(*one) for one in found if one[0] > after][: max(0, limit)]

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> builtins.list[Record]:
        database = self._database()
        with database.lock:
            return database.stock.list_versions(since, after, limit)

    async def put_token(self, token: StoredToken) -> bool:
        database = self._database()
        check_storable(*astuple(token))
        with database.lock:
            return database.access.put_token(token)

    async def token(self, name: str) -> StoredToken | None:
        return self._database().access.token(name)

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> builtins.list[StoredToken]:
        database = self._database()
        with database.lock:
            return database.access.list_tokens(after, limit)

    async def token_versions(
        self, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> builtins.list[StoredToken]:
        database = self._database()
        with database.lock:
            return database.access.list_versions(after, limit)

    async def use_token(self, name: str, *, at: int) -> None:
        database = self._database()
        with database.lock:
            database.access.use_token(name, at)

    async def put_session(self, session: StoredSession) -> None:
        database = self._database()
        check_storable(*astuple(session))
        with database.lock:
            database.access.sessions.setdefault(session.id, session)

    async def session(self, id: str) -> StoredSession | None:
        return self._database().access.sessions.get(id)

    async def end_session(self, id: str) -> None:
        database = self._database()
        with database.lock:
            database.access.sessions.pop(id, None)

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        database = self._database()
        with database.lock:
            return database.access.purge_sessions(at, limit)

    async def handlers(self) -> HandlerBook:
        return self._database().cooperation.book()

    async def register(self, handlers: Sequence[tuple[str, str]], *, at: int) -> HandlerBook:
        database = self._database()
        check_storable(*(text for pair in handlers for text in pair))
        with database.lock:
            return database.cooperation.register(handlers, at)

    async def unregister(self, topic: str, name: str, *, at: int) -> bool:
        database = self._database()
        with database.lock:
            return database.cooperation.unregister(topic, name, at)

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        database = self._database()
        with database.lock:
            return database.cooperation.scopes(ids, partial(_operation, database))

    async def events_at(self, places: Sequence[tuple[str, int]]) -> builtins.list[MessageEventRow]:
        database = self._database()
        with database.lock:
            return database.cooperation.events_at(places)

    async def hierarchy(self, id: str) -> ScopeRows:
        database = self._database()
        with database.lock:
            return database.cooperation.hierarchy(id, partial(_operation, database))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return self._database().cooperation.keys.get(message_id, {}).get("EMITTED")

    async def post(self, mail: Mail) -> int:
        database = self._database()
        check_storable(*astuple(mail))
        with database.lock:
            mail_id = database.post(mail)
        self._tell_others()
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        database = self._database()
        with database.lock:
            own = [one for one in database.mail.values() if _is_for(database, one, engine_id)]
        return own[: max(0, limit)]

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        replies = self._database().replies
        return {slot: replies.pop(slot)[0] for slot in slots if slot in replies}

    def _database(self) -> MemoryDatabase:
        if self._state != "open":
            raise StoreBroken(f"this store is {self._state}, not open")
        return self.database


# ---------------------------------------------------------------------------------------------------------------------
# Reading


async def _refusal(batch: Batch) -> CommitRefused | None:
    """Why a batch is refused whatever is stored. A large one is looked at in pieces."""
    try:
        for _ in check_values(batch):
            await asyncio.sleep(0)
    except CommitRefused as refusal:
        return refusal
    return None


def _in_order(rows: Mapping[int, T]) -> list[T]:
    return [rows[seq] for seq in sorted(rows)]


def _is_needless(database: MemoryDatabase, engine: Engine) -> bool:
    """Whether nobody needs to know of a dead engine: it owns nothing, it is not the last one to come, and what code it
    had a later one has too."""
    later = [one for one in database.engines.values() if one.epoch > engine.epoch]
    return (
        not engine.alive
        and bool(later)
        and (not engine.workflows or any(one.workflows == engine.workflows for one in later))
        and all(database.runs[run_id].run.owner != engine.id for run_id in database.active)
    )


def _forget_signed_off(database: MemoryDatabase) -> None:
    """The last engine to come stays until another one has signed off."""
    signed_off = [id for id, ended_at in database.ended.items() if ended_at == _SIGNED_OFF]
    for engine_id in signed_off:
        if _is_needless(database, database.engines[engine_id]):
            del database.engines[engine_id], database.ended[engine_id]


def _purge_engines(database: MemoryDatabase, at: int, limit: int) -> int:
    ended = database.ended
    dead = [engine for engine in database.engines.values() if not engine.alive]
    for engine in dead:
        ended.setdefault(engine.id, at)
    old = [one for one in dead if ended[one.id] < at - ENGINES_KEPT_US and _is_needless(database, one)][:limit]
    for engine in old:
        del database.engines[engine.id], ended[engine.id]
    return len(old)


def _loaded(database: MemoryDatabase, run: Run) -> LoadedRun:
    return LoadedRun(
        run=run,
        waits=database.tables.waits_of(run.id),
        events=database.tables.of(run.id),
        forsaken=run.owner is not None and not database.is_alive(run.owner),
    )


def _operation(database: MemoryDatabase, run_id: str) -> OperationRow | None:
    stored = database.runs.get(run_id)
    if stored is None:
        return None
    run, is_call = stored.run, stored.run.bond == "called"
    if run.model != "operation" and not is_call:
        return None
    return OperationRow(
        id=run.id,
        parent_id=run.parent_id,
        handler=run.workflow,
        status=run.status,
        origin=run.origin,
        bond=run.bond,
        output=stored.outcome.output if is_call else None,
        failure=stored.outcome.failure if is_call else None,
    )


def _is_for(database: MemoryDatabase, mail: Mail, engine_id: str) -> bool:
    stored = database.runs.get(mail.run_id)
    return stored is None or stored.run.owner == engine_id or not database.is_alive(stored.run.owner)


def _free(database: MemoryDatabase, offers: Iterable[Offer]) -> list[tuple[Run, Offer]]:
    """The active runs without a living owner that fit an offer."""
    known: dict[str, builtins.list[Offer]] = {}
    for offer in offers:
        known.setdefault(offer.workflow, []).append(offer)
    messages = database.cooperation.messages

    def topic_of(message_id: str) -> str:
        return messages[message_id].topic if message_id in messages else ""

    def is_begun(run_id: str) -> bool:
        return 1 in database.cooperation.events.get(run_id, ())

    active = (database.runs[run_id].run for run_id in database.active)
    return [
        (run, offer)
        for run in active
        if run.workflow in known and not database.is_alive(run.owner)
        for offer in known[run.workflow]
        if fits(run, offer, topic_of, is_begun)
    ]


def _claimable(database: MemoryDatabase, offers: Iterable[Offer]) -> list[Run]:
    found = [run for run, offer in _free(database, offers) if _is_claimable(run, offer)]
    return sorted(found, key=lambda run: (run.created_at, run.id))


def _is_claimable(run: Run, offer: Offer) -> bool:
    if run.hold is None:
        return run.status is not Status.SUSPENDED
    return bool(offer.fingerprint) and _may_be_unblocked(run, offer)


def _may_be_unblocked(run: Run, offer: Offer) -> bool:
    hold = run.hold
    return hold is not None and hold.kind == "blocked" and may_fit(hold.fingerprint, offer.fingerprint)


def _ripe(database: MemoryDatabase, offers: Iterable[Offer], before: int) -> list[Ripe]:
    free = [run for run, _ in _free(database, offers) if run.hold is None]
    held = (database.runs[run_id].run for run_id in database.active if database.runs[run_id].run.hold is not None)
    found = [
        Ripe(run_id=run.id, due_at=run.deadline, deadline=True)
        for run in (*free, *(run for run in held if _is_held_alive(run) and not database.is_alive(run.owner)))
        if run.deadline is not None and run.deadline < before
    ]
    for run in free:
        waits = database.tables.waits_of(run.id) if run.status is Status.SUSPENDED else ()
        due = [wait.due_at for wait in waits if wait.due_at is not None and wait.due_at < before]
        if due:
            found.append(Ripe(run_id=run.id, due_at=min(due), deadline=False))
    return sorted(found, key=lambda ripe: (ripe.due_at, ripe.run_id))


def _is_held_alive(run: Run) -> bool:
    """Whether its deadline ends a held run: nobody's code is needed for that."""
    return run.model == "operation" or run.status in (Status.CREATED, Status.RUNNING, Status.SUSPENDED)


def _matches(run: Run, wanted: RunFilter) -> bool:
    return (
        wanted.workflow in (None, run.workflow)
        and (not wanted.statuses or run.status in wanted.statuses)
        and wanted.hold in (None, run.hold.kind if run.hold else "")
        and wanted.parent_id in (None, run.parent_id)
        and wanted.tags.items() <= run.tags.items()
        and (wanted.created_from is None or run.created_at >= wanted.created_from)
        and (wanted.created_before is None or run.created_at < wanted.created_before)
        and (wanted.after is None or (run.created_at, run.id) < wanted.after)
    )


__all__ = ["MemoryDatabase", "MemoryStore"]
