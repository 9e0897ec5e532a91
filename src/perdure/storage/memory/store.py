"""The store in memory, for tests. It gives all guarantees of the SQLite store, but its data do not survive the process.

This module writes batches. Each other slice of the store is in the module that is named after its noun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.errors import CommitRefused, Misuse
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.kernel.rows import Staged
from perdure.ports import Clock, Insertion, StepPlace, Transacts
from perdure.storage.memory.access import MemoryAccess
from perdure.storage.memory.artifacts import MemoryArtifacts
from perdure.storage.memory.commit import check_rows, check_runs, check_values, has_landed, write_batch
from perdure.storage.memory.connection import Connection
from perdure.storage.memory.cooperation import MemoryCooperation
from perdure.storage.memory.database import MemoryDatabase
from perdure.storage.memory.events import MemoryEvents
from perdure.storage.memory.fleet import MemoryFleet
from perdure.storage.memory.journals import MemoryJournals
from perdure.storage.memory.mail import MemoryMail
from perdure.storage.memory.records import MemoryRecords
from perdure.storage.memory.retention import MemoryRetention
from perdure.storage.memory.runs import MemoryRuns
from perdure.storage.memory.streams import MemoryStreams
from perdure.storage.memory.tasks import MemoryTasks


class MemoryStore(
    MemoryFleet,
    MemoryRuns,
    MemoryJournals,
    MemoryEvents,
    MemoryStreams,
    MemoryArtifacts,
    MemoryTasks,
    MemoryRecords,
    MemoryAccess,
    MemoryCooperation,
    MemoryMail,
    MemoryRetention,
):
    """A store on a MemoryDatabase. Without a MemoryDatabase, it creates a new one."""

    clock: Clock | None = None
    poll_s = 1.0
    transacts: Transacts = "no"

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        super().__init__(Connection(self.database))

    async def open(self) -> None:
        self._db.open()

    async def close(self) -> None:
        self._db.abandon()

    def abandon(self) -> None:
        self._db.abandon()

    async def commit(self, batch: Batch) -> Committed:
        self._db.opened()
        await asyncio.sleep(0)  # Let other tasks run during a commit, as with a real store.
        refusal = await _refusal(batch)
        database = self._db.opened()
        with database.lock:
            if has_landed(database, batch):
                return Committed(landed=True)
            check_runs(database, batch)
            if refusal is not None:
                raise refusal
            check_rows(database, batch)
            statuses = {one: stored.run.status for one, stored in database.runs.items()} if batch.waits else {}
            committed = write_batch(database, batch, database.tables.apply(batch, statuses))
        self._db.notify_others()
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


async def _refusal(batch: Batch) -> CommitRefused | None:
    """Return the reason why a batch must be refused, independent of the stored rows. Return None if there is no reason.
    A large batch is checked in pieces.
    """
    try:
        for _ in check_values(batch):
            await asyncio.sleep(0)
    except CommitRefused as refusal:
        return refusal
    return None
