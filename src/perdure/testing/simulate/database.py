"""A simulated database with many writers. Its transactions consist of statements, as in Postgres with READ COMMITTED.

Between two statements, other transactions can run. Each statement sees the data that are committed when it starts, and
the writes of its own transaction. If a statement had to wait for a lock, it reads the row again when it has the lock.
All writes of a transaction become visible together, at its end. It uses the tables of the store in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import Any, TypeVar

from msgspec.structs import astuple, replace

from perdure.errors import StoreError
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Mail
from perdure.kernel.tasks import Task
from perdure.ports import LoadedRun
from perdure.storage.memory.commit import check_storable
from perdure.storage.memory.database import MemoryDatabase
from perdure.testing.simulate.commits import Commit
from perdure.testing.simulate.locks import Locks
from perdure.testing.simulate.loop import process_name
from perdure.testing.simulate.network import Fate, Network
from perdure.testing.simulate.transactions import Bug, Transaction

__all__ = ["SimulatedDatabase"]

T = TypeVar("T")

SERVER = "database"


class SimulatedDatabase:
    """The database that simulated stores share. With a lease, an engine is alive as long as it renews its heartbeat.
    Without a lease (None), an engine is alive as long as its store is open.
    """

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
        self.processes: dict[str, str] = {}  # engine id -> the process that registered it
        self.lapsed: set[str] = set()  # with LATE_MARKING: engines that must still be marked dead

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the process of the database, and return its result. The work goes on even if the caller dies."""
        return await asyncio.shield(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work in the process of the database, without waiting for it."""
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
        transaction = Transaction(self.locks, self.network)
        try:
            yield transaction
        finally:
            self.locks.release(transaction)

    def notify_others(self, sender: object) -> None:
        """Send a hint to all other stores that they may have work. Hints are delayed, and some are lost."""
        loop = asyncio.get_running_loop()
        for store, (on_change, context) in self.listeners.items():
            if store is not sender and not self.network.loses_hint():
                loop.call_later(self.network.delay_s(), on_change, context=context)

    # Heartbeats.

    def give_sign(self, engine_id: str) -> None:
        """Write an engine's first heartbeat, in the transaction that registers the engine."""
        if self.lease_s is not None:
            self.beats[engine_id] = asyncio.get_running_loop().time()

    def renew_sign(self, engine_id: str) -> bool:
        """Renew an engine's heartbeat. Returns False if the engine has no heartbeat, because it was marked dead or has
        signed off."""
        if engine_id not in self.beats:
            return False
        self.beats[engine_id] = asyncio.get_running_loop().time()
        return True

    def take_back_sign(self, engine_id: str) -> None:
        """Remove an engine's heartbeat."""
        self.beats.pop(engine_id, None)

    def look_for_life(self) -> None:
        """Update the tables with the engines that are alive now."""
        if self.lease_s is not None:
            since = asyncio.get_running_loop().time() - self.lease_s
            self.memory.living = {engine_id for engine_id, beat in self.beats.items() if beat >= since}

    async def mark_dead_engines(self) -> list[str]:
        """Mark engines without a heartbeat dead, after their batches that are under way have ended."""
        async with self.transaction() as transaction:
            await transaction.statement()
            self.look_for_life()
            engines, living = self.memory.engines, self.memory.living
            silent = sorted(one.id for one in engines.values() if one.alive and one.id not in living)
            if Bug.LATE_MARKING in self.bugs:
                self.lapsed.update(silent)
                return silent
            if not silent:
                return []
            await transaction.lock([("engine", engine_id) for engine_id in silent], exclusive=True)
            await transaction.statement()
            # Check again, because a heartbeat may have been renewed while this waited for the locks.
            self.look_for_life()
            living = self.memory.living
            dead = [engine_id for engine_id in silent if engines[engine_id].alive and engine_id not in living]
            if dead:
                self._mark_dead(dead)
                self.note(f"buries {[self.processes.get(one, one) for one in dead]}")
            return dead

    def _mark_dead(self, engine_ids: Iterable[str]) -> None:
        """Mark engines dead, and remove their heartbeats. So a process that wakes up later has no heartbeat to
        renew.
        """
        engines = self.memory.engines
        for engine_id in engine_ids:
            engines[engine_id] = replace(engines[engine_id], alive=False)
            self.take_back_sign(engine_id)

    async def retire(self, engine_id: str, retire: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        async with self.transaction() as transaction:
            await transaction.lock([("engine", engine_id)], exclusive=True)
            await transaction.statement()
            await retire(engine_id)
            self.take_back_sign(engine_id)

    async def claim(self, engine_id: str, claim: Callable[[], Coroutine[Any, Any, list[LoadedRun]]]) -> list[LoadedRun]:
        """Claim runs. Rows that other transactions have locked are skipped. The waits of the runs are read after the
        runs are claimed.
        """
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

    async def claim_tasks(self, claim: Callable[[], Coroutine[Any, Any, list[Task]]]) -> list[Task]:
        """Claim tasks. Tasks that other transactions have locked are skipped."""
        tasks = self.memory.tasks.tasks
        await self.network.pass_by()
        locked = {task_id: tasks.pop(task_id) for task_id in list(tasks) if self.locks.is_held(("task", task_id))}
        try:
            return await claim()
        finally:
            tasks.update(locked)

    async def renew_lease(self, task_id: str, renew: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        async with self.transaction() as transaction:
            await transaction.statement()
            await transaction.lock([("task", task_id)], exclusive=True)
            return await renew()

    async def _bury_late(self) -> None:
        await self.network.pass_by()
        self._mark_dead(self.lapsed)
        self.lapsed.clear()

    async def leave_mail(self, mail: Mail) -> int:
        """Leave mail. Its id is reserved before the mail is visible."""
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
        """Insert mail. Ids are reserved before the mail is visible. So mail that becomes visible later may have a
        smaller id.
        """
        for one in mail:
            self.memory.mail[one.id] = one
        self.memory.mail = dict(sorted(self.memory.mail.items()))

    # Commits.

    async def commit(self, batch: Batch, fate: Fate) -> Committed:
        """Apply a batch. Raises the errors of Store.commit. `fate` may make the commit fail at its end."""
        what = f"batch {batch.number} of {self.processes.get(batch.engine_id, batch.engine_id)}"
        try:
            async with self.transaction() as transaction:
                committed = await Commit(self.memory, batch, transaction, self.bugs).run(fate)
                self._put_mail()
        except StoreError as error:
            self.note(f"{what} fails with {type(error).__name__}: {error}")
            raise
        self.note(f"{what} {'had landed' if committed.landed else _described(batch, committed)}")
        return committed


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
        "notified": sorted(committed.notified),
        "mail": [mail.run_id for mail in batch.mail],
        "answers": list(batch.mail_done),
    }
    return "; ".join(f"{name} {values}" for name, values in parts.items() if values) or "is empty"
