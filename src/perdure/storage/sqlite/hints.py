"""Hints about the writes of other processes. Every commit changes the write-ahead log, and the operating system reports
that change.

The operating system also reports the store's own commits. But the writer's connection can tell whether other
connections have committed.

The change is reported before the commit can be read. SQLite first writes the log, and then flushes it to the disk. Only
after that can others read the commit. So the callback is called several times, with pauses.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_APART_S = 0.04
_CALL_AFTER_S = (0.005, 0.045, 0.2)  # pauses between the calls; on a slower disk, the regular look finds the commit
_IN_MODIFY = 2


class Writes:
    """Counts the writes of the store's own writer, and notes whether other connections have written. It is updated in
    the writer's thread.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.count = 0
        self.others_seen = False
        self._version: int | None = None

    def do(self, work: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        self.is_busy = True
        try:
            result = work(connection)
        finally:
            self.count += 1
            self.is_busy = False
        # The version changes only if other connections have committed since it was last read.
        with suppress(sqlite3.Error):
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            self.others_seen = self.others_seen or version != (self._version or version)
            self._version = version
        return result


class LogWatch:
    """Calls back soon after other connections have changed the log, and again a little later. It stops when it is
    ended.

    If another connection commits in the same instant as the store's writer, its commit is noticed at the writer's next
    commit or at the next regular look.
    """

    def __init__(self, database: Path, on_change: Callable[[], object], writes: Writes) -> None:
        self._path = f"{database}-wal"
        self._on_change = on_change
        self._writes = writes
        self._count = writes.count
        self._loop = asyncio.get_running_loop()
        self._changes = _changes_of(self._path)
        self._seen = self._state()
        self._timer: asyncio.TimerHandle | None = None
        self._calling: asyncio.TimerHandle | None = None
        self._rest()

    def end(self) -> None:
        for timer in (self._timer, self._calling):
            if timer is not None:
                timer.cancel()
        if self._changes is not None:
            self._loop.remove_reader(self._changes)
            # Closing the descriptor takes the system up to 20 ms.
            threading.Thread(target=os.close, args=(self._changes,), name="perdure-sqlite-hints", daemon=True).start()

    def _rest(self) -> None:
        """Wait for the next change. If the system does not report changes, look regularly."""
        if self._changes is None:
            self._timer = self._loop.call_later(_APART_S, self._look)
        else:
            self._loop.add_reader(self._changes, self._wake)

    def _wake(self) -> None:
        assert self._changes is not None
        self._loop.remove_reader(self._changes)
        self._look()

    def _look(self) -> None:
        if self._changes is not None:
            with suppress(BlockingIOError):
                os.read(self._changes, 65536)
        is_busy, count, state = self._writes.is_busy, self._writes.count, self._state()
        is_own = is_busy or count != self._count
        if self._writes.others_seen or (state != self._seen and not is_own):
            self._writes.others_seen = False
            self._call(0)
        self._count = count
        if is_own:
            # The store's own change may hide another process's change. So the next comparison uses the earlier state
            # again.
            self._timer = self._loop.call_later(_APART_S, self._look)
        else:
            self._seen = state
            self._timer = self._loop.call_later(_APART_S, self._rest)

    def _call(self, turn: int) -> None:
        if self._calling is not None:
            self._calling.cancel()
        if turn > 0:
            self._on_change()
        if turn < len(_CALL_AFTER_S):
            self._calling = self._loop.call_later(_CALL_AFTER_S[turn], self._call, turn + 1)

    def _state(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a Path would cost as much again
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size


def _changes_of(path: str) -> int | None:
    """Return a file descriptor that becomes readable when the file is written to. Return None if the system does not
    offer this.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)
    changes: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if changes < 0:
        return None
    if libc.inotify_add_watch(changes, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(changes)
        return None
    return changes
