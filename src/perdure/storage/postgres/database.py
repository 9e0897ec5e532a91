"""The connections of a store to its database, its signs of life, its hints and its clock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import asyncpg

from perdure.errors import CommitRefused, Misuse, StoreBroken, StoreBusy, StoreError, UnstorableValue
from perdure.storage.local_hints import Neighbour
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.clock import ServerClock, passed_us
from perdure.storage.postgres.connection import Lane, Lanes, check_session, connect
from perdure.storage.postgres.faults import LOCKED, sqlstate, store_fault
from perdure.storage.postgres.hints import Listener, Notifier
from perdure.storage.postgres.inserted_run_hints import Lookout
from perdure.storage.postgres.liveness import SignsOfLife
from perdure.storage.postgres.queries import QUERIES, Query
from perdure.storage.postgres.reads import Snapshot
from perdure.storage.postgres.schema import migrate
from perdure.storage.postgres.steps import StepTransactions

_LANES: Final = 4  # connections for everything except commits; they are opened when needed


class Database:
    """The state that all slices of a store share. It is opened once.

    Commits, hints to other engines, hints from other engines, and the heartbeat in its thread have one connection each.
    Transactional steps have several connections.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.writer = Lane(address, "writer")
        self.lanes = Lanes(address, "reader", _LANES)
        self.clock = ServerClock()
        self.signs = SignsOfLife(address, self.clock)
        self.steps = StepTransactions(address, self.lanes, self.signs)
        self.notifier = Notifier(address)
        self.listener = Listener(address)
        self.neighbour = Neighbour(f"{address.name} {address.schema}")
        self.lookout = Lookout(self.lanes, self.notifier)
        self.senders: dict[int, str] = {}  # mail id -> sender, for mail that needs a reply
        self._state = "new"

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
        self.lookout.open()

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            try:
                await self._close()
            except BaseException:
                self._drop()  # No task and no heartbeat may go on without an owner.
                raise

    async def _close(self) -> None:
        self.neighbour.leave()
        await self.lookout.close()
        await self.listener.close()
        await self.notifier.close()
        await self.steps.close()
        await self.writer.close()
        await self.lanes.close()
        await self.signs.finish()

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            # A write in progress either succeeds, or is fenced by the engine that finds this sign of life missing.
            self._drop()

    def _drop(self) -> None:
        self.neighbour.leave()
        self.lookout.abandon()
        self.listener.abandon()
        self.notifier.abandon()
        self.steps.abandon()
        self.writer.abandon()
        self.lanes.abandon()
        self.signs.end()

    async def write(self, query: Query, **variables: Any) -> Sequence[Sequence[Any]]:
        """Execute a statement that is a transaction of its own and can be repeated. Returns its rows."""
        self.check_open()
        async with self.lanes.use() as connection:
            return await connection.fetch(query.sql, *query.arguments(variables))

    async def read(self, query: Query, **variables: Any) -> Sequence[Sequence[Any]]:
        try:
            return await self.write(query, **variables)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    def snapshot(self, settings: str = "") -> Snapshot:
        self.check_open()
        return Snapshot(self.lanes.use(), settings)

    async def cut_off(self, busy: StoreBusy) -> None:
        """A lock was not available in time. End sessions of Perdure whose process no longer sends anything, because
        they may hold the lock. After that, the next attempt may get the lock.
        """
        if busy.__cause__ is not None and sqlstate(busy.__cause__) == LOCKED:
            with suppress(StoreError):
                await self.write(QUERIES["cut_off"], silence=timedelta(seconds=self.address.silence_s))

    def check_open(self) -> None:
        """Raise StoreBroken unless the store is open."""
        if self._state != "open":
            raise StoreBroken(f"the store on {self.address.name} is {self._state}, not open")


class PostgresSlice:
    """A part of the store, for one noun. It needs only the connection to the database."""

    def __init__(self, db: Database) -> None:
        self._db = db
