"""An engine in a process whose machine has another time of day: `python -m tests.fleet.skewed URL SECONDS`.

It says "ready" once it is open, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure import Engine, Limits, Workflow, resource, sleep, step, workflow
from perdure.ports import clock

ROOT = Path(__file__).resolve().parents[2]


class Gate:
    """What a step waits for. In the process whose clock is wrong it is always open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.is_reached = asyncio.Event()


@step
async def passes(notes: str) -> None:
    with Path(notes).open("a") as file:
        file.write("began\n")
    gate = resource(Gate)
    gate.is_reached.set()
    await gate.open.wait()


@workflow
async def works(notes: str) -> str:
    await passes(notes)
    return "passed"


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


@workflow
async def sleeps_there(seconds: float) -> str:
    """Only the process whose clock is wrong has this one."""
    await sleep(seconds)
    return "awake"


HERE: list[Workflow[Any, Any]] = [works, sleeps]
LIMITS = Limits(grace_s=0, recoveries_max=1000)


@asynccontextmanager
async def process(url: str, skew_s: int) -> AsyncGenerator[None]:
    """A process with an engine whose time of day is this far ahead."""
    command = [sys.executable, "-m", "tests.fleet.skewed", url, str(skew_s)]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert await child.stdout.readline() == b"ready\n"
        yield
        assert child.returncode is None  # It has lived all the while.
        child.stdin.close()
        assert await child.wait() == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def main(url: str, skew_s: int) -> None:
    right_ns, right = time.time_ns, time.time
    time.time_ns = clock.time_ns = lambda: right_ns() + skew_s * 10**9  # type: ignore[attr-defined]
    time.time = lambda: right() + skew_s
    gate = Gate()
    gate.open.set()
    workflows = [*HERE, sleeps_there]
    async with Engine(url, workflows=workflows, resources={Gate: lambda: gate}, limits=LIMITS, poll_s=0.1):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
