"""Connections to the database. They are opened when needed and replaced when they break. Every wait for them has a
limit.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from perdure.errors import PerdureError, StoreBroken
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.driver import Connection, Transaction
from perdure.storage.postgres.faults import FAULTS, REFUSES_TLS, is_definite, store_fault
from perdure.storage.postgres.pgbouncer import rewritten, settings_of
from perdure.storage.postgres.queries import QUERIES

STEP_REST_S: Final = 60.0  # A step may leave its transaction idle for this long, or for the lease if that is longer.
_CONNECT_SHARE: Final = 0.5  # the longest time for opening a connection, as a part of the lease
_STATEMENT_SHARE: Final = 0.6  # the longest time that the server may run a statement, as a part of the lease
_ANSWER_SHARE: Final = 0.8  # the longest wait for an answer, as a part of the lease
_LOCK_SHARE: Final = 0.3  # the longest wait for a lock, as a part of the lease


class Session:
    """A connection that is closed by force if an answer takes longer than a limit.

    The driver's own timeout would ask the server to cancel the request. A server that waits until its standby confirms
    a commit would then stop waiting. It would show data to everybody that a failover would lose.
    """

    def __init__(self, connection: Any, limit_s: float | None) -> None:
        self._connection = connection
        self._limit_s = limit_s

    async def _answer(self, request: Callable[..., Awaitable[Any]], query: str, args: tuple[Any, ...]) -> Any:
        guard = None
        if self._limit_s is not None:
            guard = asyncio.get_running_loop().call_later(self._limit_s, self._connection.terminate)
        try:
            return await request(query, *args)
        except AttributeError as error:
            if not self._connection.is_closed():
                raise
            # The connection was closed between two messages of one request. In this case the driver uses an attribute
            # that it has already cleared.
            raise asyncpg.ConnectionDoesNotExistError("the connection was cut in the middle of a request") from error
        finally:
            if guard is not None:
                guard.cancel()

    async def execute(self, query: str, *args: Any) -> str:
        status: str = await self._answer(self._connection.execute, query, args)
        return status

    async def fetch(self, query: str, *args: Any) -> Sequence[Sequence[Any]]:
        rows: Sequence[Sequence[Any]] = await self._answer(self._connection.fetch, query, args)
        return rows

    async def fetchval(self, query: str, *args: Any) -> Any:
        return await self._answer(self._connection.fetchval, query, args)

    async def fetchrow(self, query: str, *args: Any) -> Sequence[Any] | None:
        row: Sequence[Any] | None = await self._answer(self._connection.fetchrow, query, args)
        return row

    def transaction(self, *, isolation: str | None = None, readonly: bool = False) -> Transaction:
        made: Transaction = self._connection.transaction(isolation=isolation, readonly=readonly)
        return made

    async def reset(self) -> None:
        await self._connection.reset()

    def is_closed(self) -> bool:
        return bool(self._connection.is_closed())

    async def close(self, *, timeout: float | None = None) -> None:
        await self._connection.close(timeout=timeout)

    def terminate(self) -> None:
        self._connection.terminate()

    async def add_listener(self, channel: str, callback: Callable[..., object]) -> None:
        await self._connection.add_listener(channel, callback)

    def add_termination_listener(self, callback: Callable[..., object]) -> None:
        self._connection.add_termination_listener(callback)

    def remove_termination_listener(self, callback: Callable[..., object]) -> None:
        self._connection.remove_termination_listener(callback)

    def add_query_logger(self, callback: Callable[..., object]) -> None:
        self._connection.add_query_logger(callback)

    def remove_query_logger(self, callback: Callable[..., object]) -> None:
        self._connection.remove_query_logger(callback)


class PooledSession(Session):
    """A session through PgBouncer. Its settings and prepared statements last only for one transaction."""

    def __init__(
        self, connection: Any, limit_s: float | None, schema: str, settings: tuple[tuple[str, str], ...]
    ) -> None:
        super().__init__(connection, limit_s)
        self._schema = schema
        self._settings = settings

    async def _answer(self, request: Callable[..., Awaitable[Any]], query: str, args: tuple[Any, ...]) -> Any:
        return await super()._answer(request, rewritten(query, self._schema, self._settings), args)


async def connect(address: Address, purpose: str, *, patient: bool = False) -> Connection:
    """Open a new connection. Unless it is `patient`, every request on it is cut off before the lease has passed.

    Raises asyncpg's errors, OSError, and StoreBroken for errors in the URL.
    """

    def share(part: float) -> str:
        return str(max(1, int(address.lease_s * part * 1000)))

    silence = str(max(1, int(address.silence_s * 1000)))
    settings = {
        "application_name": f"perdure {purpose}",
        "search_path": address.schema,
        "default_transaction_isolation": "read committed",
        "jit": "off",
        # Every query here finds rows by an index, for all values of its parameters. So one plan is enough. By default,
        # Postgres plans a query five times. After that, it could keep a plan that reads a whole table, because the
        # table was empty at that time.
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }
    if not patient:
        settings |= {
            "statement_timeout": share(_STATEMENT_SHARE),
            "lock_timeout": share(_LOCK_SHARE),
            "idle_in_transaction_session_timeout": silence,
            "tcp_user_timeout": silence,
        }
    limit_s = None if patient else address.lease_s * _ANSWER_SHARE
    made: Session
    if address.is_pooled:
        # The value is spelled in the same way as the server spells it. Otherwise PgBouncer would set it again for each
        # transaction.
        name = {"application_name": settings["application_name"], "client_encoding": "UTF8"}
        connection = await _connect(address, statement_cache_size=0, server_settings=name)
        # Migrations create tables. They set the schema in their own transactions.
        made = Session(connection, None)
        if not patient:
            made = PooledSession(connection, limit_s, address.schema, settings_of(settings))
    else:
        connection = await _connect(address, max_cached_statement_lifetime=0, server_settings=settings)
        made = Session(connection, limit_s)
    _describe_types(connection)
    if not patient:
        _limit_silence(connection, int(address.silence_s * 1000))
    return made


async def check_session(connection: Connection, address: Address) -> None:
    """Raise StoreBroken if the session loses its settings. In this case the connection goes through a pooler, and the
    URL does not say so.
    """
    if await connection.fetchval("select current_setting('search_path')") != address.schema:
        raise StoreBroken(
            f"{address.name} does not keep a session's settings, as PgBouncer does that ignores them; say so with"
            " pgbouncer=true in the URL, and give a way around it with direct=…",
            database=address.name,
        )


def step_rest_s(address: Address) -> float:
    """Return how long a step may leave its transaction idle before the server ends the session."""
    return max(STEP_REST_S, address.lease_s)


async def connect_step(address: Address, purpose: str) -> Connection:
    """Open a new connection for the statements of transactional steps.

    It has the user's settings, and no short time limits. But the server ends a transaction that is idle for long, or
    whose client does not respond. Raises the same errors as `connect`.
    """
    address = address.direct
    silence_s = max(1, round(address.silence_s))
    settings = {
        "application_name": f"perdure {purpose}",
        "default_transaction_isolation": "read committed",
        "idle_in_transaction_session_timeout": str(int(step_rest_s(address) * 1000)),
        "tcp_user_timeout": str(silence_s * 1000),
        "tcp_keepalives_idle": str(silence_s),
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
    }
    options: dict[str, Any] = {"server_settings": settings}
    if address.is_pooled:
        options = {"server_settings": {"application_name": settings["application_name"]}, "statement_cache_size": 0}
    connection: Connection = await _connect(address, **options)
    _limit_silence(connection, silence_s * 1000)
    return connection


async def _connect(address: Address, **options: Any) -> Any:
    """Connect to the first host that accepts the connection and can write. After a failover, this may be another host
    than before.
    """
    address.check_files()
    urls = address.urls
    if "target_session_attrs" not in address.url and "PGTARGETSESSIONATTRS" not in os.environ:
        options["target_session_attrs"] = "read-write"
    driver: Any = asyncpg
    while True:
        url = urls.pop(0)
        try:
            return await driver.connect(url, timeout=address.lease_s * _CONNECT_SHARE / len(address.urls), **options)
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.TargetServerAttributeNotMatched) as error:
            if urls:
                continue
            if REFUSES_TLS in str(error) and not _asks_for_tls(url):
                raise ConnectionResetError(
                    "it gave no valid answer to the TLS request, as a server that is shutting down may do"
                ) from error
            raise
        except ValueError as error:
            if isinstance(error, asyncpg.InterfaceError):
                raise
            # The error may repeat the text that could not be read, which may be a part of a password.
            raise StoreBroken(
                f"the URL of {address.name}, or PGPORT or another PG… variable, is not valid for the driver;"
                " correct it",
                database=address.name,
            ) from None


def _describe_types(connection: Any) -> None:
    """Make the driver read composite types with our own query. The cost of this query does not grow with the database.

    The driver keeps its query in an attribute, because servers differ. A driver without that attribute uses its own
    query.
    """
    with suppress(AttributeError):
        connection._intro_query = QUERIES["types"].sql


def _asks_for_tls(url: str) -> bool:
    """Return whether the URL requires TLS."""
    given = dict(parse_qsl(urlsplit(url).query)).get("sslmode") or os.environ.get("PGSSLMODE", "")
    return given in ("require", "verify-ca", "verify-full")


def _limit_silence(connection: Any, limit_ms: int) -> None:
    """Let the operating system close a socket whose other end does not answer."""
    transport = getattr(connection, "_transport", None)
    handle = transport.get_extra_info("socket") if transport is not None else None
    option: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)  # Only Linux has this option.
    if handle is not None and option is not None and handle.family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError):
            handle.setsockopt(socket.IPPROTO_TCP, option, limit_ms)
            # Keepalives are needed too. A client that only waits for an answer has sent nothing, so nothing stays
            # unacknowledged.
            handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, limit_ms // 1000))
            handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)


class Lane:
    """One connection. One piece of code at a time uses it."""

    def __init__(
        self,
        address: Address,
        purpose: str,
        connect: Callable[[Address, str], Awaitable[Connection]] = connect,
    ) -> None:
        self._address = address
        self._purpose = purpose
        self._make = connect
        self._free = asyncio.Lock()
        self._connection: Connection | None = None
        self._ended = False

    @property
    def in_use(self) -> bool:
        return self._free.locked()

    @asynccontextmanager
    async def use(self) -> AsyncGenerator[Connection]:
        """Lend the connection. Errors of Postgres and of the network become StoreErrors that say that nothing was
        written.

        If the state of the connection is uncertain afterwards, the connection is closed by force. A new connection is
        opened when needed.
        """
        async with self._free:
            connection: Connection | None = None
            try:
                connection = await self._connect()
                yield connection
            except PerdureError as error:
                self._keep(connection, is_definite(error.__cause__) if error.__cause__ else True)
                raise
            except FAULTS as error:
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
            self._connection = await self._make(self._address, self._purpose)
        return self._connection

    def _keep(self, connection: Connection | None, is_fine: bool) -> None:
        if connection is not None and not is_fine:
            connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Wait until the connection is free, and close it."""
        async with self._free:
            self._ended = True
            if self._connection is not None:
                try:
                    await self._connection.close(timeout=self._address.silence_s)
                except FAULTS:
                    self._connection.terminate()
                self._connection = None

    def abandon(self) -> None:
        self._ended = True
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class Lanes:
    """Several lanes. `use` lends a free lane."""

    def __init__(
        self,
        address: Address,
        purpose: str,
        count: int,
        connect: Callable[[Address, str], Awaitable[Connection]] = connect,
    ) -> None:
        self._lanes = [Lane(address, purpose, connect) for _ in range(count)]
        self._next = 0

    def use(self) -> AbstractAsyncContextManager[Connection]:
        # The first free lane is used, so that an idle store needs only one connection. If no lane is free, requests are
        # distributed over the lanes in turn.
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
