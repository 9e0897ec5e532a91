"""W5: a parent starts many children of one step each and awaits them all."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.figures import Figures
from perdure import Engine, step, workflow


@step
async def small(number: int) -> dict[str, int | bool]:
    return {"ok": True, "n": number}


@workflow
async def child(number: int) -> int:
    await small(number)
    return 1


@workflow
async def parent(children: int) -> int:
    return sum(await asyncio.gather(*[child(number) for number in range(children)]))


async def measure(folder: Path, *, children: int) -> Figures:
    async with Engine(f"sqlite:///{folder / 'fanout.db'}", workflows=[parent, child]) as engine:
        began = time.perf_counter()
        ended = await engine.run(parent(children))
        took = time.perf_counter() - began
    if ended != children:
        raise SystemExit(f"{ended} of {children} children ended")
    return {"children_per_s": children / took}
