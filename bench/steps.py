"""W1: runs of ten trivial steps, a hundred in flight. W2: runs of one step, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figures, percentile
from perdure import Engine, step, workflow


@step
async def small(number: int) -> dict[str, int | bool]:
    return {"ok": True, "n": number}


@workflow
async def sequence(steps: int) -> int:
    for number in range(steps):
        await small(number)
    return 1


async def measure(folder: Path, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
    url = f"sqlite:///{folder / 'steps.db'}"
    return await measure_on(url, runs=runs, steps=steps, in_flight=in_flight, singles=singles)


async def measure_on(url: str, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
    async with Engine(url, workflows=[sequence]) as engine:

        async def lane(numbers: Iterator[int]) -> None:
            for _ in numbers:
                await engine.run(sequence(steps))

        numbers = iter(range(runs))
        began = time.perf_counter()
        await asyncio.gather(*[lane(numbers) for _ in range(in_flight)])
        took = time.perf_counter() - began

        latencies = []
        for _ in range(singles):
            began = time.perf_counter()
            await engine.run(sequence(1))
            latencies.append((time.perf_counter() - began) * 1000)
    return {
        "steps_per_s": runs * steps / took,
        "latency_p50_ms": percentile(latencies, 50),
        "latency_p99_ms": percentile(latencies, 99),
    }
