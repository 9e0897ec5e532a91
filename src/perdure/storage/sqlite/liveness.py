"""An engine's sign of life on SQLite. It is a lock of the operating system on a file beside the database.

If the lock is free or the file is missing, the engine is dead. Other engines see that at once. The system frees the
lock when the process ends, no matter how it ends. A forked child process would keep the lock. This is one more reason
why Perdure spawns processes and never forks.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from perdure.errors import StoreMisconfigured

if sys.platform == "win32":
    import msvcrt

    _LOOK = os.O_RDWR

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    # Read access is enough for flock, even for a file of another user.
    _LOOK = os.O_RDONLY

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


# The number of attempts to take a lock. If the lock is still held after these attempts, its holder counts as the
# engine's owner.
_GIVEN_TRIES: Final = 100
_GIVEN_PAUSE_S: Final = 0.01


class SignOfLife:
    """A lock that is held."""

    __slots__ = ("_handle", "_path")

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    @classmethod
    def take(cls, path: Path, *, like: os.stat_result | None = None) -> SignOfLife | None:
        """Take the lock. Returns None if another process holds it.

        With `like`, a missing file is created. The same users may open it as a file with that mode and owner. Without
        `like`, raises FileNotFoundError for a missing file. Raises OSError.
        """
        while True:
            handle = os.open(path, _LOOK) if like is None else _made(path, like)
            if not _try_lock(handle):
                os.close(handle)
                return None
            if _is_at(path, handle):
                return cls(path, handle)
            # The file was deleted between opening and locking. Nobody would see a lock on the deleted file.
            os.close(handle)

    def note(self, number: int) -> None:
        """Write a number to the file.

        The number is not flushed to the disk. After a power failure, the number may be too low until it is written
        again. It is never too high.
        """
        with suppress(OSError):
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"%20d" % number)

    def noted(self) -> int:
        """Return the number in the file, or 0 if the file has no number."""
        with suppress(OSError, ValueError):
            os.lseek(self._handle, 0, os.SEEK_SET)
            return int(os.read(self._handle, 20))
        return 0

    @property
    def tells_of_commits(self) -> bool:
        """Return whether the file has the number of a commit. If so, the file must stay as long as that commit can be
        lost together with the log.
        """
        return self.noted() > 0

    def let_go(self, *, tidy: bool) -> None:
        """Free the lock. `tidy` also deletes the file. The file is deleted while the lock is held. So nobody mistakes
        it for the file of a living engine.
        """
        if tidy:
            with suppress(OSError):  # Windows refuses to delete an open file. An empty file is harmless.
                self._path.unlink(missing_ok=True)
        os.close(self._handle)


def _made(path: Path, like: os.stat_result) -> int:
    mode = like.st_mode & 0o666
    handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    with suppress(OSError):  # The umask may have removed permission bits. A file of another user stays unchanged.
        path.chmod(mode)
    if sys.platform != "win32" and os.geteuid() == 0:
        # SQLite does the same with its own files. Otherwise, if root starts an engine, engines of the database's owner
        # could not see whether that engine is alive.
        with suppress(OSError):
            os.fchown(handle, like.st_uid, like.st_gid)
    return handle


def _is_at(path: Path, handle: int) -> bool:
    """Return whether an open file is the file that everybody finds at the path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


class SignsOfLife:
    """The signs of life that one store keeps. It also checks the signs of other engines. Several threads may use it."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = threading.Lock()
        self.held: dict[str, SignOfLife] = {}
        self._ended = False

    def path(self, engine_id: str) -> Path:
        name = f"{self._database.name}-engine-{quote(engine_id, safe='')}.lock"
        return self._database.with_name(name)

    def give(self, engine_id: str) -> bool:
        """Keep an engine's sign of life from now on. Returns False if another process holds it. Raises
        StoreMisconfigured.
        """
        for _ in range(_GIVEN_TRIES):
            with self._lock:
                if self._ended or engine_id in self.held:
                    return False
                if sign := self._take(engine_id):
                    self.held[engine_id] = sign
                    return True
            # A process that checks all lock files (`report_losses`) holds each lock for a moment, even a new lock.
            time.sleep(_GIVEN_PAUSE_S)
        return False

    def _take(self, engine_id: str) -> SignOfLife | None:
        path = self.path(engine_id)
        try:
            # Every user who may open the database must be able to see whether its engines are alive.
            return SignOfLife.take(path, like=self._database.stat())
        except OSError as error:
            raise StoreMisconfigured(
                f"the lock file {path} cannot be made ({error}); make its directory writable", path=path
            ) from error

    def note(self, engine_id: str, number: int) -> None:
        """Write the number of an engine's last commit to its lock file, which is outside of the database."""
        # Without the lock, the file could be closed in the meantime, and the number could be written to another file.
        with self._lock:
            if (sign := self.held.get(engine_id)) is not None:
                sign.note(number)

    def withdraw(self, engine_id: str) -> None:
        """Release an engine's sign of life. From now on, other engines consider this engine dead."""
        with self._lock:
            if sign := self.held.pop(engine_id, None):
                sign.let_go(tidy=not sign.tells_of_commits)

    def tells_of_commits(self, engine_id: str) -> bool:
        """Return whether this store keeps an engine's sign of life, and its file has the number of a commit."""
        with self._lock:
            sign = self.held.get(engine_id)
            return sign is not None and sign.tells_of_commits

    def end(self, *, tidy: bool, is_log_gone: bool = False) -> None:
        """Release the signs of life (locks) of all engines of this store, for good.

        `tidy` deletes the lock files. A lock file that has the number of a commit is deleted only if the write-ahead
        log is gone (`is_log_gone`), because then all commits are in the database.
        """
        with self._lock:
            self._ended = True
            for sign in self.held.values():
                sign.let_go(tidy=tidy and (is_log_gone or not sign.tells_of_commits))
            self.held.clear()

    def is_any_gone(self, engine_ids: Iterable[str]) -> bool:
        """Return whether one of these engines has no sign of life. Raises StoreMisconfigured."""
        found = self.dead(engine_ids)
        for sign in found.values():
            if sign:
                sign.let_go(tidy=False)
        return bool(found)

    def dead(self, engine_ids: Iterable[str]) -> dict[str, SignOfLife | None]:
        """Return the engines without a sign of life, with their locks.

        This store holds their locks until it releases them. So only one store marks these engines dead. Raises
        StoreMisconfigured.
        """
        found: dict[str, SignOfLife | None] = {}
        for engine_id in engine_ids:
            with self._lock:
                if engine_id in self.held:
                    continue
            try:
                sign = SignOfLife.take(self.path(engine_id))
            except FileNotFoundError:
                found[engine_id] = None
            except OSError as error:
                if (
                    error.errno == errno.ENAMETOOLONG
                ):  # The row is damaged. No engine can have had a lock file with this name.
                    found[engine_id] = None
                    continue
                path = self.path(engine_id)
                raise StoreMisconfigured(f"the lock file {path} cannot be read ({error})", path=path) from error
            else:
                if sign:
                    found[engine_id] = sign
        return found
