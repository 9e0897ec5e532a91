"""When the write-ahead log is brought into the file: between two commits, not as a part of one."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Final

PAGES: Final = 1_000  # So long the log may get, and is brought in as soon as nothing waits to be written.
PAGES_MAX: Final = 4 * PAGES  # And so long, if there never is such a moment: then a commit does it, as SQLite has it.
PAUSE_S: Final = 0.1  # After so long without a commit, a quarter of it is worth the trouble.
_PER_PAGE_MIN, _PER_PAGE_MAX = 0.1, 100.0


class Checkpoints:
    """Of one connection that writes. A checkpoint writes a thousand pages and waits for the disk: 10 to 100 ms, during
    which SQLite alone would keep a commit, and all who wait for it. In a pause, the event loop does other things
    meanwhile.

    How long the log is, only a checkpoint tells. So it is taken to be as long as the number of changed rows has it,
    at the rate of the last time.
    """

    def __init__(self) -> None:
        self._brought_in = 0  # changes, of all that the connection has made
        self._per_page = 2.0

    def patience_s(self, connection: sqlite3.Connection) -> float | None:
        """How long to wait for more to write before `bring_in` is called; None if it is not worth it yet."""
        pages = (connection.total_changes - self._brought_in) / self._per_page
        if pages >= PAGES:
            return 0
        return PAUSE_S if pages >= PAGES / 4 else None

    def bring_in(self, connection: sqlite3.Connection) -> None:
        """Waits for nobody: what somebody still reads stays in the log, and so does everything if it goes wrong."""
        changes = connection.total_changes
        with suppress(sqlite3.Error, MemoryError):
            _busy, pages, _done = connection.execute("pragma wal_checkpoint(passive)").fetchone()
            if pages > 0:
                rate = (changes - self._brought_in) / pages
                self._per_page = min(max(rate, _PER_PAGE_MIN), _PER_PAGE_MAX)
        self._brought_in = changes
