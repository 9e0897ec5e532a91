"""One SQLite file with a million suspended runs: what an engine takes to start, to idle, and to resume single ones.

`python -m bench.scale`, or with `--runs 20000` a smaller one. The file is filled first (bench/filling.py), in a process
of its own, and so is in the system's cache. Latencies are from the call of `send` to the commit that ends the run, one
after the other: to random runs; broadcasts that a hundred thousand wait for; broadcasts that choose a run by a field.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from msgspec.json import encode

from bench.figures import Figures, percentile
from bench.filling import WORKFLOWS, Paid, Popular, event_for, id_of
from bench.idle import idle_percent
from bench.measure import measure as measure_apart
from bench.report import Row, Target, summary, table
from perdure import Engine
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.status import FINISHED
from perdure.storage.sqlite import SqliteStore

ROWS = [
    Row("start-up", "scale", "open_s", "{:.2f} s", target=Target(5)),
    Row("resident memory after it", "scale", "resident_mb", "{:.0f} MB", target=Target(500)),
    Row("idle, of a core", "scale", "idle_percent", "{:.2f} %", target=Target(1)),
    Row("event to a run, until it has ended, p50", "scale", "targeted_p50_ms", "{:.1f} ms"),
    Row("event to a run, until it has ended, p99", "scale", "targeted_p99_ms", "{:.1f} ms", target=Target(20)),
    Row("broadcast that a tenth wait for, p99", "scale", "popular_p99_ms", "{:.1f} ms", target=Target(20)),
    Row("broadcast that a field fits, p99", "scale", "chosen_p99_ms", "{:.1f} ms", target=Target(20)),
]


class EndingStore(SqliteStore):
    """The SQLite store, which tells when a commit has ended runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ended = asyncio.Event()

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        if any(write.run.status in FINISHED for write in batch.runs.values()):
            self._ended.set()
        return committed

    async def ended(self) -> None:
        await self._ended.wait()
        self._ended.clear()


def resident_mb() -> float:
    """What this process has in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not say how much memory a process has")


async def measure(folder: Path, *, runs: int, sends: int, broadcasts: int, idle_ms: int, seed: int = 0) -> Figures:
    path = folder / "scale.db"
    filling = [sys.executable, "-m", "bench.filling", str(path), str(runs)]
    await asyncio.to_thread(subprocess.run, filling, check=True)
    store = EndingStore(path)
    began = time.perf_counter()
    async with Engine(store, workflows=WORKFLOWS) as engine:
        figures = {"open_s": time.perf_counter() - began, "resident_mb": resident_mb()}
        figures["idle_percent"] = await idle_percent(idle_ms / 1000)
        numbers = random.Random(seed).sample(range(2, runs, 2), sends + broadcasts)

        async def latency(event: Popular | Paid, to: str | None) -> float:
            began = time.perf_counter()
            await asyncio.gather(engine.send(event, to=to, strict=True), store.ended())
            return (time.perf_counter() - began) * 1000

        targeted = [await latency(event_for(number), id_of(number)) for number in numbers[:sends]]
        popular = [await latency(Popular(number=0), None) for _ in range(broadcasts)]
        chosen = [await latency(Paid(order=n), None) for n in numbers[sends:] if n % 10]
    return figures | {
        "targeted_p50_ms": percentile(targeted, 50),
        "targeted_p99_ms": percentile(targeted, 99),
        "popular_p99_ms": percentile(popular, 99),
        "chosen_p99_ms": percentile(chosen, 99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="An engine on very many waiting runs.")
    parser.add_argument("--runs", type=int, default=1_000_000, help="how many suspended runs the file has (1000000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append everything measured to this file, as a line")
    options = parser.parse_args()
    few = min(1_000, options.runs // 20)
    sizes = {"runs": options.runs, "sends": few, "broadcasts": few // 2, "idle_ms": 11_000}
    rounds = {"scale": [measure_apart("scale", sizes)]}
    print(f"{options.runs:,} suspended runs in one SQLite file")
    print(table(rounds, ROWS, judged=True))
    if options.json is not None:
        measured = {"sizes": {"scale": sizes}, "summary": summary(rounds, ROWS), "rounds": rounds}
        with options.json.open("ab") as file:
            file.write(encode({"at": datetime.now(UTC), **measured}) + b"\n")


if __name__ == "__main__":
    main()
