"""A simulated database with many writers: transactions made of statements, as in Postgres with READ COMMITTED.

Between two statements everybody else gets a turn. Each statement sees what is committed when it starts, and its own
transaction's writes; one that has to wait for a lock looks at the row again once it has it. All writes of a transaction
become visible at once, at its end. The tables are those of the store in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from enum import StrEnum
from typing import Any, TypeVar

from msgspec.structs import astuple, replace

from perdure.errors import StoreBusy, StoreError
from perdure.kernel.batch import Batch, Committed, winners_elsewhere
from perdure.kernel.matching import Question, Settlement, settle
from perdure.kernel.records import Mail
from perdure.ports import LoadedRun
from perdure.storage.memory import (
    MemoryDatabase,
    check_rows,
    check_runs,
    check_storable,
    has_landed,
    write_batch,
)
from perdure.storage.memory_events import Answers, EventTables
from perdure.testing.simulate.locks import Holder, Key, Locks
from perdure.testing.simulate.loop import process_name
from perdure.testing.simulate.network import Fate, Network

__all__ = ["Bug", "SimulatedDatabase", "Transaction"]

T = TypeVar("T")

SERVER = "database"


class Bug(StrEnum):
    """What a store, or an engine, could get wrong. A simulation finds each of them."""

    NO_NAME_LOCK = "no-name-lock"  # waits and broadcasts are matched without a lock on the event's name
    EARLY_SNAPSHOT = "early-snapshot"  # the tables are read as they were before that lock was got
    NO_FENCE = "no-fence"  # an engine that was marked dead may write
    LATE_BURIAL = "late-burial"  # a takeover claims and reads, and marks the engine dead afterwards
    UNLOCKED_OWNERS = "unlocked-owners"  # who is told that a run has won is read early, without a lock on the run
    MAIL_CURSOR = "mail-cursor"  # mail is deleted up to the greatest id that was read
    UNKNOWN_IS_FAILURE = "unknown-is-failure"  # a commit of which nothing is heard counts as not done


class Transaction(Holder):
    """Holds its locks until it ends."""

    __slots__ = ("_database",)

    def __init__(self, database: SimulatedDatabase) -> None:
        super().__init__()
        self._database = database

    async def statement(self) -> None:
        """The next statement: others got their turns before it."""
        await self._database.network.pass_by()

    async def lock(self, keys: Iterable[Key], *, exclusive: bool) -> None:
        """A statement that locks these, in this order. Raises StoreBusy."""
        for key in keys:
            await self._database.locks.take(self, key, exclusive=exclusive)


class SimulatedDatabase:
    """What stores on it share. With a lease engines show life by beats in its time; without one (None), by having their
    store open."""

    def __init__(
        self,
        network: Network | None = None,
        *,
        lease_s: float | None = None,
        bugs: frozenset[Bug] = frozenset(),
        note: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.memory = MemoryDatabase()
        self.network = network or Network()
        self.locks = Locks()
        self.lease_s = lease_s
        self.bugs = bugs
        self.note = note
        self.listeners: dict[object, tuple[Callable[[], object], Context]] = {}
        self.beats: dict[str, float] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.processes: dict[str, str] = {}  # engine id -> the process that enrolled it
        self.lapsed: set[str] = set()  # with LATE_BURIAL: engines that are still to be marked dead

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done by the database's own process: it goes on there, whatever becomes of the caller."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same without waiting for it. What becomes of it need not interest anybody."""
        context = copy_context()
        context.run(process_name.set, SERVER)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        transaction = Transaction(self)
        try:
            yield transaction
        finally:
            self.locks.release(transaction)

    def tell_others(self, teller: object) -> None:
        """Hint to all other stores that there may be something for them. Some hints are lost, all take their time."""
        loop = asyncio.get_running_loop()
        for store, (heard, context) in self.listeners.items():
            if store is not teller and not self.network.loses_hint():
                loop.call_later(self.network.delay_s(), heard, context=context)

    # Signs of life.

    def beat(self, engine_id: str) -> None:
        self.beats[engine_id] = asyncio.get_running_loop().time()

    def look_for_life(self) -> None:
        """Who shows life now, for those who ask the tables."""
        if self.lease_s is not None:
            since = asyncio.get_running_loop().time() - self.lease_s
            self.memory.living = {engine_id for engine_id, beat in self.beats.items() if beat >= since}

    async def bury(self) -> list[str]:
        """Waits for batches in flight of those whom it is about to mark dead."""
        async with self.transaction() as transaction:
            await transaction.statement()
            self.look_for_life()
            engines, living = self.memory.engines, self.memory.living
            silent = sorted(one.id for one in engines.values() if one.alive and one.id not in living)
            if Bug.LATE_BURIAL in self.bugs:
                self.lapsed.update(silent)
                return silent
            await transaction.lock([("engine", engine_id) for engine_id in silent], exclusive=True)
            dead = [engine_id for engine_id in silent if engines[engine_id].alive]
            if dead:
                await transaction.statement()
                engines.update({engine_id: replace(engines[engine_id], alive=False) for engine_id in dead})
                self.note(f"buries {[self.processes.get(one, one) for one in dead]}")
            return dead

    async def retire(self, engine_id: str, retire: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        async with self.transaction() as transaction:
            await transaction.lock([("engine", engine_id)], exclusive=True)
            await transaction.statement()
            await retire(engine_id)

    async def claim(self, engine_id: str, claim: Callable[[], Coroutine[Any, Any, list[LoadedRun]]]) -> list[LoadedRun]:
        """Rows that others have locked are passed over. What the runs wait for is read once they are claimed."""
        memory = self.memory
        async with self.transaction() as transaction:
            await transaction.statement()
            await transaction.lock([("engine", engine_id)], exclusive=False)
            locked = {run_id for run_id in memory.active if self.locks.is_held(("run", run_id))}
            engines = dict(memory.engines)
            memory.active -= locked
            memory.engines.update({one: replace(engines[one], alive=False) for one in self.lapsed})
            try:
                claimed = await claim()
            finally:
                memory.active |= locked
                memory.engines.update(engines)
        if claimed:
            self.note(f"{self.processes.get(engine_id)} claims {[one.run.id for one in claimed]}")
            await self.network.pass_by()
            tables = memory.tables
            claimed = [replace(one, waits=tables.waits_of(one.run.id), events=tables.of(one.run.id)) for one in claimed]
        if self.lapsed:
            await self._bury_late()
        return claimed

    async def _bury_late(self) -> None:
        await self.network.pass_by()
        engines = self.memory.engines
        engines.update({one: replace(engines[one], alive=False) for one in self.lapsed})
        self.lapsed.clear()

    async def post(self, mail: Mail) -> int:
        """Its id is drawn before it can be seen."""
        check_storable(*astuple(mail))
        async with self.transaction() as transaction:
            await transaction.statement()
            await transaction.lock([("slot", mail.slot)] if mail.slot else [], exclusive=True)
            if mail.slot and self._is_used(mail.slot):
                return 0
            self.memory.mail_count += 1
            number = self.memory.mail_count
            await transaction.statement()
            self._put_mail(replace(mail, id=number))
            self.note(f"mail {number} for {mail.run_id}: {mail.op[:60]}")
            return number

    def _is_used(self, slot: str) -> bool:
        return slot in self.memory.replies or any(one.slot == slot for one in self.memory.mail.values())

    def _put_mail(self, *mail: Mail) -> None:
        """Ids are drawn before mail can be seen: one that comes later may be older."""
        for one in mail:
            self.memory.mail[one.id] = one
        self.memory.mail = dict(sorted(self.memory.mail.items()))

    # Commits.

    async def commit(self, batch: Batch, fate: Fate) -> Committed:
        """Raises what Store.commit does. `fate` may be that it fails in the end."""
        what = f"batch {batch.number} of {self.processes.get(batch.engine_id, batch.engine_id)}"
        try:
            committed = await self._commit(batch, fate)
        except StoreError as error:
            self.note(f"{what} fails with {type(error).__name__}: {error}")
            raise
        self.note(f"{what} {'had landed' if committed.landed else _described(batch, committed)}")
        return committed

    async def _commit(self, batch: Batch, fate: Fate) -> Committed:
        async with self.transaction() as transaction:
            await transaction.statement()
            if Bug.NO_FENCE not in self.bugs:
                await transaction.lock([("engine", batch.engine_id)], exclusive=False)
            await transaction.lock([("batch", batch.engine_id)], exclusive=True)
            if self._has_landed(batch):
                return Committed(landed=True)
            early = {run_id: stored.run.owner for run_id, stored in self.memory.runs.items()}
            snapshot = await self._lock_names(transaction, batch)
            await self._lock_rows(transaction, batch)
            self._check(batch)
            base, settlement = await self._match(transaction, batch, snapshot)
            mail_base, owners = await self._lock_winners(transaction, batch, settlement)
            if Bug.UNLOCKED_OWNERS in self.bugs:
                owners = early
            await transaction.statement()
            check_rows(self.memory, batch)
            if fate in ("busy", "unknown_lost"):
                raise StoreBusy("the connection was lost before the commit, as drawn by lot")
            return self._write(batch, base, settlement, mail_base, owners)

    def _has_landed(self, batch: Batch) -> bool:
        if Bug.NO_FENCE in self.bugs and batch.engine_id in self.memory.engines:
            return self.memory.engines[batch.engine_id].batch == batch.number
        return has_landed(self.memory, batch)

    async def _lock_names(self, transaction: Transaction, batch: Batch) -> EventTables | None:
        """Names first, in a statement of their own: what is read for matching is read after it."""
        shared, exclusive = self._names(batch)
        if not shared and not exclusive:
            return None
        snapshot = self.memory.tables.copied() if Bug.EARLY_SNAPSHOT in self.bugs else None
        if Bug.NO_NAME_LOCK not in self.bugs:
            for name in sorted(shared | exclusive):
                await transaction.lock([("name", name)], exclusive=name in exclusive)
        await transaction.statement()
        return snapshot

    def _names(self, batch: Batch) -> tuple[set[str], set[str]]:
        """Names of events that the batch waits for, and of those that it may put into a queue."""
        tables = self.memory.tables
        shared = {wait.name for wait in batch.waits.values() if wait.kind == "event"}
        exclusive = {event.name for event in batch.events if event.run_id is None}
        exclusive |= {tables.events[""][one].name for one in batch.spread if one in tables.cursors}
        over = {*batch.waits_cleared, *batch.hops}
        for run_id in over:
            exclusive |= {event.name for event in tables.events.get(run_id, {}).values()}
        exclusive |= {event.name for event in batch.events if event.run_id in over}
        for run_id, position in [*batch.waits_dropped, *((run_id, None) for run_id in over)]:
            waits = tables.waits.get(run_id, {}).values()
            exclusive |= {w.name for w in waits if w.kind == "event" and position in (None, w.position)}
        return shared, exclusive

    async def _lock_rows(self, transaction: Transaction, batch: Batch) -> None:
        """Rows that are written, those that must stay as they are, and those whose end is waited for."""
        targets = {wait.target for wait in batch.waits.values() if wait.target is not None}
        for run_id in sorted({*batch.runs, *batch.guards, *targets}):
            await transaction.lock([("run", run_id)], exclusive=run_id in batch.runs)
        await transaction.lock([("key", key) for key in sorted(batch.keys)], exclusive=True)
        await transaction.lock([("mail", f"{mail_id}") for mail_id in sorted(batch.mail_done)], exclusive=True)

    async def _lock_winners(
        self, transaction: Transaction, batch: Batch, settlement: Settlement
    ) -> tuple[int, dict[str, str | None]]:
        """Whoever owns a run that won something hears of it; so its owner must stay the same until the commit. Then
        the ids of mail are drawn: the one before the first, and the owners."""
        winners = winners_elsewhere(batch, settlement.found)
        if Bug.UNLOCKED_OWNERS not in self.bugs:
            await transaction.lock([("run", run_id) for run_id in winners], exclusive=False)
        owners = {run_id: self.memory.runs[run_id].run.owner for run_id in winners}
        base = self.memory.mail_count
        self.memory.mail_count += len(batch.mail) + len(winners)
        return base, owners

    def _check(self, batch: Batch) -> None:
        check_runs(self.memory, batch)

    async def _match(
        self, transaction: Transaction, batch: Batch, snapshot: EventTables | None
    ) -> tuple[int, Settlement]:
        """What the batch's events and waits come to: every question is a statement."""
        base = self.memory.tables.numbered(batch)  # From a sequence: numbers of a transaction that fails are lost.
        settlement = await self._settled(transaction, batch, base, snapshot)
        await transaction.lock([("event", event.id) for event in settlement.moved], exclusive=True)
        queue = self.memory.tables.events.get("", {})
        if any(event.id not in queue for event in settlement.moved):
            raise StoreBusy("an event was taken by another transaction meanwhile; the batch may be sent again")
        return base, settlement

    async def _settled(
        self, transaction: Transaction, batch: Batch, base: int, snapshot: EventTables | None
    ) -> Settlement:
        matching = settle(batch, base)
        try:
            question = next(matching)
            while True:
                await transaction.statement()
                question = matching.send(self._answer(batch, base, question, snapshot))
        except StopIteration as stop:
            settlement: Settlement = stop.value
            return settlement

    def _answer(self, batch: Batch, base: int, question: Question, snapshot: EventTables | None) -> Any:
        tables = (snapshot or self.memory.tables).copied()
        tables.begin(batch, base)
        statuses = {run_id: stored.run.status for run_id, stored in self.memory.runs.items()}
        return Answers(tables, batch, statuses).answer(question)

    def _write(
        self, batch: Batch, base: int, settlement: Settlement, mail_base: int, owners: dict[str, str | None]
    ) -> Committed:
        memory = self.memory
        memory.tables.begin(batch, base)
        memory.tables.finish(batch, settlement)
        count, memory.mail_count = memory.mail_count, mail_base
        committed = write_batch(memory, batch, settlement, owners)
        memory.mail_count = max(count, memory.mail_count)
        self._put_mail()
        if Bug.MAIL_CURSOR in self.bugs and batch.mail_done:
            read = max(batch.mail_done)
            own = [one.id for one in memory.mail.values() if one.id <= read and self._is_own(batch, one)]
            for mail_id in own:
                del memory.mail[mail_id]
        return committed

    def _is_own(self, batch: Batch, mail: Mail) -> bool:
        return mail.run_id in self.memory.runs and self.memory.runs[mail.run_id].run.owner == batch.engine_id


def _described(batch: Batch, committed: Committed) -> str:
    runs = [f"{one.run.id} {one.run.status}" for one in batch.runs.values()]
    entries = [f"{entry.run_id}/{entry.seq} {entry.kind} {entry.position}" for entry in batch.journal]
    waits = [f"{wait.run_id}/{wait.position} {wait.kind}" for wait in batch.waits.values()]
    events = [f"{event.name} to {event.run_id}" for event in batch.events]
    won = [f"{won.run_id}/{won.position} by {won.event.id if won.event else won.target}" for won in committed.won]
    read = [f"{run_id} {event_id}" for run_id, event_id in batch.events_read]
    parts = {
        "runs": runs,
        "entries": entries,
        "waits": waits,
        "dropped": batch.waits_dropped,
        "cleared": batch.waits_cleared,
        "events": events,
        "given": batch.events_given,
        "read": read,
        "won": won,
        "told": sorted(committed.told),
        "mail": [mail.run_id for mail in batch.mail],
        "answers": list(batch.mail_done),
    }
    return "; ".join(f"{name} {values}" for name, values in parts.items() if values) or "is empty"
