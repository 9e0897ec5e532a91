"""Transactional steps: a step's writes to its own tables, and its result, are in one transaction.

They run in the writer's thread one after the other, between commits. They have a connection of their own. The
transaction takes the writer's lock at its beginning. So nobody can take the run away before the transaction ends.

An error of the file (the disk is full, the file cannot be read) is an error of the store and not a failure of the step.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

from msgspec.structs import asdict

from perdure.errors import CommitConflict, Misuse
from perdure.kernel.rows import Staged
from perdure.ports import StepPlace
from perdure.storage.sqlite.commit import check_fence
from perdure.storage.sqlite.faults import is_of_the_file
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import staged_of
from perdure.storage.sqlite.schema import OUR_TABLES
from perdure.storage.sqlite.transaction import roll_back

_ENDING: Final = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
# For each action, the place of the table's name in SQLite's report: first (0) or second (1).
_WRITING: Final = {
    sqlite3.SQLITE_INSERT: 0,
    sqlite3.SQLITE_UPDATE: 0,
    sqlite3.SQLITE_DELETE: 0,
    sqlite3.SQLITE_DROP_TABLE: 0,
    sqlite3.SQLITE_CREATE_INDEX: 1,
    sqlite3.SQLITE_DROP_INDEX: 1,
    sqlite3.SQLITE_CREATE_TRIGGER: 1,
    sqlite3.SQLITE_DROP_TRIGGER: 1,
    sqlite3.SQLITE_ALTER_TABLE: 1,
}
# Other attributes of a connection that a step may use, because they cannot end its transaction.
_OPEN_TO_STEPS: Final = frozenset(
    {
        "create_aggregate",
        "create_collation",
        "create_function",
        "create_window_function",
        "in_transaction",
        "total_changes",
    }
)
_COMMITTED_FOR_YOU: Final = "the step's transaction is committed with its result when it returns, and not before"


class StepCursor(sqlite3.Cursor):
    """A cursor that can be used until its step ends."""

    guard: StepConnection

    def execute(self, sql: str, parameters: Any = (), /) -> StepCursor:
        self.guard.check()
        try:
            super().execute(sql, parameters)
        except sqlite3.DatabaseError as error:
            raise self.guard.explained(error) from error
        return self

    def executemany(self, sql: str, seq_of_parameters: Iterable[Any], /) -> StepCursor:
        self.guard.check()
        try:
            super().executemany(sql, seq_of_parameters)
        except sqlite3.DatabaseError as error:
            raise self.guard.explained(error) from error
        return self

    def executescript(self, _script: str, /) -> NoReturn:
        raise _refusal("executescript()", "it would commit first; execute statements one by one")

    def fetchone(self) -> Any:
        return self._fetched(super().fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        found: list[Any] = self._fetched(super().fetchmany, self.arraysize if size is None else size)
        return found

    def fetchall(self) -> list[Any]:
        found: list[Any] = self._fetched(super().fetchall)
        return found

    def __next__(self) -> Any:
        return self._fetched(super().__next__)

    def _fetched(self, fetch: Callable[..., Any], *args: Any) -> Any:
        """Fetch rows. SQLite reads rows only when they are fetched, so fetching can fail too."""
        try:
            return fetch(*args)
        except sqlite3.DatabaseError as error:
            raise self.guard.explained(error) from error


class StepConnection:
    """The connection that a step gets. It is sqlite3's connection without the methods that would end the transaction.
    It can be used until the step ends.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cursors: weakref.WeakSet[StepCursor] = weakref.WeakSet()
        self._refused = ""
        self._is_over = False
        self.fault: sqlite3.DatabaseError | None = None  # an error of the file that no statement causes
        self.row_factory: Any = None

    def cursor(self) -> StepCursor:
        self.check()
        cursor = self._connection.cursor(StepCursor)
        cursor.guard = self
        cursor.row_factory = self.row_factory
        self._cursors.add(cursor)
        return cursor

    def execute(self, sql: str, parameters: Any = (), /) -> StepCursor:
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> StepCursor:
        return self.cursor().executemany(sql, parameters)

    def commit(self) -> NoReturn:
        raise _refusal("commit()", _COMMITTED_FOR_YOU)

    def rollback(self) -> NoReturn:
        raise _refusal("rollback()", "raise an exception, and all that the step has written is rolled back")

    def close(self) -> NoReturn:
        raise _refusal("close()", "the connection is the store's")

    def executescript(self, _script: str, /) -> NoReturn:
        raise _refusal("executescript()", "it would commit first; execute statements one by one")

    def __enter__(self) -> NoReturn:
        raise _refusal("`with connection`", _COMMITTED_FOR_YOU)

    def __exit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name not in _OPEN_TO_STEPS:
            raise AttributeError(f"the connection of a transactional step has no {name!r}", name=name, obj=self)
        self.check()
        return getattr(self._connection, name)

    def check(self) -> None:
        """Raise Misuse unless the step's transaction is under way."""
        if self._is_over:
            raise Misuse("this connection belonged to a transactional step, which has ended")
        if not self._connection.in_transaction:
            raise Misuse("SQLite has rolled the step's transaction back after an error: let the error end the step")

    def authorize(self, action: int, details: Sequence[str | None]) -> int:
        """Return whether a statement may do this action. SQLite calls this when it prepares the statement."""
        if action in _ENDING:
            self._refused = f"a transactional step cannot do this itself ({details[0]}): {_COMMITTED_FOR_YOU}"
        elif action in _WRITING and (table := details[_WRITING[action]]) in OUR_TABLES:
            self._refused = f"the table {table} is Perdure's own: write to tables of yours"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def explained(self, error: sqlite3.DatabaseError) -> Exception:
        """Return the same error. If this connection made SQLite refuse the statement, return a Misuse with the reason
        instead.
        """
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH and self._refused:
            return Misuse(self._refused)
        if is_of_the_file(error):
            self.fault = error
        return error

    async def has_store_failed(self) -> bool:
        """Return whether the file has failed during the step so far."""
        return self.fault is not None

    def end(self) -> None:
        self._is_over = True
        for cursor in list(self._cursors):
            cursor.close()


def _refusal(what: str, why: str) -> Misuse:
    return Misuse(f"{what} does not work in a transactional step: {why}")


class StepTransactions:
    """Runs the bodies of steps, each in its own transaction. It may be used only in the writer's thread."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._guard: StepConnection | None = None

    def transact(self, place: StepPlace, body: Callable[[Any], Staged]) -> tuple[Staged | None, BaseException | None]:
        """Return the staged result, or the error that the body raised.

        Raises Fenced, CommitConflict and sqlite3.Error, after a rollback.
        """
        if self._connection is None:
            self._connection = self._connect()
            self._connection.set_authorizer(self._authorize)
        connection = self._connection
        connection.execute("begin immediate")
        try:
            check_fence(connection, place.engine_id, place.epoch)
            where = asdict(place)
            if connection.execute(QUERIES["is_owned"], where).fetchone() is None:
                raise CommitConflict(frozenset({place.run_id}))
            row = connection.execute(QUERIES["staged_at"], where).fetchone()
            if row is not None:
                roll_back(connection)
                return staged_of(row), None
            staged, error = self._call(connection, body)
            if staged is not None:
                connection.execute(QUERIES["insert_staged"], asdict(staged))
                connection.commit()
            else:
                roll_back(connection)
        except BaseException:
            roll_back(connection)
            raise
        return staged, error

    def _call(
        self, connection: sqlite3.Connection, body: Callable[[Any], Staged]
    ) -> tuple[Staged | None, BaseException | None]:
        guard = self._guard = StepConnection(connection)
        try:
            staged = body(guard)
            guard.check()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the step's
            failure = error
        else:
            return staged, None
        finally:
            self._guard = None
            guard.end()
        if guard.fault is not None and isinstance(failure, Exception):
            raise guard.fault
        return None, failure

    def _authorize(self, action: int, *details: str | None) -> int:
        """Allow statements of the store. The step's connection checks the statements of a step."""
        return sqlite3.SQLITE_OK if self._guard is None else self._guard.authorize(action, details)


__all__ = ["StepConnection", "StepTransactions"]
