"""The limit of W1 and W2 on SQLite: the rows that the runs need, committed in groups with fsync on, and nothing else.

In Perdure's own schema: per run one row at its start and one update at its end, per step one journal row, per change of
status one audit row, per commit one update of the engine's row. A step begins when what is before it is committed, and
the last step shares its commit with the end of the run. No workflow, no replay, no checks, no retries, no timers.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from msgspec.json import encode

from bench.figures import Figures, percentile
from perdure.ports import new_id

Row = tuple[Any, ...]

SCHEMA = resources.files("perdure.storage.sqlite") / "migrations" / "0001_heart.sql"

INSERT_RUNS = """
    insert into runs (
        id, workflow, workflow_version, model, status, version, revision, owner, claim, tags, attempt, recoveries,
        created_at, started_at, updated_at, spilled, input
    ) values (?, 'sequence', '', 'function', 'running', 1, 1, 'floor', 1, '{}', 1, 0, ?, ?, ?, 0, ?)
"""
FINISH_RUNS = """
    update runs
    set status = 'succeeded', version = 2, revision = 2, owner = null, updated_at = ?, completed_at = ?, output = ?
    where id = ? and owner = 'floor' and version = 1
"""
INSERT_JOURNAL = "insert into journal values (?, ?, ?, 'step', 'small', ?, null, 1, ?, ?, 0)"
INSERT_AUDIT = "insert into audit values (?, ?, ?, ?, ?, ?, ?, '', ?)"


class Rows:
    """What the next commit writes, and who waits for it."""

    def __init__(self) -> None:
        self.starts: list[Row] = []
        self.entries: list[Row] = []
        self.ends: list[Row] = []
        self.audit: list[Row] = []
        self.waiting: list[asyncio.Future[None]] = []


class Floor:
    """One file, one connection, one commit at a time; what arrives meanwhile goes into the next."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(SCHEMA.read_text("utf-8"))
        self._db.execute("insert into engines values ('floor', 1, 1, 0, '', 0, '[]', 0)")
        self._rows = Rows()
        self._arrival = asyncio.Event()

    def durable(self) -> asyncio.Future[None]:
        """Done when all rows given so far are on the disk."""
        future = self._loop.create_future()
        self._rows.waiting.append(future)
        self._arrival.set()
        return future

    async def commit_forever(self) -> None:
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            rows, self._rows = self._rows, Rows()
            await self._loop.run_in_executor(None, self._commit, rows)
            for future in rows.waiting:
                future.set_result(None)
            await asyncio.sleep(0)  # Those who waited give their next rows first.

    def _commit(self, rows: Rows) -> None:
        db = self._db
        db.execute("begin immediate")
        db.execute("update engines set batch = batch + 1 where id = 'floor'")
        if rows.starts:
            db.executemany(INSERT_RUNS, rows.starts)
        if rows.ends:
            db.executemany(FINISH_RUNS, rows.ends)
        if rows.entries:
            db.executemany(INSERT_JOURNAL, rows.entries)
        if rows.audit:
            db.executemany(INSERT_AUDIT, rows.audit)
        db.execute("commit")

    async def run(self, steps: int) -> None:
        now = time.time_ns() // 1000
        run_id = new_id(now)
        self._rows.starts.append((run_id, now, now, now, f'{{"steps":{steps}}}'))
        self._rows.audit.append((run_id, 1, 1, None, "running", "started", "api", now))
        await self.durable()
        for number in range(1, steps + 1):
            started_at, value = time.time_ns() // 1000, encode({"ok": True, "n": number}).decode()
            now = time.time_ns() // 1000
            self._rows.entries.append((run_id, number, str(number), value, started_at, now))
            if number < steps:
                await self.durable()
        self._rows.ends.append((now, now, "1", run_id))
        self._rows.audit.append((run_id, 2, 2, "running", "succeeded", "ended", "engine", now))
        await self.durable()


async def measure(folder: Path, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
    floor = Floor(folder / "floor.db")
    committer = asyncio.create_task(floor.commit_forever())

    async def lane(numbers: Iterator[int]) -> None:
        for _ in numbers:
            await floor.run(steps)

    numbers = iter(range(runs))
    began = time.perf_counter()
    await asyncio.gather(*[lane(numbers) for _ in range(in_flight)])
    took = time.perf_counter() - began

    latencies = []
    for _ in range(singles):
        began = time.perf_counter()
        await floor.run(1)
        latencies.append((time.perf_counter() - began) * 1000)
    committer.cancel()
    return {
        "steps_per_s": runs * steps / took,
        "latency_p50_ms": percentile(latencies, 50),
        "latency_p99_ms": percentile(latencies, 99),
    }
