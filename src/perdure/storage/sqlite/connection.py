"""Connections to the file."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from perdure.errors import StoreBroken
from perdure.storage.sqlite.checkpoints import PAGES_MAX
from perdure.storage.sqlite.faults import store_fault
from perdure.storage.sqlite.log_files import is_log_outdated
from perdure.storage.sqlite.schema import SCHEMA_VERSION, inspect, lacking, migrate

BUSY_TIMEOUT_S: Final = 5.0
_SQLITE_MIN: Final = (3, 35, 0)  # needed for `delete … returning`
_STATEMENTS_MAX: Final = 256
# The page size of new files. In a table without rowids, a row stays inside its page if it takes at most a quarter of
# the page. With SQLite's default of 4,096 bytes, each result of 1 KB would get a page of its own.
PAGE_BYTES: Final = 8_192
OWNER_ONLY: Final = 0o600


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open the file for writing. If it is missing, create it. Upgrade its schema if necessary.

    Only the owner can read a new file. SQLite gives its log the same mode. Perdure gives its lock files the same mode.
    A file that belongs to another program or to a newer version of Perdure is left unchanged. Raises StoreBroken,
    SchemaTooNew, sqlite3.Error.
    """
    _check_place(path)
    _create(path)
    connection = _connect(path)
    try:
        connection.execute(f"pragma page_size = {PAGE_BYTES}")
        version = inspect(connection, path)
        _switch_to_wal(connection)
        # A commit must be on the disk before it is acknowledged, so that no crash can lose it.
        connection.execute("pragma synchronous = full")
        connection.execute(f"pragma wal_autocheckpoint = {PAGES_MAX}")
        if version < SCHEMA_VERSION:  # If the schema is current, no migration and therefore no lock is needed.
            migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open the file for reading. It must have been opened for writing before."""
    connection = _connect(path)
    connection.execute("pragma query_only = on")
    return connection


def schema_version(path: Path) -> int | None:
    """Return the version of the schema in a file. It is 0 if the file has no schema, and None if the file does not
    exist.

    This changes nothing. Raises StoreBroken, SchemaTooNew, StoreBusy.
    """
    if not path.exists():
        _check_log(path)
        return None
    _check_place(path)
    try:
        connection = _connect(path)
        try:
            return inspect(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise store_fault(error, path) from error


def lacking_tables(path: Path) -> list[str]:
    """Return the tables that are missing in a file of the newest version, as texts for people.

    This changes nothing. Raises the same errors as `schema_version`.
    """
    _check_place(path)
    try:
        with closing(_connect(path)) as connection:
            return [f"table {name}" for name in lacking(connection)]
    except sqlite3.Error as error:
        raise store_fault(error, path) from error


def connect_steps(path: Path) -> sqlite3.Connection:
    """Open the file for the statements of transactional steps. They do not share the writer's connection.

    So whatever steps do to their connection (functions, pragmas, open cursors) does not affect the store.
    """
    connection = _connect(path)
    connection.execute("pragma synchronous = full")
    connection.execute(
        "pragma wal_autocheckpoint = 0"
    )  # Only the writer's connection makes checkpoints, between two commits.
    connection.execute("pragma foreign_keys = on")
    return connection


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, cached_statements=_STATEMENTS_MAX)
    connection.execute("pragma temp_store = memory")
    return connection


def _create(path: Path) -> None:
    """Create an empty file that only its owner can read, unless it exists. SQLite itself would let everybody read the
    file.
    """
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, OWNER_ONLY))


def _check_place(path: Path) -> None:
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise StoreBroken(
            f"this Python has SQLite {sqlite3.sqlite_version}, and Perdure needs {'.'.join(map(str, _SQLITE_MIN))} or"
            " newer; use a newer build of Python"
        )
    if not path.parent.is_dir():
        raise StoreBroken(f"{path} cannot be made: the directory {path.parent} does not exist; create it", path=path)
    if path.is_dir():
        raise StoreBroken(f"{path} is a directory; name a file in it", path=path)
    if not os.access(path.parent, os.W_OK):
        raise StoreBroken(
            f"{path} cannot be used: its directory is read-only, and SQLite keeps files beside it; make it writable",
            path=path,
        )
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise StoreBroken(f"{path} is read-only; make it readable and writable for this user", path=path)
    _check_log(path)
    if is_log_outdated(path):
        raise StoreBroken(
            f"the log {path.name}-wal does not belong to {path}: the file has commits that the log would undo. The log"
            " is from another time or another database, or was cut. Nothing was opened, since SQLite would write the"
            " old pages into the file. Stop all engines and put the right log back; if there was none, because all"
            " engines had been stopped in order, move this log away",
            path=path,
        )


def _check_log(path: Path) -> None:
    """Raise StoreBroken if there is a log without the database that it belongs to.

    SQLite deletes the log of an empty file as soon as somebody opens that file. But the newest commits are only in the
    log.

    The log is checked before the file. SQLite creates the log only after it has written to the file. So a file that is
    just being created is not mistaken for an emptied file.
    """
    log = path.with_name(f"{path.name}-wal")
    if _size(log) > 0 and _size(path) == 0:
        raise StoreBroken(
            f"{path} is {'empty' if path.exists() else 'gone'}, and its log {log.name} is there: the file was deleted,"
            " moved without its log, or emptied. Opening it would delete the log too, which has the newest commits, so"
            " it was left alone. Put the file back beside its log; if you want a new store, move the log away",
            path=path,
        )


def _size(path: Path) -> int:
    """Return the size of a file, or 0 if the file is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log, with retries.

    If several processes do this at once, SQLite reports "locked" to all but one of them without waiting.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode: str = connection.execute("pragma journal_mode = wal").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.01)
        else:
            if mode != "wal":
                raise StoreBroken(f"SQLite cannot keep a write-ahead log here (it says {mode}); use a local disk")
            return
