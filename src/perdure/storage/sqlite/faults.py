"""Errors of SQLite, and the store errors that they become for callers."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeGuard

from perdure.errors import CommitRefused, StoreBroken, StoreBusy, StoreError, StoreMisconfigured, StoreReplaced

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_PASSING = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_CLOSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
_REFUSED = {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}

# A statement is never the cause of these errors. A statement may be the cause of LOCKED, NOMEM, READONLY and INTERRUPT.
_OF_THE_FILE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PROTOCOL,
}

# Errors that are raised when a value is bound to a statement: lone surrogates, integers of more than 64 bits, and types
# that SQLite does not have.
BINDING_ERRORS = (UnicodeEncodeError, OverflowError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


def is_of_the_file(error: BaseException) -> bool:
    """Return whether a statement failed because of the file or its disk."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _OF_THE_FILE


def is_locked(error: BaseException) -> TypeGuard[sqlite3.Error]:
    """Return whether another connection held a lock for longer than SQLite waits."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_BUSY


def cut_log(path: Path, error: str = "") -> str:
    """Return the message about a log that became shorter while an engine had it open."""
    return (
        f"{path}-wal was truncated while it was open{error}: commits that were only there are lost. The engine stops,"
        " and nothing that it was asked for since is acknowledged. Stop all engines, put the log back if you have it,"
        " then start them again"
    )


def store_fault(error: Exception, path: Path) -> StoreError:
    """Return the StoreError for an error of SQLite.

    Nothing was written, because every write is a transaction that was rolled back.
    """
    if isinstance(error, BINDING_ERRORS):
        return CommitRefused(f"SQLite cannot hold a value: {error}", path=path)
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if kind == sqlite3.SQLITE_IOERR_SHORT_READ:
        return StoreReplaced(cut_log(path, f" ({error})"), path=path)
    code = kind & 0xFF  # The low byte is the error. The other bytes give details.
    if code in _LOCKED:
        return StoreBusy(f"another process has locked {path} for too long; nothing was written ({error})", path=path)
    if code == sqlite3.SQLITE_FULL:
        return StoreBusy(
            f"the disk that holds {path} is full; nothing was written; free some space, and the write will succeed"
            f" when tried again ({error})",
            path=path,
        )
    if code in _PASSING:
        return StoreBusy(f"the system failed to read or write {path}; nothing was written ({error})", path=path)
    if code in _REFUSED:
        return CommitRefused(f"{path} refused the write: {error}", path=path)
    if code in _CORRUPT:
        return StoreBroken(
            f"{path} is damaged, or is not an SQLite database ({error}); restore it from a backup, or give Perdure a"
            " file of its own",
            path=path,
        )
    if code in _CLOSED:
        return StoreMisconfigured(
            f"{path} cannot be written ({error}); make the file and its directory writable for this user", path=path
        )
    return StoreMisconfigured(
        f"{path} has not the tables that Perdure made ({error}); restore it from a backup, or give Perdure a file of"
        " its own",
        path=path,
    )
