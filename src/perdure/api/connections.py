"""Connections of callers: the kinds that are supported, and how the store's statements are executed on each kind.

No driver is imported here: a caller that passes a connection has imported its driver. A blocking connection is used
only in the thread of the caller.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from perdure.errors import Misuse
from perdure.ports import Insertion, Rows, Statement, Taken

# The keys are the top-level module and the name of the connection's class, or of one of its base classes.
_KINDS: Final = {
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("psycopg", "Connection"): "psycopg",
    ("psycopg", "AsyncConnection"): "psycopg async",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "Session"): "sqlalchemy session",
    ("sqlalchemy", "scoped_session"): "sqlalchemy scoped",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy async",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy async",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy async scoped",
    ("sqlite3", "Connection"): "sqlite3",
}
_DOLLAR: Final = re.compile(r"\$(\d+)")
_FAILED_TRANSACTION: Final = "25P02"


def insert(connection: object, insertion: Insertion) -> Taken:
    """Insert a run, or a message with its runs, with a blocking connection, in this thread.

    If the id is already taken, return the run or message that has it.

    The run exists once the caller commits. If the caller rolls back, the run never existed. Raises Misuse if the
    connection cannot be used, and the driver's own errors.
    """
    kind = _kind(connection)
    if kind == "asyncpg" or "async" in kind:
        raise Misuse(
            f"{connection!r} is an async connection: use `await start(…)` in the event loop that it belongs to"
        )
    own = _blocking(kind, connection)
    _check_database(own.database, insertion)
    statement = next(insertion.steps)
    while True:
        rows: Rows = ()
        error: BaseException | None = None
        try:
            with _explained():
                rows = own.execute(statement)
        except BaseException as raised:  # noqa: BLE001 - the steps clean up, and raise the error again
            error = raised
        try:
            statement = _go_on(insertion, rows, error)
        except StopIteration as done:
            return _returned(done)


async def insert_async(connection: object, insertion: Insertion) -> Taken:
    """Insert as `insert` does, with a connection of any kind. Call this in the event loop that the connection belongs
    to.
    """
    kind = _kind(connection)
    given: Any = connection
    if kind.startswith("sqlalchemy async"):
        given = given() if kind.endswith("scoped") else given
        taken: Taken = await given.run_sync(insert, insertion)
        return taken
    if kind not in ("asyncpg", "psycopg async"):
        return insert(connection, insertion)
    _check_database("postgresql", insertion)
    execute = _execute_asyncpg if kind == "asyncpg" else _execute_psycopg_async
    statement = next(insertion.steps)
    while True:
        rows: Rows = ()
        error: BaseException | None = None
        try:
            with _explained():
                rows = await execute(given, statement)
        except BaseException as raised:  # noqa: BLE001 - the steps clean up, and raise the error again
            error = raised
        try:
            statement = _go_on(insertion, rows, error)
        except StopIteration as done:
            return _returned(done)


def _go_on(insertion: Insertion, rows: Rows, error: BaseException | None) -> Statement:
    return insertion.steps.send(rows) if error is None else insertion.steps.throw(error)


def _returned(done: StopIteration) -> Taken:
    taken: Taken = done.value
    return taken


# ---------------------------------------------------------------------------------------------------------------------
# Kinds


def _kind(connection: object) -> str:
    for base in type(connection).__mro__:
        if (kind := _KINDS.get((base.__module__.partition(".")[0], base.__name__))) is not None:
            return kind
    raise Misuse(
        f"connection= takes a connection of asyncpg or psycopg 3, a connection or session of SQLAlchemy 2, or one of"
        f" sqlite3, not {type(connection).__module__}.{type(connection).__qualname__}; of a pool or an engine, take a"
        " connection first, and of a cursor its connection"
    )


def _check_database(database: str, insertion: Insertion) -> None:
    if database != insertion.database:
        raise Misuse(
            f"the store is on {insertion.database}, and this connection is to {database}; use a connection to the"
            " store's own database, or leave connection= out"
        )


class _Blocking(Protocol):
    """A blocking connection."""

    @property
    def database(self) -> str: ...

    def execute(self, statement: Statement) -> Rows: ...


def _blocking(kind: str, connection: Any) -> _Blocking:
    if kind == "sqlite3":
        return _Sqlite(connection)
    if kind == "psycopg":
        return _Psycopg(connection)
    with _explained():
        if kind == "sqlalchemy scoped":
            connection = connection()
        return _Sqlalchemy(connection if kind == "sqlalchemy" else connection.connection())


async def _execute_asyncpg(connection: Any, statement: Statement) -> Rows:
    rows: Rows = await connection.fetch(statement.sql, *statement.parameters)
    return rows


async def _execute_psycopg_async(connection: Any, statement: Statement) -> Rows:
    # A plain cursor: the connection's own cursors may return other rows or take other parameters.
    async with sys.modules["psycopg"].AsyncCursor(connection, row_factory=_as_tuples) as cursor:
        await cursor.execute(*_with_percents(statement))
        rows: Rows = await cursor.fetchall()
        return rows


def _as_tuples(_cursor: object) -> type[tuple[Any, ...]]:
    return tuple


class _Psycopg:
    database = "postgresql"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        with sys.modules["psycopg"].Cursor(self._connection, row_factory=_as_tuples) as cursor:
            cursor.execute(*_with_percents(statement))
            rows: Rows = cursor.fetchall()
            return rows


def _with_percents(statement: Statement) -> tuple[str, tuple[Any, ...]]:
    """Return a statement with the placeholders of DB-API drivers."""
    assert isinstance(statement.parameters, tuple)
    numbers = [int(number) for number in _DOLLAR.findall(statement.sql)]
    return _DOLLAR.sub("%s", statement.sql), tuple(statement.parameters[number - 1] for number in numbers)


class _Sqlite:
    database = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: Statement) -> Rows:
        if statement.writes and (begin := _needed_begin(self._connection)) is not None:
            self._connection.execute(begin)
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            return [tuple(map(_text, row)) for row in cursor.execute(statement.sql, statement.parameters)]
        finally:
            cursor.close()


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # The connection may have a text_factory.


def _needed_begin(connection: Any) -> str | None:
    """Return the `begin` that sqlite3 would execute before the first write, or None. sqlite3 does not execute it before
    a savepoint. Raises Misuse."""
    if connection.in_transaction:
        return None
    if connection.isolation_level is None or getattr(connection, "autocommit", None) is True:
        raise Misuse(
            "nothing was written: this connection is in autocommit mode, and not in a transaction; execute 'begin"
            " immediate' before, and 'commit' afterwards, or leave connection= out"
        )
    return f"begin {connection.isolation_level}"


class _Sqlalchemy:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.database: str = connection.dialect.name

    def execute(self, statement: Statement) -> Rows:
        sql: str = statement.sql
        parameters: tuple[Any, ...] | Mapping[str, Any] = statement.parameters
        if self.database == "sqlite":
            if statement.writes and (begin := _needed_begin(self._connection.connection.driver_connection)) is not None:
                self._connection.exec_driver_sql(begin)
        elif self._connection.dialect.paramstyle != "numeric_dollar":
            sql, parameters = _with_percents(statement)
        result = self._connection.exec_driver_sql(sql, parameters or None)
        return [tuple(row) for row in result] if result.returns_rows else []


# ---------------------------------------------------------------------------------------------------------------------
# Errors


@contextmanager
def _explained() -> Generator[None]:
    """Explain errors that the state of the caller's transaction causes. All other errors are raised unchanged, so that
    code that retries transactions recognises them."""
    try:
        yield
    except Exception as error:
        code = _code(error)
        if code == _FAILED_TRANSACTION or type(error).__name__ == "PendingRollbackError":
            raise Misuse(
                "nothing was written: an earlier statement has failed, and with it the transaction of this"
                " connection; roll it back, and begin a new one"
            ) from error
        if code == sqlite3.SQLITE_READONLY:
            raise Misuse(
                "nothing was written: this connection is read-only; open one that may write the store's file"
            ) from error
        raise


def _code(error: Exception) -> str | int | None:
    """Return the database's own code of an error, for every supported driver."""
    origin = getattr(error, "orig", None) or error
    number: int | None = getattr(origin, "sqlite_errorcode", None)
    if number is not None:
        return number & 0xFF
    state: str | None = getattr(origin, "sqlstate", None) or getattr(origin, "pgcode", None)
    return state
