"""W3: many runs wait for one event each, and each is sent its own, to its id.

By `Engine.send` from many callers at once, as requests that come in at a web server would do it; one caller that has a
list would take `send_many`, which shares commits in the same way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figures
from perdure import Engine, Event, receive, workflow
from perdure.testing.control import is_quiet


class Go(Event, event_name="bench.go"):
    """What each run waits for."""

    number: int


@workflow
async def waiter() -> int:
    await receive(Go)
    return 1


async def settled(engine: Engine) -> None:
    """Wait until all that follows from what was asked so far is committed."""
    while not is_quiet(engine):  # noqa: ASYNC110 - there is nothing to wait for: it is a property, for tests
        await asyncio.sleep(0.001)


async def start_waiters(engine: Engine, count: int) -> list[str]:
    """So many runs, all suspended; their ids."""
    ids = [f"waiter-{number:06}" for number in range(count)]
    for first in range(0, count, 1_000):
        await asyncio.gather(*[engine.start(waiter(), id=run_id) for run_id in ids[first : first + 1_000]])
    await settled(engine)
    await check_status(engine, ids, "suspended")
    return ids


async def send_all(engine: Engine, ids: list[str], senders: int) -> None:
    """Send each run its event, and wait until all have ended and that is stored."""
    numbers = iter(range(len(ids)))

    async def sender(numbers: Iterator[int]) -> None:
        for number in numbers:
            await engine.send(Go(number=number), to=ids[number])

    await asyncio.gather(*[sender(numbers) for _ in range(senders)])
    await settled(engine)


async def check_status(engine: Engine, ids: list[str], status: str) -> None:
    found = await engine.runs.get_many(ids)
    if wrong := [run_id for run_id in ids if found[run_id].status != status]:
        raise SystemExit(f"{len(wrong)} of {len(ids)} runs are not {status}, {wrong[0]} for one")


async def measure(folder: Path, *, waiters: int, senders: int) -> Figures:
    async with Engine(f"sqlite:///{folder / 'events.db'}", workflows=[waiter]) as engine:
        ids = await start_waiters(engine, waiters)
        began = time.perf_counter()
        await send_all(engine, ids, senders)
        took = time.perf_counter() - began
        await check_status(engine, ids, "succeeded")
    return {"events_per_s": waiters / took}
