"""A run that waits for its turn, or for an attempt that is due within a second, executes nothing: it is not blamed for
the death of its process. One that kills its process is blamed wherever it has waited before."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure import Limits, Retry, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

DEATHS = 8  # More than make a run poison.
SOON = Retry(attempts=1000, initial=timedelta(milliseconds=500), multiplier=1, jitter=0)


async def not_blamed(env: Environment, run_id: str) -> None:
    view = await env.engine.runs.get(run_id)
    assert view is not None
    assert (view.recoveries, view.hold) == (0, None)


class Queue:
    """Steps that hold the only place until they are let go; the next one begins then. Steps are async, or run in
    threads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun: dict[str, asyncio.Event] = {}
        self._leaves: dict[str, threading.Event] = {}

    def has_begun(self, name: str) -> asyncio.Event:
        return self.begun.setdefault(name, asyncio.Event())

    def wait(self, name: str) -> None:
        leave = self._leaves.setdefault(name, threading.Event())
        self.loop.call_soon_threadsafe(self.has_begun(name).set)
        leave.wait()

    async def wait_async(self, name: str) -> None:
        self.has_begun(name).set()
        leave = self._leaves.setdefault(name, threading.Event())
        while not leave.is_set():
            await asyncio.sleep(0.001)

    def let_go(self, *names: str) -> None:
        for name in names:
            self._leaves.setdefault(name, threading.Event()).set()


async def wait_for_a_turn_through_deaths(source: StoreSource, *, in_threads: bool) -> None:
    queue = Queue()

    if in_threads:

        @step(name="hold")
        def hold(name: str) -> str:
            queue.wait(name)
            return name
    else:

        @step(name="hold")
        async def hold(name: str) -> str:
            await queue.wait_async(name)
            return name

    @workflow
    async def flow(name: str) -> str:
        return await hold(name)

    limit: dict[str, Any] = {"limits": Limits(threads_max=1)} if in_threads else {"limits": Limits(steps_max=1)}
    names = [f"r-{number}" for number in range(DEATHS + 1)]
    try:
        async with Environment([flow], source, autojump_s=None, **limit) as env:
            for name in (*names, "last"):
                await env.engine.start(flow(name), id=name)
                await env.advance(0.001)
            for name, following in pairwise(names):
                await queue.has_begun(name).wait()
                queue.let_go(name)
                await env.engine.handle(name).result()
                await queue.has_begun(following).wait()
                queue.begun.clear()
                await env.restart()
                await queue.has_begun(following).wait()
                await until_counted(env, "last", 0)
                await not_blamed(env, "last")
            queue.let_go(*names, "last")
            assert await env.engine.handle("last").result() == "last"
            await env.check()
    finally:
        queue.let_go(*names, "last")


async def until_counted(env: Environment, run_id: str, recoveries: int) -> None:
    """Wait until so many recoveries are counted. What is written without being awaited is there a little later."""
    while True:
        view = await env.engine.runs.get(run_id)
        assert view is not None
        if view.recoveries == recoveries or view.hold is not None:
            return
        await asyncio.sleep(0.001)


async def test_a_run_that_waits_for_its_turn_is_not_blamed(source: StoreSource) -> None:
    await wait_for_a_turn_through_deaths(source, in_threads=False)


async def test_a_run_that_waits_for_a_thread_is_not_blamed(source: StoreSource) -> None:
    await wait_for_a_turn_through_deaths(source, in_threads=True)


async def test_a_run_in_a_short_pause_is_not_blamed(source: StoreSource) -> None:
    attempts: list[str] = []

    @step(retry=SOON)
    async def fail() -> None:
        attempts.append("one")
        if len(attempts) <= DEATHS + 1:
            raise OSError("not now")

    @workflow
    async def flow() -> None:
        await fail()

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        for _ in range(DEATHS):
            await env.quiet()
            await not_blamed(env, "r-1")
            await env.restart()
        await env.quiet()
        await not_blamed(env, "r-1")
        await env.advance(1)
        await env.engine.handle("r-1").result()
        assert len(attempts) == DEATHS + 2


async def test_an_operation_in_a_short_pause_is_not_blamed(source: StoreSource) -> None:
    orders = Topic("orders", str)
    place = Operation("place", orders)
    attempts: list[str] = []

    @place.step(retry=SOON)
    async def take(scope: Scope, order: str) -> None:
        attempts.append(order)
        if len(attempts) <= DEATHS + 1:
            raise OSError("not now")

    async with Environment([place], source, autojump_s=None) as env:
        await env.engine.emit(orders, "o-1")
        await env.quiet()
        (run,) = (await env.engine.runs.list(workflow="place")).runs
        for _ in range(DEATHS):
            await env.quiet()
            await not_blamed(env, run.id)
            await env.restart()
        await env.quiet()
        await env.advance(1)
        await env.engine.handle(run.id).result()
        assert len(attempts) == DEATHS + 2


async def test_an_operation_that_waits_for_its_turn_is_not_blamed(source: StoreSource) -> None:
    orders = Topic("orders", str)
    place = Operation("place", orders)
    queue = Queue()

    @place.step
    async def take(scope: Scope, order: str) -> None:
        await queue.wait_async(order)

    names = [f"o-{number}" for number in range(DEATHS + 1)]
    async with Environment([place], source, autojump_s=None, limits=Limits(steps_max=1)) as env:
        runs: dict[str, str] = {}
        for name in (*names, "last"):
            (runs[name],) = (await env.engine.emit(orders, name)).run_ids
            await env.advance(0.001)
        for name, following in pairwise(names):
            await queue.has_begun(name).wait()
            queue.let_go(name)
            await env.engine.handle(runs[name]).result()
            await queue.has_begun(following).wait()
            queue.begun.clear()
            await env.restart()
            await queue.has_begun(following).wait()
            await until_counted(env, runs["last"], 0)
            await not_blamed(env, runs["last"])
        queue.let_go(*names, "last")
        await env.engine.handle(runs["last"]).result()


@pytest.mark.parametrize("kind", ["async", "thread", "operation", "operation in a thread"])
async def test_a_run_that_kills_its_process_after_a_short_pause_is_held(source: StoreSource, kind: str) -> None:
    """The pause is no progress, and each attempt after it counts before its code begins."""
    loop, death, hang = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    tries: list[bool] = []

    def fails_first() -> bool:
        tries.append(True)
        if len(tries) % 2:
            raise OSError("not now")
        loop.call_soon_threadsafe(death.set)
        return True

    @step(name="kill", retry=SOON)
    async def kill() -> None:
        fails_first()
        await asyncio.Event().wait()

    @step(name="kill", retry=SOON)
    def kill_in_thread() -> None:
        fails_first()
        hang.wait()

    @workflow
    async def flow() -> None:
        await (kill_in_thread() if kind == "thread" else kill())

    orders = Topic("orders", str)
    place = Operation("place", orders)

    if kind == "operation":

        @place.step(retry=SOON)
        async def take(scope: Scope, order: str) -> None:
            fails_first()
            await asyncio.Event().wait()
    else:

        @place.step(retry=SOON)
        def take_in_thread(scope: Scope, order: str) -> None:
            fails_first()
            hang.wait()

    try:
        async with Environment([flow, place], source, autojump_s=0.001) as env:
            if kind.startswith("operation"):
                await env.engine.emit(orders, "o-1")
                (run,) = (await env.engine.runs.list(workflow="place")).runs
                run_id = run.id
            else:
                run_id = (await env.engine.start(flow())).id
            for deaths in range(6):
                await death.wait()
                death.clear()
                view = await env.engine.runs.get(run_id)
                assert view is not None
                assert (view.recoveries, view.hold) == (deaths, None)
                await env.restart()
            await until_counted(env, run_id, -1)
            view = await env.engine.runs.get(run_id)
            assert view is not None
            assert view.hold is not None
            assert view.hold.kind == "poison"
            assert len(tries) == 12
    finally:
        hang.set()


async def test_a_run_whose_code_kills_its_process_is_held(source: StoreSource) -> None:
    """Its code never comes to a wait: it counts from the moment it is taken up."""
    env: Environment
    lives: list[str] = []

    @workflow
    async def flow() -> None:
        lives.append("one")
        env.kill()

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        for _ in range(8):
            while not env.is_dead and len(lives) < 6:
                await asyncio.sleep(0.001)
            if env.is_dead:
                await env.restart()
        await until_counted(env, "r-1", -1)
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, len(lives)) == ("poison", 6)
