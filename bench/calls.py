"""How many calls a step and a hierarchy take: `python -m bench.calls`.

Calls of Python and of C alike, on the engine's thread, as cProfile counts them: other programs change how long a call
takes, not how many there are. On SQLite the sizes of batches depend on how fast the disk is, and so does a call in a
hundred. In memory they do not.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import platform
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import loop
from bench.figures import Figures
from bench.hierarchies import OPERATIONS, ROOT
from bench.steps import sequence
from perdure import Engine

STEPS = 10  # of a run, as W1 has them


async def measure(folder: Path | None, *, runs: int, hierarchies: int, in_flight: int) -> Figures:
    """Calls per step of W1, with its part of the run and without, and per hierarchy of W11. Without a folder, those of
    an engine in memory."""
    short = await _count_runs(_url(folder, "short"), runs, STEPS, in_flight) / runs
    long = await _count_runs(_url(folder, "long"), runs, 2 * STEPS, in_flight) / runs
    return {
        "calls_per_step": short / STEPS,
        "calls_per_step_alone": (long - short) / STEPS,
        "calls_per_hierarchy": await _count_hierarchies(_url(folder, "hierarchies"), hierarchies, in_flight),
    }


def _url(folder: Path | None, name: str) -> str:
    return "memory://" if folder is None else f"sqlite:///{folder / name}.db"


async def _count_runs(url: str, runs: int, steps: int, in_flight: int) -> int:
    async with Engine(url, workflows=[sequence]) as engine:

        async def one() -> None:
            await engine.run(sequence(steps))

        return await _counted(one, runs, in_flight)


async def _count_hierarchies(url: str, hierarchies: int, in_flight: int) -> float:
    async with Engine(url, workflows=OPERATIONS) as engine:

        async def one() -> None:
            await (await engine.emit(ROOT, {"n": 1})).finished()

        return await _counted(one, hierarchies, in_flight) / hierarchies


async def _counted(one: Callable[[], Awaitable[None]], times: int, in_flight: int) -> int:
    """How many calls it takes to do something that many times, after what is done only once."""
    for _ in range(2):
        await _do(one, in_flight, in_flight)
    profile = cProfile.Profile()
    gc.collect()
    gc.disable()  # What it calls depends on when it comes.
    try:
        profile.enable()
        await _do(one, times, in_flight)
    finally:
        profile.disable()
        gc.enable()
    return sum(entry.callcount for entry in profile.getstats())


async def _do(one: Callable[[], Awaitable[None]], times: int, in_flight: int) -> None:
    turns = iter(range(times))

    async def lane() -> None:
        for _ in turns:
            await one()

    await asyncio.gather(*[lane() for _ in range(in_flight)])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        on_sqlite = loop.run(measure(Path(folder), runs=500, hierarchies=500, in_flight=100))
    in_memory = loop.run(measure(None, runs=500, hierarchies=500, in_flight=100))
    print(f"{f'Python {platform.python_version()}, {loop.NAME}':<24}{'SQLite':>10}{'memory':>10}")
    for name, value in on_sqlite.items():
        print(f"{name.replace('_', ' '):<24}{value:>10,.1f}{in_memory[name]:>10,.1f}")


if __name__ == "__main__":
    main()
