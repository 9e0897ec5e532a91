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

from perdure.errors import StoreBroken

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
    def take(cls, path: Path, *, create: bool) -> SignOfLife | None:
        """Hold the lock; None if somebody else does. Raises FileNotFoundError if not to create, OSError."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT if create else _LOOK, 0o644)
        if _try_lock(handle):
            return cls(path, handle)
        os.close(handle)
        return None

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
        self._held: dict[str, SignOfLife] = {}
        self._ended = False

    def path(self, engine_id: str) -> Path:
        name = f"{self._database.name}-engine-{quote(engine_id, safe='')}.lock"
        return self._database.with_name(name)

    def give(self, engine_id: str) -> bool:
        """Hold an engine's sign of life from now on; False if somebody holds it. Raises StoreBroken."""
        path = self.path(engine_id)
        with self._lock:
            if self._ended or engine_id in self._held:
                return False
            try:
                sign = SignOfLife.take(path, create=True)
            except OSError as error:
                raise StoreBroken(f"the lock file {path} cannot be made ({error})", path=path) from error
            if sign:
                self._held[engine_id] = sign
            return sign is not None

    def withdraw(self, engine_id: str) -> None:
        with self._lock:
            if sign := self._held.pop(engine_id, None):
                sign.let_go(tidy=True)

    def end(self, *, tidy: bool) -> None:
        """Let go of all of them, for good."""
        with self._lock:
            self._ended = True
            for sign in self._held.values():
                sign.let_go(tidy=tidy)
            self._held.clear()

    def is_any_gone(self, engine_ids: Iterable[str]) -> bool:
        """Whether one of these has no sign of life. Raises StoreBroken."""
        found = self.dead(engine_ids)
        for sign in found.values():
            if sign:
                sign.let_go(tidy=False)
        return bool(found)

    def dead(self, engine_ids: Iterable[str]) -> dict[str, SignOfLife | None]:
        """Those without a sign of life. Their locks are held here, until let go, so that only one store buries them.

        Raises StoreBroken.
        """
        found: dict[str, SignOfLife | None] = {}
        for engine_id in engine_ids:
            with self._lock:
                if engine_id in self._held:
                    continue
            try:
                sign = SignOfLife.take(self.path(engine_id), create=False)
            except FileNotFoundError:
                found[engine_id] = None
            except OSError as error:
                path = self.path(engine_id)
                raise StoreBroken(f"the lock file {path} cannot be read ({error})", path=path) from error
            else:
                if sign:
                    found[engine_id] = sign
        return found
