"""W8: how much of a core an engine takes that has suspended runs and nothing to do."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.events import start_waiters, waiter
from bench.figures import Figures
from perdure import Engine


async def idle_percent(seconds: float) -> float:
    """CPU time of this process, all its threads, in percent of the time that passes."""
    used, began = time.process_time(), time.perf_counter()
    await asyncio.sleep(seconds)
    return 100 * (time.process_time() - used) / (time.perf_counter() - began)


async def measure(folder: Path, *, waiters: int, milliseconds: int) -> Figures:
    async with Engine(f"sqlite:///{folder / 'idle.db'}", workflows=[waiter]) as engine:
        await start_waiters(engine, waiters)
        return {"cpu_percent": await idle_percent(milliseconds / 1000)}
