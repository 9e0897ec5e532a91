"""The store in one SQLite file. One thread writes, and another thread reads. perdure.ports describes the guarantees of
the methods.

This module writes batches. Each other slice of the store is in the module that is named after its noun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from perdure.errors import EngineBug
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Staged
from perdure.ports import Clock, Insertion, StepPlace, Transacts
from perdure.storage.sqlite.access import SqliteAccess
from perdure.storage.sqlite.artifacts import SqliteArtifacts
from perdure.storage.sqlite.commit import commit, plan
from perdure.storage.sqlite.connection import connect_steps
from perdure.storage.sqlite.cooperation import SqliteCooperation
from perdure.storage.sqlite.database import Database
from perdure.storage.sqlite.events import SqliteEvents
from perdure.storage.sqlite.faults import BINDING_ERRORS, store_fault
from perdure.storage.sqlite.fleet import SqliteFleet
from perdure.storage.sqlite.insertion import insertion
from perdure.storage.sqlite.journals import SqliteJournals
from perdure.storage.sqlite.mail import SqliteMail
from perdure.storage.sqlite.records import SqliteRecords
from perdure.storage.sqlite.retention import SqliteRetention
from perdure.storage.sqlite.runs import SqliteRuns
from perdure.storage.sqlite.steps import StepTransactions
from perdure.storage.sqlite.streams import SqliteStreams
from perdure.storage.sqlite.switch_interval import brisk_switching
from perdure.storage.sqlite.tasks import SqliteTasks


class SqliteStore(
    SqliteFleet,
    SqliteRuns,
    SqliteJournals,
    SqliteEvents,
    SqliteStreams,
    SqliteArtifacts,
    SqliteTasks,
    SqliteRecords,
    SqliteAccess,
    SqliteCooperation,
    SqliteMail,
    SqliteRetention,
):
    """A store in the file at `path`. If the file does not exist, it is created.

    While the store is open, SQLite's own -wal and -shm files are beside the file. There is also a lock file for each
    living engine.
    """

    clock: Clock | None = None
    poll_s = 0.5
    transacts: Transacts = "plain"

    def __init__(self, path: str | Path) -> None:
        # The path is resolved, because engines that open the file through different links must use the same lock files.
        self.path = Path(path).resolve()
        super().__init__(Database(self.path))
        self._steps = StepTransactions(self._connect_steps)

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        await self._db.close()

    def abandon(self) -> None:
        self._db.abandon()

    async def commit(self, batch: Batch) -> Committed:
        try:
            planned = plan(batch)
        except BINDING_ERRORS as error:
            raise store_fault(error, self._db.path) from error
        with brisk_switching:
            committed = await self._db.write(partial(commit, planned=planned), then=partial(self._note, batch))
        self._db.neighbour.notify_of(batch, committed)
        return committed

    def _note(self, batch: Batch) -> None:
        self._db.signs.note(batch.engine_id, batch.number)

    def insertion(self, batch: Batch) -> Insertion:
        self._db.check_open()
        return Insertion("sqlite", insertion(self._db.path, batch))

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        staged, error = await self._db.write(lambda _: self._steps.transact(place, body))
        if staged is None:
            raise error or EngineBug("a step's transaction gave neither a result nor an error")
        return staged

    def _connect_steps(self) -> sqlite3.Connection:
        connection = connect_steps(self._db.path)
        self._db.writer.keep(connection)
        return connection
