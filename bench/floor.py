"""The limit of W1 and W2 on SQLite: the rows that the runs need, committed in groups with fsync on, and nothing else.

In Perdure's own schema: per run one row at its start and one update at its end, per step one journal row, per change of
status one audit row, per commit one update of the engine's row. A step begins when what is before it is committed, and
the last step shares its commit with the end of the run. No workflow, no replay, no checks, no retries, no timers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.json import encode

from bench.figures import Figures, percentile
from bench.group import Group, digest
from perdure.ports import new_id

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
INSERT_JOURNAL = """
    insert into journal (run_id, seq, position, kind, name, value, attempts, started_at, at, digest, spilled)
    values (?, ?, ?, 'step', 'small', ?, 1, ?, ?, ?, 0)
"""
INSERT_AUDIT = """
    insert into audit (run_id, seq, version, was, became, cause, actor, details, at) values (?, ?, ?, ?, ?, ?, ?, '', ?)
"""


class Floor(Group):
    """Runs of steps, one after the other."""

    statements = (INSERT_RUNS, FINISH_RUNS, INSERT_JOURNAL, INSERT_AUDIT)

    async def run(self, steps: int) -> None:
        now = time.time_ns() // 1000
        run_id = new_id(now)
        self.rows.of[INSERT_RUNS].append((run_id, now, now, now, f'{{"steps":{steps}}}'))
        self.rows.of[INSERT_AUDIT].append((run_id, 1, 1, None, "running", "started", "api", now))
        await self.durable()
        for number in range(1, steps + 1):
            started_at, value = time.time_ns() // 1000, encode({"ok": True, "n": number - 1}).decode()
            now = time.time_ns() // 1000
            self.rows.of[INSERT_JOURNAL].append(
                (run_id, number, str(number), value, started_at, now, digest(number - 1))
            )
            if number < steps:
                await self.durable()
        self.rows.of[FINISH_RUNS].append((now, now, "1", run_id))
        self.rows.of[INSERT_AUDIT].append((run_id, 2, 2, "running", "succeeded", "ended", "engine", now))
        await self.durable()


async def measure(folder: Path, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
    floor = Floor(folder / "floor.db")
    figures = await measure_floor(floor, runs=runs, steps=steps, in_flight=in_flight, singles=singles)
    floor.close()
    return figures


async def measure_floor(floor: Floor, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
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
    return {
        "steps_per_s": runs * steps / took,
        "latency_p50_ms": percentile(latencies, 50),
        "latency_p99_ms": percentile(latencies, 99),
    }
