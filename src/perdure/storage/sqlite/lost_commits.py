"""Detection of lost commits. Commits are lost if somebody deletes or replaces files. A loss is reported at once, or at
the next start.

An engine writes the number of its last commit to its lock file, outside of the database. When the file is opened again
and the database does not have that commit, there are two possible reasons. The commit was in a write-ahead log that was
deleted or cut, or the file is an older version. The lock file is deleted once all commits are in the database file.
Until then, commits can be lost together with the log.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

from perdure.errors import StoreReplaced
from perdure.storage.sqlite.checkpoints import bring_in_all
from perdure.storage.sqlite.faults import cut_log
from perdure.storage.sqlite.liveness import SignOfLife
from perdure.storage.sqlite.queries import QUERIES

log = logging.getLogger("perdure")

T = TypeVar("T")

_SALTS: Final = slice(16, 24)  # the position of the salts in a log's header

_ENGINE, _LOST = "-engine-", "-lost-"


def report_losses(connection: sqlite3.Connection, path: Path) -> None:
    """For each lock file that a dead engine has left, check that the database has all commits of that engine.

    Missing commits are logged, and written to a file beside the database. `perdure doctor` shows that file until
    somebody deletes it. After that, the lock file is deleted, so that a loss is reported only once.
    """
    for lock in sorted(path.parent.glob(f"{_escaped(path.name)}{_ENGINE}*.lock")):
        report_loss(connection, path, lock)


def report_loss(connection: sqlite3.Connection, path: Path, lock: Path) -> bool:
    """Check one lock file in the same way. The file may be missing.

    Returns whether no lock file with the number of a commit remains.
    """
    quoted_id = lock.name[len(path.name) + len(_ENGINE) : -len(".lock")]
    engine_id = unquote(quoted_id)
    try:
        sign = SignOfLife.take(lock)
    except OSError:
        return True  # Another process has deleted the file.
    if sign is None:
        return False  # The engine is alive.
    lost = _lost(connection, engine_id, sign.noted())
    if lost:
        _note_loss(path, quoted_id, lost)
    is_safe = bool(lost) or not sign.tells_of_commits
    tidy = bool(lost) or (not _is_alive(connection, engine_id) and (is_safe or bring_in_all(connection)))
    sign.let_go(tidy=tidy)
    return tidy or is_safe


def _note_loss(path: Path, name: str, lost: str) -> None:
    log.error("%s: %s", path, lost)
    with suppress(OSError):
        path.with_name(f"{path.name}{_LOST}{name}.txt").write_text(lost, "utf-8")


def known_losses(path: Path) -> list[tuple[Path, str]]:
    """Return the reports of lost commits that nobody has deleted yet."""
    return [(note, note.read_text("utf-8")) for note in sorted(path.parent.glob(f"{_escaped(path.name)}{_LOST}*.txt"))]


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Return whether a version of SQLite has the WAL-reset bug (https://sqlite.org/wal.html#walresetbug).

    If two connections write or make a checkpoint at the same instant, one of them may skip a part of the log that is
    not in the file yet.
    """
    return version < (3, 51, 3)


def _is_alive(connection: sqlite3.Connection, engine_id: str) -> bool:
    """Return whether the engine's row says that the engine is alive. If so, the engine that marks it dead will delete
    the lock file.
    """
    row = connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone()
    return row is not None and bool(row[2])


def _lost(connection: sqlite3.Connection, engine_id: str, noted: int) -> str:
    if noted == 0:
        return ""
    row = connection.execute(QUERIES["engine"], {"id": engine_id}).fetchone()
    has = row[3] if row is not None and isinstance(row[3], int) else 0
    if has >= noted:
        return ""
    return (
        f"commits were lost: engine {engine_id} has made {noted}, and the database knows {has} of them. Its write-ahead"
        " log (the file that ends in -wal) was deleted, cut, or left behind when the database was moved, or the file is"
        " an older copy. Stop all engines and put the log, or the newer file, back if you have it; otherwise runs are"
        " as they were before, and steps that they had done since run again"
    )


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in name)


class FileWatch:
    """Detects that the database, its log, or the index of its log is no longer the file that was opened.

    One check costs three system calls. It is used in the threads of the store.

    The index is checked too, because it has the locks that all processes share. A process that creates another index
    does not see the locks of processes that use the old index. Then they overwrite each other's commits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths = tuple((end, f"{path}{end}") for end in ("", "-wal", "-shm"))
        self._found: dict[str, tuple[int, int]] = {}  # by the ending of the file name
        self._log_bytes = 0
        self._salts = b""
        self._why = ""  # once this is set, the contents of the files at these paths are unknown

    @property
    def is_replaced(self) -> bool:
        return bool(self._why)

    def kept(
        self,
        work: Callable[[sqlite3.Connection], T],
        connection: sqlite3.Connection,
        then: Callable[[], object] | None = None,
    ) -> T:
        """Do work that writes, and call `then`. Raises StoreReplaced if nobody else would see the result.

        The check before the work prevents a write to files that others no longer use. The check after the work prevents
        that a lost write is acknowledged, or noted by `then`.
        """
        self.check()
        done = work(connection)
        self.check()
        if then is not None:
            then()
        return done

    def check(self) -> None:
        """Raise StoreReplaced if nobody else would see a write to the open files."""
        for end, path in self._paths:
            what = self._change(end, path)
            if what:
                self._why = self._why or (
                    f"{self._path}{end} was {what} while the engine had it open: what it writes would be lost. The"
                    " engine stops, and nothing that it was asked for since is acknowledged. Put the files back, or"
                    " restore them from a backup, then start it again; to move or copy a database, stop all engines"
                    " first, or use VACUUM INTO"
                )
        if self._why:
            raise StoreReplaced(self._why, path=self._path)

    def _change(self, end: str, path: str) -> str:
        log_bytes = self._log_bytes  # Read this before the file: another thread may look at a longer log meanwhile.
        try:
            found = os.stat(path)  # noqa: PTH116 - a Path would cost as much again
        except OSError:
            return "deleted" if end in self._found else ""
        identity = found.st_dev, found.st_ino
        if self._found.setdefault(end, identity) != identity:
            return "replaced by another file"
        if end == "-wal":
            self._follow_log(log_bytes, found.st_size)
        # The log may be empty after a checkpoint that truncates it. An open database is never empty.
        return "emptied" if not end and found.st_size == 0 else ""

    def _follow_log(self, before: int, now: int) -> None:
        """Find out whether the log was cut. If commits are written after a cut, SQLite does not find them at the next
        start.

        SQLite itself overwrites the log from its beginning, and does not shorten it. But a checkpoint may empty the
        log. After that, the log grows again, and begins with new salts.
        """
        if now != before:
            salts = _salts(self._paths[1][1])
            if 0 < now < before and salts == self._salts:
                self._why = self._why or cut_log(self._path)
            self._salts = salts
        self._log_bytes = now


def _salts(path: str) -> bytes:
    """Return the salts, which distinguish the log from the earlier logs in the same file. No process has a lock on the
    log itself, so it may be opened and closed here."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return b""
    try:
        return os.read(handle, _SALTS.stop)[_SALTS]
    except OSError:
        return b""
    finally:
        os.close(handle)
