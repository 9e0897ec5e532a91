"""Connections to the database: made when needed, made anew when they broke, and never waited for without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, Protocol

import asyncpg
from msgspec import Struct

from perdure.errors import PerdureError, StoreBroken
from perdure.storage.postgres.faults import is_definite, store_fault

DEFAULT_LEASE_S: Final = 10.0
_CONNECT_SHARE: Final = 0.5  # of the lease: so long a connection may take to come about,
_STATEMENT_SHARE: Final = 0.6  # a statement may run at the server,
_ANSWER_SHARE: Final = 0.8  # its answer may take to come,
_LOCK_SHARE: Final = 0.3  # it may wait for a lock,
_SILENCE_SHARE: Final = 0.5  # and a transaction may rest, or a socket be silent.


class Connection(Protocol):
    """What is used of asyncpg's connection."""

    async def execute(self, query: str, *args: Any) -> str: ...

    async def fetch(self, query: str, *args: Any) -> Sequence[Sequence[Any]]: ...

    async def fetchval(self, query: str, *args: Any) -> Any: ...

    async def fetchrow(self, query: str, *args: Any) -> Sequence[Any] | None: ...

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False
    ) -> AbstractAsyncContextManager[Any]: ...

    def is_closed(self) -> bool: ...

    async def close(self, *, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...

    async def add_listener(self, channel: str, callback: Callable[..., object]) -> None: ...

    def add_termination_listener(self, callback: Callable[..., object]) -> None: ...


class Address(Struct, frozen=True, kw_only=True):
    """Where the database is, and how long its engines may be silent before they count as dead."""

    url: str
    name: str  # for messages: without a password
    schema: str
    lease_s: float = DEFAULT_LEASE_S


async def connect(address: Address, purpose: str, *, patient: bool = False) -> Connection:
    """A new connection. Unless patient, nothing on it takes as long as the lease. Raises asyncpg's errors, OSError."""

    def share(part: float) -> str:
        return str(max(1, int(address.lease_s * part * 1000)))

    settings = {
        "application_name": f"perdure {purpose}",
        "search_path": address.schema,
        "default_transaction_isolation": "read committed",
        "jit": "off",
        # Every query here finds rows by an index, whatever its parameters are, so it is planned once. Left to itself,
        # Postgres would plan it five times, and keep plans that read tables whole because these were empty once.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
    if not patient:
        settings |= {
            "statement_timeout": share(_STATEMENT_SHARE),
            "lock_timeout": share(_LOCK_SHARE),
            "idle_in_transaction_session_timeout": share(_SILENCE_SHARE),
            "tcp_user_timeout": share(_SILENCE_SHARE),
        }
    driver: Any = asyncpg
    connection: Any = await driver.connect(
        address.url,
        timeout=address.lease_s * _CONNECT_SHARE,
        command_timeout=None if patient else address.lease_s * _ANSWER_SHARE,
        max_cached_statement_lifetime=0,
        server_settings=settings,
    )
    if not patient:
        _limit_silence(connection, int(address.lease_s * _SILENCE_SHARE * 1000))
    made: Connection = connection
    return made


def _limit_silence(connection: Any, limit_ms: int) -> None:
    """Let the system give a socket up whose other end does not answer."""
    transport = getattr(connection, "_transport", None)
    handle = transport.get_extra_info("socket") if transport is not None else None
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux has it.
    if handle is not None and option is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            handle.setsockopt(socket.IPPROTO_TCP, option, limit_ms)


class Lane:
    """One connection, for one user at a time."""

    def __init__(self, address: Address, purpose: str) -> None:
        self._address = address
        self._purpose = purpose
        self._free = asyncio.Lock()
        self._connection: Connection | None = None
        self._ended = False

    @property
    def in_use(self) -> bool:
        return self._free.locked()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Connection]:
        """The connection. Errors of Postgres and of the way to it become StoreErrors, for work that wrote nothing.

        A connection whose state is not known for sure afterwards is cut, and another is made when needed.
        """
        async with self._free:
            connection: Connection | None = None
            try:
                connection = await self._connect()
                yield connection
            except PerdureError as error:
                self._keep(connection, is_definite(error.__cause__) if error.__cause__ else True)
                raise
            except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
                self._keep(connection, is_definite(error))
                raise store_fault(error, self._address.name) from error
            except BaseException:
                self._keep(connection, False)
                raise

    async def _connect(self) -> Connection:
        if self._ended:
            raise StoreBroken(f"the store on {self._address.name} is closed; open another one")
        if self._connection is None or self._connection.is_closed():
            self._connection = None
            self._connection = await connect(self._address, self._purpose)
        return self._connection

    def _keep(self, connection: Connection | None, is_fine: bool) -> None:
        if connection is not None and not is_fine:
            connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Wait for who uses it, then close it."""
        async with self._free:
            self._ended = True
            if self._connection is not None:
                try:
                    await self._connection.close(timeout=self._address.lease_s * _SILENCE_SHARE)
                except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    self._connection.terminate()
                self._connection = None

    def abandon(self) -> None:
        self._ended = True
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class Lanes:
    """A few of them; who comes takes a free one."""

    def __init__(self, address: Address, purpose: str, count: int) -> None:
        self._lanes = [Lane(address, purpose) for _ in range(count)]
        self._next = 0

    def use(self) -> AbstractAsyncContextManager[Connection]:
        # The first free one, so that an idle store keeps to one connection; else they take turns.
        for lane in self._lanes:
            if not lane.in_use:
                return lane.use()
        self._next = (self._next + 1) % len(self._lanes)
        return self._lanes[self._next].use()

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()

    def abandon(self) -> None:
        for lane in self._lanes:
            lane.abandon()
