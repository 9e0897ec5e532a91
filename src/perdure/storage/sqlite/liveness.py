"""An engine's sign of life: an OS lock on a file beside the database. Free, or no file at all, means dead, at once.

The system frees the lock however a process ends. A forked child would keep it, which is one more reason why Perdure
spawns processes and never forks.
"""

from __future__ import annotations

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

    # Enough for flock, also on a file that another user made.
    _LOOK = os.O_RDONLY

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


# How often somebody else may have the lock of a sign that is about to be given, before that one is taken for its owner.
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
        """Hold the lock; None if somebody else does. If it is to be made, it is for those who may open a file that is
        `like` that. Raises FileNotFoundError if there is none, OSError."""
        while True:
            handle = os.open(path, _LOOK) if like is None else _made(path, like)
            if not _try_lock(handle):
                os.close(handle)
                return None
            if _is_at(path, handle):
                return cls(path, handle)
            # It was tidied up between the opening and the locking: a lock on it is a sign that nobody sees.
            os.close(handle)

    def note(self, number: int) -> None:
        """Keep a number in the file. It is not brought to the disk: what the system loses with its power is noted
        again, and until then says too little, never too much."""
        with suppress(OSError):
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"%20d" % number)

    def noted(self) -> int:
        """The number that is kept in the file; 0 if there is none."""
        with suppress(OSError, ValueError):
            os.lseek(self._handle, 0, os.SEEK_SET)
            return int(os.read(self._handle, 20))
        return 0

    def let_go(self, *, tidy: bool) -> None:
        """Free the lock; `tidy` deletes the file too, while the lock is held: nobody can take it for a living one."""
        if tidy:
            with suppress(OSError):  # Windows refuses to delete an open file; an empty one that stays does no harm.
                self._path.unlink(missing_ok=True)
        os.close(self._handle)


def _made(path: Path, like: os.stat_result) -> int:
    mode = like.st_mode & 0o666
    handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    with suppress(OSError):  # The umask may have taken bits away. Another user's file stays as it is.
        path.chmod(mode)
    if sys.platform != "win32" and os.geteuid() == 0:
        # As SQLite does with its own files: else a command of root's would leave engines of the database's owner
        # without a way to see whether root's engine is alive.
        with suppress(OSError):
            os.fchown(handle, like.st_uid, like.st_gid)
    return handle


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is the one that everybody finds at the path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


class SignsOfLife:
    """The signs that one store holds, and its eyes for those of others. Safe for use by several threads."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._lock = threading.Lock()
        self.held: dict[str, SignOfLife] = {}
        self._ended = False

    def path(self, engine_id: str) -> Path:
        name = f"{self._database.name}-engine-{quote(engine_id, safe='')}.lock"
        return self._database.with_name(name)

    def give(self, engine_id: str) -> bool:
        """Hold an engine's sign of life from now on; False if somebody holds it. Raises StoreMisconfigured."""
        for _ in range(_GIVEN_TRIES):
            with self._lock:
                if self._ended or engine_id in self.held:
                    return False
                if sign := self._take(engine_id):
                    self.held[engine_id] = sign
                    return True
            # Whoever looks at all lock files (`report_losses`) has each of them for a moment, also a new one.
            time.sleep(_GIVEN_PAUSE_S)
        return False

    def _take(self, engine_id: str) -> SignOfLife | None:
        path = self.path(engine_id)
        try:
            # Whoever may open the database has to see whether its engines are alive.
            return SignOfLife.take(path, like=self._database.stat())
        except OSError as error:
            raise StoreMisconfigured(
                f"the lock file {path} cannot be made ({error}); make its directory writable", path=path
            ) from error

    def note(self, engine_id: str, number: int) -> None:
        """Keep the number of an engine's last commit, outside of the database."""
        with self._lock:  # Else the file could be closed meanwhile, and the number written into another one.
            if (sign := self.held.get(engine_id)) is not None:
                sign.note(number)

    def withdraw(self, engine_id: str) -> None:
        """Let go of an engine's sign of life: whoever looks takes it for dead."""
        with self._lock:
            if sign := self.held.pop(engine_id, None):
                sign.let_go(tidy=True)

    def end(self, *, tidy: bool) -> None:
        """Let go of all of them, for good."""
        with self._lock:
            self._ended = True
            for sign in self.held.values():
                sign.let_go(tidy=tidy)
            self.held.clear()

    def is_any_gone(self, engine_ids: Iterable[str]) -> bool:
        """Whether one of these has no sign of life. Raises StoreMisconfigured."""
        found = self.dead(engine_ids)
        for sign in found.values():
            if sign:
                sign.let_go(tidy=False)
        return bool(found)

    def dead(self, engine_ids: Iterable[str]) -> dict[str, SignOfLife | None]:
        """Those without a sign of life. Their locks are held here, until let go, so that only one store buries them.

        Raises StoreMisconfigured.
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
                path = self.path(engine_id)
                raise StoreMisconfigured(f"the lock file {path} cannot be read ({error})", path=path) from error
            else:
                if sign:
                    found[engine_id] = sign
        return found
