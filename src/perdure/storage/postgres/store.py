"""The store in a Postgres database. perdure.ports describes the guarantees of the methods.

This module writes batches. Each other slice of the store is in the module that is named after its noun.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from perdure.errors import StoreBusy, StoreError
from perdure.kernel.batch import Batch, Committed, winners_elsewhere
from perdure.kernel.rows import Staged
from perdure.ports import Insertion, Rows, Statement, StepPlace, Taken, Transacts
from perdure.storage.local_hints import is_free
from perdure.storage.postgres.access import PostgresAccess
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.artifacts import PostgresArtifacts
from perdure.storage.postgres.commit import commit
from perdure.storage.postgres.cooperation import PostgresCooperation
from perdure.storage.postgres.database import Database
from perdure.storage.postgres.events import PostgresEvents
from perdure.storage.postgres.fleet import PostgresFleet
from perdure.storage.postgres.insertion import insertion
from perdure.storage.postgres.journals import PostgresJournals
from perdure.storage.postgres.mail import PostgresMail
from perdure.storage.postgres.records import PostgresRecords
from perdure.storage.postgres.retention import PostgresRetention
from perdure.storage.postgres.runs import PostgresRuns
from perdure.storage.postgres.streams import PostgresStreams
from perdure.storage.postgres.tasks import PostgresTasks


class PostgresStore(
    PostgresFleet,
    PostgresRuns,
    PostgresJournals,
    PostgresEvents,
    PostgresStreams,
    PostgresArtifacts,
    PostgresTasks,
    PostgresRecords,
    PostgresAccess,
    PostgresCooperation,
    PostgresMail,
    PostgresRetention,
):
    """A store in the schema of a database. If the schema does not exist, it is created."""

    transacts: Transacts = "async"

    def __init__(self, address: Address) -> None:
        super().__init__(Database(address))
        self.address = address
        self.clock = self._db.clock

    async def open(self) -> None:
        await self._db.open()

    async def close(self) -> None:
        await self._db.close()

    def abandon(self) -> None:
        self._db.abandon()

    @property
    def poll_s(self) -> float:
        # A store that cannot get hints looks more often.
        return min(0.25 if self._db.address.direct.is_pooled else 1.0, self._db.address.lease_s / 4)

    async def commit(self, batch: Batch) -> Committed:
        self._db.check_open()
        try:
            async with self._db.writer.use() as connection:
                committed = await commit(connection, batch)
        except StoreBusy as busy:
            await self._db.cut_off(busy)
            raise
        self._db.signs.committed(batch.engine_id, batch.number)
        if not self._db.signs.is_lasting():
            # This commit shows that the engine is alive. Its heartbeat has a problem, or the process was stopped for a
            # while.
            with suppress(StoreError):
                async with self._db.lanes.use() as connection:
                    await self._db.signs.renew(connection)
        self._db.neighbour.notify_of(batch, committed)
        self._db.notifier.notify(*self._addressees(batch, committed))
        return committed

    def insertion(self, batch: Batch) -> Insertion:
        self._db.check_open()
        return Insertion("postgresql", self._insertion(batch))

    def _insertion(self, batch: Batch) -> Generator[Statement, Rows, Taken]:
        taken = yield from insertion(self._db.address, batch)
        if taken is None:
            self._db.lookout.expect(batch.runs)
        return taken

    def _addressees(self, batch: Batch, committed: Committed) -> tuple[set[str], set[str]]:
        """Return the runs whose owners or possible owners may have work after a batch. Also return the engines that get
        replies.
        """
        runs = {mail.run_id for mail in batch.mail}
        if committed.won:
            runs.update(winners_elsewhere(batch, committed))
        for run_id, write in batch.runs.items():
            if is_free(write.run.owner, write.run.status):
                runs.add(run_id)
        engines = {self._db.senders[mail_id] for mail_id in batch.mail_done if mail_id in self._db.senders}
        return runs, engines

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        self._db.check_open()
        return await self._db.steps.transact(place, body)
