"""W10: an event that a client sends in one process resumes a run that an engine has in another.

From the call of `send` until the body of the step that follows has begun, by the clock that all processes share.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from bench import loop
from bench.figures import Figures, percentile
from perdure import Client, Engine, Event, receive, step, workflow
from tests.storage.postgres.server import PostgresServer


class Ball(Event, event_name="bench.ball"):
    """What the run waits for, again and again."""

    number: int


@step
async def caught() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@workflow
async def catcher(balls: int) -> list[float]:
    times = []
    for _ in range(balls):
        await receive(Ball)
        times.append(await caught())
    return times


async def _engine(store: str) -> None:
    async with Engine(store, workflows=[catcher]):
        await asyncio.to_thread(sys.stdin.read)  # Until whoever started this process closes the pipe.


async def measure_on(store: str, *, balls: int) -> Figures:
    command = [sys.executable, "-m", "bench.between", store]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    try:
        async with Client(store) as client:
            run = await client.start("catcher", {"balls": balls}, version="", id="catcher")
            thrown = []
            for number in range(balls):
                while await run.status() != "suspended":  # noqa: ASYNC110 - nobody tells what a run does elsewhere
                    await asyncio.sleep(0.005)
                # Each at another moment of whatever is done regularly.
                await asyncio.sleep(0.02 + 0.0137 * (number % 10))
                thrown.append(time.clock_gettime(time.CLOCK_MONOTONIC))
                await client.send(Ball(number=number), to=run.id)
            late = [(there - here) * 1000 for here, there in zip(thrown, await run.result(), strict=True)]
    finally:
        process.stdin.close()
        await process.wait()
    return {"late_p50_ms": percentile(late, 50), "late_p99_ms": percentile(late, 99)}


async def measure(folder: Path, *, balls: int) -> Figures:
    return await measure_on(f"sqlite:///{folder / 'between.db'}", balls=balls)


async def measure_postgres(folder: Path, *, balls: int) -> Figures:
    server = PostgresServer(18, folder)
    try:
        return await measure_on(server.url, balls=balls)
    finally:
        server.end()


if __name__ == "__main__":
    loop.run(_engine(sys.argv[1]))
