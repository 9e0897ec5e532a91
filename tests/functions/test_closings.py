"""What ends with a run, or with an engine, ends in turns: nobody else waits until ten thousand tasks are closed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from perdure import Engine, receive, sleep, workflow
from perdure.testing import Environment
from perdure.testing.control import kill
from perdure.testing.environment import StoreSource

TASKS = 3_000
AT_ONCE_MAX = 800  # tasks that end in one turn of the event loop


class Turns:
    """Counts what happens in each turn of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self.ended: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None

    def end(self) -> None:
        self.ended[self.now] = self.ended.get(self.now, 0) + 1

    async def _count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()


def waiting(turns: Turns) -> Any:
    @workflow(name="waits")
    async def waits() -> None:
        async def one(number: int) -> None:
            try:
                await receive("never", where={"number": number})
            finally:
                turns.end()

        await asyncio.gather(*[one(number) for number in range(TASKS)])

    return waits


async def test_a_run_with_many_waits_is_cancelled_in_turns(source: StoreSource) -> None:
    turns = Turns()
    async with Environment([(flow := waiting(turns))], source, autojump_s=None) as env:
        run = await env.engine.start(flow())
        await env.settle()
        async with turns:
            assert await env.engine.handle(run.id).cancel()
            while sum(turns.ended.values()) < TASKS:
                await asyncio.sleep(0)
        assert max(turns.ended.values()) <= AT_ONCE_MAX


async def test_an_engine_that_is_shut_down_closes_its_runs_in_turns() -> None:
    turns = Turns()

    @workflow(name="sleeps")
    async def sleeps() -> None:
        try:
            await sleep(timedelta(days=1))
        finally:
            turns.end()

    engine = Engine("memory://", workflows=[sleeps, (flow := waiting(turns))])
    await engine.open()
    await engine.start(flow())
    for _ in range(TASKS):
        await engine.start(sleeps())
    async with turns:
        await engine.shutdown()
    assert sum(turns.ended.values()) == 2 * TASKS
    assert max(turns.ended.values()) <= AT_ONCE_MAX


async def test_a_killed_engine_closes_everything_at_once() -> None:
    turns = Turns()
    engine = Engine("memory://", workflows=[(flow := waiting(turns))])
    await engine.open()
    run = await engine.start(flow())
    while not await engine.handle(run.id).waits():
        await asyncio.sleep(0)
    kill(engine)
    assert sum(turns.ended.values()) == TASKS
