"""What is lost with files that somebody deletes or replaces: noticed at the next start, or at once, and never silent.

An engine notes the number of its last commit in its lock file, outside of the database. If the database does not know
that commit when the file is opened again, it was in a write-ahead log that is gone, or the file is an older one.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from perdure.errors import StoreReplaced
from perdure.storage.sqlite.liveness import SignOfLife
from perdure.storage.sqlite.queries import QUERIES

log = logging.getLogger("perdure")

T = TypeVar("T")

_ENGINE, _LOST = "-engine-", "-lost-"


def report_losses(connection: sqlite3.Connection, path: Path) -> None:
    """Look at the lock files that dead engines left: whether the database has all that they have committed.

    What is missing is logged, and noted in a file beside the database, which `perdure doctor` shows until somebody
    deletes it. The lock file goes then, so that it is noted once."""
    for lock in sorted(path.parent.glob(f"{_escaped(path.name)}{_ENGINE}*.lock")):
        report_loss(connection, path, lock)


def report_loss(connection: sqlite3.Connection, path: Path, lock: Path) -> None:
    """The same for one lock file, which need not be there."""
    quoted_id = lock.name[len(path.name) + len(_ENGINE) : -len(".lock")]
    engine_id = unquote(quoted_id)
    sign: SignOfLife | None = None
    with suppress(OSError):  # It was tidied up by somebody else.
        sign = SignOfLife.take(lock)
    if sign is None:
        return  # It lives.
    lost = _lost(connection, engine_id, sign.noted())
    if lost:
        log.error("%s: %s", path, lost)
        with suppress(OSError):
            path.with_name(f"{path.name}{_LOST}{quoted_id}.txt").write_text(lost, "utf-8")
    sign.let_go(tidy=bool(lost) or not _is_alive(connection, engine_id))


def known_losses(path: Path) -> list[tuple[Path, str]]:
    """The notes of what was lost, which nobody has deleted yet."""
    return [(note, note.read_text("utf-8")) for note in sorted(path.parent.glob(f"{_escaped(path.name)}{_LOST}*.txt"))]


def has_reset_bug(version: tuple[int, int, int]) -> bool:
    """Whether a version of SQLite has the WAL-reset bug (https://sqlite.org/wal.html#walresetbug): of two connections
    that write or checkpoint at the same instant, one may take a part of the log for checkpointed that is not."""
    return version < (3, 51, 3)


def _is_alive(connection: sqlite3.Connection, engine_id: str) -> bool:
    """Whether somebody still has to mark it dead, and tidies up then."""
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
        " log (the file that ends in -wal) was deleted or left behind when the database was moved, or the file is an"
        " older copy. Stop all engines and put the log, or the newer file, back if you have it; otherwise runs are as"
        " they were before, and steps that they had done since run again"
    )


def _escaped(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in name)


class FileWatch:
    """Notices that the database, its log, or the index of the log, is not the one that was opened any more. One look
    costs three calls of the system. Used in the threads of the store.

    The index counts too: it has the locks that all processes share. Whoever makes another one knows nothing of those
    that have the old one, and the two overwrite each other's commits.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, tuple[int, int]] = {}  # by the end of the name
        self.is_replaced = False  # From then on nothing is known of what the files at these paths have.

    def kept(self, work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        """Do work that writes. Raises StoreReplaced instead of saying that it is done if nobody else would see it; and
        before it is done, so that nothing is written beside what others have written since."""
        self.check()
        done = work(connection)
        self.check()
        return done

    def check(self) -> None:
        """Raise StoreReplaced if what is written to the open files would be seen by nobody else."""
        for end in ("", "-wal", "-shm"):
            what = self._change(end)
            if what:
                self.is_replaced = True
                raise StoreReplaced(
                    f"{self._path}{end} was {what} while the engine had it open: what it writes would be lost. The"
                    " engine stops, and nothing that it was asked for since is acknowledged. Put the files back, or"
                    " restore them from a backup, then start it again; to move or copy a database, stop all engines"
                    " first, or use VACUUM INTO",
                    path=self._path,
                )

    def _change(self, end: str) -> str:
        try:
            found = os.stat(f"{self._path}{end}")  # noqa: PTH116 - a Path would cost as much again
        except OSError:
            return "deleted" if end in self._found else ""
        identity = found.st_dev, found.st_ino
        if self._found.setdefault(end, identity) != identity:
            return "replaced by another file"
        # The log is empty after a checkpoint that asks for it. The database never is, once it is open.
        return "emptied" if not end and found.st_size == 0 else ""
