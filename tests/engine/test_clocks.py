"""The time of day is set, ahead and back: what is due at a time follows it, what lasts for a while does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Client,
    Event,
    Limits,
    Retry,
    TimeReached,
    current_step,
    first,
    receive,
    resource,
    sleep,
    step,
    timer,
    workflow,
)
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import RunFailed
from perdure.graph import Graph
from perdure.graph import timer as timer_node
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Go(Event):
    pass


class Gate:
    def __init__(self) -> None:
        self.begun: list[int] = []
        self.open = asyncio.Event()
        self.fails = 0


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


@workflow
async def waits_for_a_while() -> str:
    match await first(Go, timer(hours=1)):
        case TimeReached():
            return "expired"
        case _:
            return "went"


@workflow
async def sleeps_when_told() -> str:
    await receive(Go)
    await sleep(60)
    return "awake"


@step(timeout=MINUTE, retry=Retry(attempts=1))
async def passes_gate() -> str:
    gate = resource(Gate)
    gate.begun.append(current_step().attempt)
    await gate.open.wait()
    return "passed"


@step(heartbeat_timeout=MINUTE, retry=Retry(attempts=1))
async def shows_life() -> str:
    gate = resource(Gate)
    gate.begun.append(current_step().attempt)
    await gate.open.wait()
    return "passed"


@step(retry=Retry(attempts=3, initial=timedelta(milliseconds=500), jitter=0))
async def fails_briefly() -> str:
    gate = resource(Gate)
    gate.begun.append(current_step().attempt)
    if current_step().attempt <= gate.fails:
        raise OSError("not now")
    return "done"


@step(retry=Retry(attempts=3, initial=HOUR, jitter=0))
async def fails_for_long() -> str:
    gate = resource(Gate)
    gate.begun.append(current_step().attempt)
    if current_step().attempt <= gate.fails:
        raise OSError("not now")
    return "done"


STEPS = {one.name: one for one in (passes_gate, shows_life, fails_briefly, fails_for_long)}


@workflow
async def does(name: str) -> str:
    result: str = await STEPS[name]()
    return result


def environment(source: StoreSource, *workflows: Any, gate: Gate | None = None, **options: Any) -> Environment:
    resources = {Gate: lambda: gate or Gate()}
    return Environment(workflows, source, autojump_s=None, resources=resources, **options)


async def status(env: Environment, run_id: str = "r-1") -> str:
    await env.quiet()
    return str(await env.engine.handle(run_id).status())


async def begun(env: Environment, gate: Gate, count: int) -> None:
    while len(gate.begun) < count:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)


# What is due at a time.


async def test_a_sleep_ends_when_the_clock_is_set_ahead(source: StoreSource) -> None:
    async with environment(source, sleeps) as env:
        await env.engine.start(sleeps(3600), id="r-1")
        assert await status(env) == "suspended"
        env.clock.set_ahead(HOUR)
        assert await env.engine.handle("r-1").result() == "awake"
        assert env.clock.monotonic() == 0  # No time has passed.


async def test_a_sleep_ends_at_its_time_after_the_clock_was_set_back(source: StoreSource) -> None:
    async with environment(source, sleeps) as env:
        await env.engine.start(sleeps(3600), id="r-1")
        await env.quiet()
        env.clock.set_back(HOUR / 2)
        await env.advance(HOUR)
        assert await status(env) == "suspended"
        await env.restart()
        await env.advance(HOUR / 2)
        assert await env.engine.handle("r-1").result() == "awake"


async def test_what_nobody_has_in_memory_is_due_by_the_time_of_day_too(source: StoreSource) -> None:
    async with environment(source, sleeps, limits=Limits(live_runs_max=1)) as env:
        for number in range(3):
            await env.engine.start(sleeps(3600 + number * 3600), id=f"r-{number}")
        await env.quiet()
        env.clock.set_ahead(3 * HOUR)
        for number in range(3):
            assert await env.engine.handle(f"r-{number}").result() == "awake"


async def test_what_nobody_has_in_memory_waits_for_the_time_of_day_after_the_clock_was_set_back(
    source: StoreSource,
) -> None:
    async with environment(source, sleeps, limits=Limits(live_runs_max=1)) as env:
        for number in range(3):
            await env.engine.start(sleeps(3600), id=f"r-{number}")
        await env.engine.start(sleeps(86_400), id="r-3", deadline=HOUR)
        await env.quiet()
        env.clock.set_back(HOUR / 2)
        await env.advance(HOUR)
        assert [await status(env, f"r-{number}") for number in range(4)] == ["suspended"] * 4
        await env.advance(HOUR / 2)  # And not later: the time that has passed does not matter.
        for number in range(3):
            assert await env.engine.handle(f"r-{number}").result() == "awake"
        with pytest.raises(RunFailed, match="did not end by its deadline"):
            await env.engine.handle("r-3").result()


async def test_an_engine_that_takes_over_after_the_clock_was_set_goes_by_the_time_of_day(source: StoreSource) -> None:
    async with environment(source, sleeps) as env:
        await env.engine.start(sleeps(3600), id="r-1")
        await env.engine.start(sleeps(7200), id="r-2")
        await env.quiet()
        env.kill()
        env.clock.set_ahead(HOUR)
        await env.restart()
        assert await env.engine.handle("r-1").result() == "awake"
        env.kill()
        env.clock.set_back(HOUR)
        await env.restart()
        await env.advance(HOUR)
        assert await status(env, "r-2") == "suspended"
        await env.advance(HOUR)
        assert await env.engine.handle("r-2").result() == "awake"


async def test_a_sleep_that_begins_after_the_clock_was_set_back_takes_no_longer(source: StoreSource) -> None:
    async with environment(source, sleeps_when_told) as env:
        await env.engine.start(sleeps_when_told(), id="r-1")
        await env.quiet()
        env.clock.set_back(HOUR)
        await env.engine.send(Go(), to="r-1")
        assert await status(env) == "suspended"
        await env.restart()  # It replays.
        await env.advance(MINUTE)
        assert await env.engine.handle("r-1").result() == "awake"
        await env.check()


async def test_timeouts_of_waits_and_deadlines_of_runs_follow_the_clock(source: StoreSource) -> None:
    async with environment(source, waits_for_a_while, sleeps) as env:
        await env.engine.start(waits_for_a_while(), id="r-1")
        await env.engine.start(sleeps(86_400), id="r-2", deadline=HOUR)
        await env.quiet()
        env.clock.set_back(HOUR)
        await env.advance(HOUR)
        assert (await status(env, "r-1"), await status(env, "r-2")) == ("suspended", "suspended")
        env.clock.set_ahead(HOUR)
        assert await env.engine.handle("r-1").result() == "expired"
        with pytest.raises(RunFailed, match="did not end by its deadline"):
            await env.engine.handle("r-2").result()


async def test_a_graph_s_timer_follows_the_clock(source: StoreSource) -> None:
    graph = Graph("waits")
    graph.node("wait", timer_node(HOUR))
    async with environment(source, graph) as env:
        run = await env.engine.start(graph(), id="r-1")
        await env.quiet()
        env.clock.set_ahead(HOUR)
        await run.result()


async def test_timers_that_are_passed_over_fire_in_their_order(source: StoreSource) -> None:
    order: list[str] = []

    @workflow
    async def notes(name: str, seconds: float) -> None:
        await sleep(seconds)
        order.append(name)

    async with environment(source, notes) as env:
        runs = [await env.engine.start(notes(f"{seconds}", seconds)) for seconds in (50, 10, 40, 30, 20)]
        await env.quiet()
        env.clock.set_ahead(HOUR)
        for run in runs:
            await run.result()
        assert order == ["10", "20", "30", "40", "50"]


# What lasts for a while.


@pytest.mark.parametrize("name", ["passes_gate", "shows_life"])
async def test_a_clock_that_is_set_ahead_ends_no_attempt(source: StoreSource, name: str) -> None:
    gate = Gate()
    async with environment(source, does, gate=gate) as env:
        run = await env.engine.start(does(name), id="r-1")
        await begun(env, gate, 1)
        env.clock.set_ahead(HOUR)
        for _ in range(50):
            await asyncio.sleep(0)
        gate.open.set()
        assert await run.result() == "passed"


@pytest.mark.parametrize("name", ["passes_gate", "shows_life"])
async def test_a_clock_that_is_set_back_does_not_let_an_attempt_take_longer(source: StoreSource, name: str) -> None:
    gate = Gate()
    async with environment(source, does, gate=gate) as env:
        run = await env.engine.start(does(name), id="r-1")
        await begun(env, gate, 1)
        env.clock.set_back(HOUR)
        await env.advance(MINUTE)
        with pytest.raises(RunFailed, match="StepTimedOut"):
            await run.result()


async def test_a_short_pause_between_attempts_is_not_longer_after_the_clock_was_set_back(source: StoreSource) -> None:
    gate = Gate()
    gate.fails = 1
    async with environment(source, does, gate=gate) as env:
        run = await env.engine.start(does("fails_briefly"), id="r-1")
        await env.quiet()
        env.clock.set_back(HOUR)
        await env.advance(0.5)
        assert await run.result() == "done"
        assert gate.begun == [1, 2]


async def test_a_long_pause_between_attempts_follows_the_clock(source: StoreSource) -> None:
    gate = Gate()
    gate.fails = 1
    async with environment(source, does, gate=gate) as env:
        run = await env.engine.start(does("fails_for_long"), id="r-1")
        assert await status(env) == "suspended"
        env.clock.set_ahead(HOUR)
        assert await run.result() == "done"


async def test_a_step_of_an_operation_has_its_time_whatever_the_clock_says(source: StoreSource) -> None:
    topic, gate = Topic("orders", str), Gate()
    place = Operation("place", topic)

    @place.step(timeout=MINUTE)
    async def take(scope: Scope, order: str) -> None:
        gate.begun.append(1)
        await gate.open.wait()

    async with environment(source, place) as env:
        root = await env.engine.emit(topic, "o-1")
        await begun(env, gate, 1)
        env.clock.set_ahead(HOUR)
        for _ in range(50):
            await asyncio.sleep(0)
        gate.open.set()
        await root.finished()


async def test_a_short_pause_of_an_operation_is_not_longer_after_the_clock_was_set_back(source: StoreSource) -> None:
    topic, begun = Topic("orders", str), list[int]()
    place = Operation("place", topic)

    @place.step(retry=Retry(attempts=3, initial=timedelta(milliseconds=500), jitter=0))
    async def take(scope: Scope, order: str) -> None:
        begun.append(current_step().attempt)
        if len(begun) == 1:
            raise OSError("not now")

    async with environment(source, place) as env:
        root = await env.engine.emit(topic, "o-1")
        await env.quiet()
        env.clock.set_back(HOUR)
        await env.advance(0.5)
        await root.finished()
        assert begun == [1, 2]


async def test_an_engine_finds_new_runs_after_the_clock_was_set_back(
    source: StoreSource, make_store: Callable[[], Store]
) -> None:
    async with (
        environment(source, sleeps, poll_s=1.0) as env,
        Client(make_store(), clock=env.clock, poll_s=None) as client,
    ):
        for number in range(3):
            # The first one has the engine remember when it last looked.
            await client.start(sleeps(0), id=f"r-{number}")
            await env.advance(2)
            assert await status(env, f"r-{number}") == "succeeded"
            env.clock.set_back(30)
