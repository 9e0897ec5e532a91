"""Hints between engines. An engine sends NOTIFY after its own commits, and uses LISTEN to get the hints of other
engines.

Any hint may be lost. If a hint is lost, the regular look at the database finds the work. With a NOTIFY inside a commit,
only one commit of the whole database could happen at a time. So hints are sent after the commit, in groups, on a
connection of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import asyncpg

from perdure.errors import StoreError
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.connection import Lane, connect
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import QUERIES

log = logging.getLogger("perdure")

ANYBODY: Final = "*"
_AGAIN_S: Final = 1.0
_FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


def channel_of(schema: str) -> str:
    return f"perdure_{schema}"


class Notifier:
    """Notifies the owners of runs that they may have work. For runs without an owner, it notifies all engines."""

    def __init__(self, address: Address) -> None:
        self._channel = channel_of(address.schema)
        self._lane = Lane(address, "notifier")
        self._run_ids: set[str] = set()
        self._engine_ids: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def notify(self, run_ids: Iterable[str], engine_ids: Iterable[str] = ()) -> None:
        """Notify the owners of these runs, and these engines, that there may be work. Returns at once."""
        self._run_ids.update(run_ids)
        self._engine_ids.update(engine_ids)
        if (self._run_ids or self._engine_ids) and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._send(), name="perdure-notifier")

    async def _send(self) -> None:
        query = QUERIES["hint"]
        while self._run_ids or self._engine_ids:
            variables = {
                "channel": self._channel,
                "run_ids": list(self._run_ids),
                "engine_ids": list(self._engine_ids),
            }
            self._run_ids.clear()
            self._engine_ids.clear()
            try:
                async with self._lane.use() as connection:
                    await connection.fetch(query.sql, *query.arguments(variables))
            except StoreError as error:
                log.debug("a hint was lost: %s", error)

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._lane.close()

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._lane.abandon()


class Listener:
    """Calls back whenever a hint for this store's engines arrives, and whenever a hint may have been lost."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._names = {ANYBODY}
        self._callbacks: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None

    def answer_to(self, engine_id: str) -> None:
        self._names.add(engine_id)

    def listen(self, callback: Callable[[], object]) -> None:
        """Call back from now on.

        Without a lasting session it does nothing. Then only the regular look finds work.
        """
        self._callbacks.append(callback)
        if self._task is None and not self._address.direct.is_pooled:
            self._task = asyncio.get_running_loop().create_task(self._live(), name="perdure-listener")

    async def _live(self) -> None:
        while True:
            try:
                self._connection = await connect(self._address.direct, "listener")
                gone = asyncio.Event()
                self._connection.add_termination_listener(lambda *_, gone=gone: gone.set())
                await self._connection.add_listener(channel_of(self._address.schema), self._received)
                self._call()
                await gone.wait()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next try may succeed
                log.debug("hints of other engines are not received at the moment: %s", error)
            await asyncio.sleep(_AGAIN_S)

    def _received(self, _connection: object, _pid: int, _channel: str, name: str) -> None:
        if name in self._names:
            self._call()

    def _call(self) -> None:
        for callback in self._callbacks:
            callback()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:
            with suppress(*_FAULTS):
                await self._connection.close(timeout=_AGAIN_S)

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.terminate()
