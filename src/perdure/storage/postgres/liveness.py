"""An engine's sign of life on Postgres. It is a row that a separate thread renews, with its own connection, by the
server's clock.

A busy or stuck event loop does not stop the thread. If the process is stopped or dead, the network is cut, or the
server is silent, the thread cannot renew the row. Then the lease expires.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final

import asyncpg

from perdure.storage.postgres.address import Address
from perdure.storage.postgres.clock import ServerClock, passed_us
from perdure.storage.postgres.connection import connect
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import QUERIES

log = logging.getLogger("perdure")

_BEATS_PER_LEASE: Final = 4
_TRIES_PER_LEASE: Final = 20
_LAST_WORDS_S: Final = 2.0  # how long the end waits at most until the signs are removed
_FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


def now() -> float:
    """Return a number of seconds that grows with the time, even while the machine sleeps."""
    return passed_us() / 1_000_000


class SignsOfLife:
    """The signs of life that one store keeps.

    The thread is a daemon. So a program that forgets to close its store still ends.
    """

    def __init__(self, address: Address, clock: ServerClock) -> None:
        self._address = address
        self._clock = clock
        self._lock = threading.Lock()
        self._ids: list[str] = []  # replaced, never changed in place
        self._withdrawn: list[str] = []  # signs to remove; replaced, never changed in place
        self._renewed_at: dict[str, float] = {}
        self._numbers: dict[str, int] = {}  # by engine: the number of its last committed batch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._call = asyncio.Event()  # set when an engine is withdrawn, and when all signs end
        self._ended = False
        self._thread: threading.Thread | None = None
        self._over: Future[None] = Future()  # done when the thread has ended

    def give(self, engine_id: str, asked_at: float) -> None:
        """Renew an engine's sign of life from now on.

        The engine's row must exist already. `asked_at` is the time of the request that created the row, as a value of
        `now`.
        """
        with self._lock:
            if self._ended:
                return
            self._ids = [*self._ids, engine_id]
            self._renewed_at[engine_id] = asked_at
            if self._thread is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._main, name="perdure-heartbeat", daemon=True)
                self._thread.start()

    def withdraw(self, engine_id: str) -> None:
        """Stop renewing an engine's sign of life, and remove it. If the server cannot be reached, the lease expires
        later.
        """
        with self._lock:
            if engine_id not in self._ids:
                return
            self._ids = [id for id in self._ids if id != engine_id]
            self._renewed_at.pop(engine_id, None)
            self._numbers.pop(engine_id, None)
            self._withdrawn = [*self._withdrawn, engine_id]
        self._wake()

    def committed(self, engine_id: str, number: int) -> None:
        """Note the number of the engine's last committed batch."""
        self._numbers[engine_id] = number

    def is_lasting(self) -> bool:
        """Return whether the sign of the engine that registered last cannot have expired.

        This is so if the server has confirmed a renewal that was requested less than one lease ago.
        """
        ids = self._ids
        return bool(ids) and now() < self._renewed_at.get(ids[-1], -1.0) + self._address.lease_s

    async def renew(self, connection: Connection) -> None:
        """Renew all signs now, with this connection. Raises the driver's errors."""
        ids, numbers, asked_at, before = self._ids, dict(self._numbers), now(), passed_us()
        if not ids:
            return
        rows = await connection.fetch(QUERIES["beat"].sql, ids)
        if rows:
            self._clock.learn(rows[0][2], before, passed_us())
        found: dict[str, int] = {row[0]: row[1] for row in rows}
        for engine_id in ids:
            # A store that was restored to an earlier state lacks batches. Without this check, an idle engine would not
            # notice that.
            is_there = engine_id in found and found[engine_id] >= numbers.get(engine_id, 0)
            self._renewed_at[engine_id] = asked_at if is_there else -1.0

    def end(self) -> None:
        """Remove all signs for good. If the server cannot be reached, the lease expires later."""
        if (thread := self._call_off()) is not None:
            thread.join(_LAST_WORDS_S)

    async def finish(self) -> None:
        """Remove all signs without blocking the loop. This does not use the loop's executor, because it no longer
        exists when a program ends.
        """
        if self._call_off() is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.wrap_future(self._over), _LAST_WORDS_S)

    def _call_off(self) -> threading.Thread | None:
        with self._lock:
            self._ended = True
            thread = self._thread
        self._wake()
        return thread

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # The thread has already ended.
                self._loop.call_soon_threadsafe(self._call.set)

    def _main(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()
            with suppress(InvalidStateError):  # Nobody waits for this future.
                self._over.set_result(None)

    async def _live(self) -> None:
        connection: Connection | None = None
        is_well = True
        while not self._ended:
            try:
                if connection is None or connection.is_closed():
                    connection = await connect(self._address.direct, "heartbeat")
                await self._take_back(connection)
                await self.renew(connection)
                is_well = True
            except Exception as error:  # noqa: BLE001 - the thread must go on to renew the signs
                if is_well:
                    log.warning("a sign of life could not be renewed on %s: %r", self._address.name, error)
                is_well = False
                if connection is not None:
                    connection.terminate()
                    connection = None
            pause = self._address.lease_s / (_BEATS_PER_LEASE if is_well else _TRIES_PER_LEASE)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._call.wait(), pause)
            self._call.clear()
        if connection is not None:
            with suppress(*_FAULTS):
                await connection.execute(QUERIES["end_beats"].sql, [*self._ids, *self._withdrawn])
            with suppress(*_FAULTS):
                await connection.close(timeout=_LAST_WORDS_S)

    async def _take_back(self, connection: Connection) -> None:
        with self._lock:
            withdrawn = self._withdrawn
        if withdrawn:
            await connection.execute(QUERIES["end_beats"].sql, withdrawn)
            with self._lock:
                self._withdrawn = [id for id in self._withdrawn if id not in withdrawn]
