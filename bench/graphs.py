"""Graphs: time and memory of one run with many branches, which must grow no faster than their number.

`python -m bench.graphs` measures a list that is gone through and joined, at 100, 1,000 and 10,000 branches: wall and
CPU time, memory, and for how long the loop of the process stood still at most.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

from bench.figures import Figures
from perdure import Engine, Retry, step
from perdure.graph import Graph, all_of, append

WIDTHS = (100, 1_000, 10_000)
BEYOND_LINEAR_MAX = 1.5


@step(retry=Retry.never())
async def plan(width: int) -> list[int]:
    return list(range(width))


@step(retry=Retry.never())
async def small(number: int) -> dict[str, int | bool]:
    return {"ok": True, "n": number}


@step(retry=Retry.never())
async def count(results: list[dict[str, Any]]) -> int:
    return len(results)


def fan_out() -> Graph[int, int]:
    graph = Graph("fan_out", input=int, output=int)
    graph.node("plan", plan, input={"width": "input"})
    graph.node("small", small, input={"number": "branch.item"})
    graph.node("count", count, input={"results": "state.results"})
    graph.edge("plan", "small", foreach="nodes.plan")
    graph.edge("small", "count", join=all_of(), merge=append("state.results"))
    graph.output("nodes.count")
    return graph.build()


async def measure(folder: Path, *, branches: int, runs: int = 1) -> Figures:
    """The best of several runs, since other work on the machine only makes one slower; and the memory of one more."""
    graph = fan_out()
    async with Engine(f"sqlite:///{folder / f'graphs-{branches}.db'}", workflows=[graph]) as engine:
        await engine.run(graph(10))
        best = best_cpu = float("inf")
        stood_still: list[float] = []
        for _ in range(runs):
            gc.collect()
            watching = asyncio.create_task(_watch(stood_still))
            began, cpu = time.perf_counter(), time.process_time()
            ended = await engine.run(graph(branches))
            best = min(best, time.perf_counter() - began)
            best_cpu = min(best_cpu, time.process_time() - cpu)
            watching.cancel()
            if ended != branches:
                raise SystemExit(f"{ended} of {branches} branches met")
        gc.collect()
        tracemalloc.start()
        await engine.run(graph(branches))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return {
        "branches_per_s": branches / best,
        "us_per_branch": best / branches * 1e6,
        "cpu_us_per_branch": best_cpu / branches * 1e6,
        "bytes_per_branch": peak / branches,
        "stood_still_ms": max(stood_still, default=0) * 1e3,
    }


async def _watch(stood_still: list[float]) -> None:
    """Note for how long the loop had no turn."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        stood_still.append(time.perf_counter() - began - 0.005)


def beyond_linear(figures: dict[int, Figures]) -> Figures:
    """How many times more a branch costs, at worst, at any greater width than at the smallest."""
    few, others = figures[min(figures)], [one for width, one in figures.items() if width > min(figures)]
    judged = ("us_per_branch", "cpu_us_per_branch", "bytes_per_branch")
    return {name: max(one[name] / few[name] for one in others) for name in judged}


async def main() -> None:
    figures: dict[int, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for width in WIDTHS:
            figures[width] = await measure(Path(folder), branches=width, runs=max(3, 1_000 // width))
            shown = ", ".join(f"{name} {value:,.0f}" for name, value in figures[width].items())
            print(f"{width:>6} branches: {shown}")
    for name, factor in beyond_linear(figures).items():
        verdict = "ok" if factor <= BEYOND_LINEAR_MAX else f"more than {BEYOND_LINEAR_MAX}"
        print(f"{name} is at worst {factor:.2f} times that at {WIDTHS[0]:,}: {verdict}")


if __name__ == "__main__":
    asyncio.run(main())
