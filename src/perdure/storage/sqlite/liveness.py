"""An engine's sign of life: an OS lock on a file beside the database. Free, or no file at all, means dead, at once.

The system frees the lock however a process ends. A forked child would keep it, which is one more reason why Perdure
spawns processes and never forks.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
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


class SignOfLife:
    """A lock that is held."""

    __slots__ = ("_handle", "_path")

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    @classmethod
    def take(cls, path: Path, *, mode: int | None = None) -> SignOfLife | None:
        """Hold the lock; None if somebody else does. A file is made if its `mode` is given. Raises FileNotFoundError
        if there is none, OSError."""
        if mode is None:
            handle = os.open(path, _LOOK)
        else:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
            with suppress(OSError):  # The umask may have taken bits away. Another user's file stays as it is.
                path.chmod(mode)
        if _try_lock(handle):
            return cls(path, handle)
        os.close(handle)
        return None

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
        path = self.path(engine_id)
        with self._lock:
            if self._ended or engine_id in self.held:
                return False
            try:
                # Whoever may open the database has to see whether its engines are alive.
                sign = SignOfLife.take(path, mode=self._database.stat().st_mode & 0o666)
            except OSError as error:
                raise StoreMisconfigured(
                    f"the lock file {path} cannot be made ({error}); make its directory writable", path=path
                ) from error
            if sign:
                self.held[engine_id] = sign
            return sign is not None

    def note(self, engine_id: str, number: int) -> None:
        """Keep the number of an engine's last commit, outside of the database."""
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
