"""What every floor is made of: rows for Perdure's own tables, committed in groups with fsync on, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from perdure.storage.sqlite.connection import PAGE_BYTES
from perdure.storage.sqlite.schema import migrate

Row = tuple[Any, ...]

OWNER = "floor"


class Rows:
    """What the next commit writes, by statement, and who waits for it."""

    def __init__(self, statements: Sequence[str]) -> None:
        self.of: dict[str, list[Row]] = {statement: [] for statement in statements}
        self.waiting: list[asyncio.Future[None]] = []


class Group:
    """One file, one connection, one commit at a time; what arrives meanwhile goes into the next.

    A commit executes `statements` in order, each for all its rows, after one update of the engine's row.
    """

    statements: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self._begin()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute(f"pragma page_size = {PAGE_BYTES}")
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        migrate(self._db, path)
        self._db.execute(f"insert into engines values ('{OWNER}', 1, 1, 0, '', 0, '[]', 0, null)")

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.rows = Rows(self.statements)
        self._arrival = asyncio.Event()
        self._committer = self._loop.create_task(self._commit_forever())

    def close(self) -> None:
        self._committer.cancel()
        self._db.close()

    def durable(self) -> asyncio.Future[None]:
        """Done when all rows given so far are on the disk."""
        future = self._loop.create_future()
        self.rows.waiting.append(future)
        self._arrival.set()
        return future

    async def _commit_forever(self) -> None:
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            rows, self.rows = self.rows, Rows(self.statements)
            await self.write(rows)
            for future in rows.waiting:
                future.set_result(None)
            await asyncio.sleep(0)  # Those who waited give their next rows first.

    async def write(self, rows: Rows) -> None:
        """Commit all of them."""
        await self._loop.run_in_executor(None, self._commit, rows)

    def _commit(self, rows: Rows) -> None:
        db = self._db
        db.execute("begin immediate")
        db.execute(f"update engines set batch = batch + 1 where id = '{OWNER}'")
        for statement, many in rows.of.items():
            if many:
                db.executemany(statement, many)
        db.execute("commit")


def digest(number: int) -> str:
    """What the engine keeps of a call with this one argument."""
    return f"{crc32(b'[%d]' % number):08x}"
