"""Checkpoints, which copy the write-ahead log into the file. They are made between two commits, and not as a part of a
commit.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Final

PAGES: Final = 1_000  # if the log is this long, a checkpoint is made as soon as no write waits
PAGES_MAX: Final = 4 * PAGES  # if writes always wait, a commit makes the checkpoint at this length, as SQLite does
PAUSE_S: Final = 0.1  # after a pause of this length without a commit, a quarter of PAGES is enough
_PER_PAGE_MIN, _PER_PAGE_MAX = 0.1, 100.0


def bring_in_all(connection: sqlite3.Connection) -> bool:
    """Copy the log into the file. Returns whether the file then has all commits that were made so far.

    If somebody reads an older state, later commits stay in the log.
    """
    with suppress(sqlite3.Error, MemoryError):
        busy, pages, done = connection.execute("pragma wal_checkpoint(passive)").fetchone()
        return not busy and pages == done
    return False


class Checkpoints:
    """The checkpoints of one connection that writes.

    A checkpoint writes about a thousand pages and waits for the disk. This takes 10 to 100 ms. By default, SQLite makes
    the checkpoint in a commit. This delays everybody who waits for that commit. In a pause between commits, nobody
    waits.

    Only a checkpoint reports the length of the log. So the length is estimated from the number of changed rows, with
    the ratio that the last checkpoint showed.
    """

    def __init__(self) -> None:
        self._brought_in = 0  # the number of the connection's changes that checkpoints have covered
        self._per_page = 2.0

    def patience_s(self, connection: sqlite3.Connection) -> float | None:
        """Return how long to wait for more writes before calling `bring_in`. Return None if the log is too short for a
        checkpoint.
        """
        pages = (connection.total_changes - self._brought_in) / self._per_page
        if pages >= PAGES:
            return 0
        return PAUSE_S if pages >= PAGES / 4 else None

    def bring_in(self, connection: sqlite3.Connection) -> None:
        """Make a checkpoint without waiting for other connections.

        Pages that somebody still reads stay in the log. If the checkpoint fails, everything stays in the log.
        """
        changes = connection.total_changes
        with suppress(sqlite3.Error, MemoryError):
            _busy, pages, _done = connection.execute("pragma wal_checkpoint(passive)").fetchone()
            if pages > 0:
                rate = (changes - self._brought_in) / pages
                self._per_page = min(max(rate, _PER_PAGE_MIN), _PER_PAGE_MAX)
        self._brought_in = changes
