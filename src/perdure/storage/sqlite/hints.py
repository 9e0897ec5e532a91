"""Hearing of other processes' writes: a look at the size and time of the write-ahead log, which every commit changes.

That takes no query and no lock. It also sees the engine's own commits, so it tells that something may be new, not what.
And it sees a commit before others can: the log is written first, then it is brought to the disk, and only then is what
stands in it there to be read. So whoever was told is told again a little later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

_EVERY_S = 0.04
_AGAIN_AFTER = (1, 3, 7)  # looks; a disk that takes longer than that leaves it to the regular look at the database


class LogWatch:
    """Calls back when the log has changed, and a few times afterwards, until it is ended."""

    def __init__(self, database: Path, heard: Callable[[], object]) -> None:
        self._path = f"{database}-wal"
        self._heard = heard
        self._seen = self._state()
        self._unchanged = max(_AGAIN_AFTER)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        state = self._state()
        self._unchanged = 0 if state != self._seen else self._unchanged + 1
        self._seen = state
        if self._unchanged == 0 or self._unchanged in _AGAIN_AFTER:
            self._heard()

    def _state(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - a Path would cost as much again
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
