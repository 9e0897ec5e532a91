"""How many steps run at once on an engine, and what becomes of those that wait for their turn."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, Retry, current_step, resource, step, workflow
from perdure.errors import InvalidArguments, RunCancelled
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource


class Room:
    """Who is in and who was; nobody leaves before the door is opened."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.seen: list[str] = []
        self.most = 0
        self.door = asyncio.Event()


@step
async def enter(name: str) -> str:
    room = resource(Room)
    room.inside.append(name)
    room.seen.append(name)
    room.most = max(room.most, len(room.inside))
    try:
        await room.door.wait()
    finally:
        room.inside.remove(name)
    return name


@workflow
async def visit(*names: str) -> list[str]:
    return list(await asyncio.gather(*[enter(name) for name in names]))


@step(timeout=5)
async def take_four_seconds() -> None:
    await resource(VirtualClock).sleep(4)


@workflow
async def take_turns() -> None:
    await asyncio.gather(*[take_four_seconds() for _ in range(3)])


def environment(room: Room, source: StoreSource = None, **options: Any) -> Environment:
    return Environment([visit, take_turns], source, autojump_s=None, resources={Room: lambda: room}, **options)


async def test_no_more_steps_run_at_once_than_there_may(source: StoreSource) -> None:
    room = Room()
    async with environment(room, source, limits=Limits(steps_max=3)) as env:
        names = [str(number) for number in range(20)]
        runs = [await env.engine.start(visit(*names[i : i + 5]), id=str(i)) for i in range(0, 20, 5)]
        await env.advance(0)
        assert room.inside == ["0", "1", "2"]
        assert env.engine.runtime.steps_running == 3
        room.door.set()
        assert [await run.result() for run in runs] == [names[i : i + 5] for i in range(0, 20, 5)]
        assert room.most == 3
        assert env.engine.runtime.steps_running == 0


async def test_their_turn_comes_in_the_order_of_asking() -> None:
    room = Room()
    room.door.set()
    async with environment(room, limits=Limits(steps_max=1)) as env:
        names = [str(number) for number in range(50)]
        await env.engine.run(visit(*names))
        assert room.seen == names
        assert room.most == 1


async def test_an_attempts_time_begins_when_its_turn_comes() -> None:
    async with environment(Room(), limits=Limits(steps_max=1)) as env:
        run = await env.engine.start(take_turns())
        await env.advance(12)
        await run.result()
        journal = (await env.engine.handle(run.id).history()).journal
        assert [entry.attempts for entry in journal] == [1, 1, 1]
        assert [entry.at - entry.started_at for entry in journal] == [timedelta(seconds=4)] * 3


async def test_an_attempts_time_begins_when_it_has_a_thread() -> None:
    let_go = threading.Event()
    begun: list[str] = []

    @step
    def hog() -> None:
        assert let_go.wait(10)

    @step(timeout=5)
    def careful() -> None:
        begun.append("careful")

    @step(total_timeout=8)
    def hurried() -> None:
        begun.append("hurried")

    @workflow
    async def flow() -> str:
        _, _, error = await asyncio.gather(hog(), careful(), hurried(), return_exceptions=True)
        return str(error)

    async with Environment([flow], autojump_s=None, limits=Limits(threads_max=1)) as env:
        run = await env.engine.start(flow())
        await env.advance(60)
        let_go.set()
        assert "hurried' did not finish within 8.0 s" in await run.result()
        assert begun == ["careful"]
        assert [entry.attempts for entry in (await env.engine.handle(run.id).history()).journal] == [1, 1, 1]


async def test_the_total_timeout_counts_the_wait_for_a_turn() -> None:
    begun: list[str] = []

    @step
    async def hog() -> None:
        await resource(VirtualClock).sleep(60)

    @step(total_timeout=10)
    async def hurried() -> None:
        begun.append("hurried")

    @workflow
    async def flow() -> str:
        _, error = await asyncio.gather(hog(), hurried(), return_exceptions=True)
        return str(error)

    async with Environment([flow], autojump_s=None, limits=Limits(steps_max=1)) as env:
        run = await env.engine.start(flow())
        await env.advance(9)
        assert (await env.engine.handle(run.id).history()).journal == []
        await env.advance(1)
        (entry,) = (await env.engine.handle(run.id).history()).journal
        assert entry.failure is not None
        await env.advance(50)
        assert "hurried' did not finish within 10.0 s, all attempts taken together (0 failed)" in await run.result()
        assert begun == []


async def test_who_is_cancelled_while_it_waits_never_begins_and_keeps_nobody_waiting() -> None:
    room = Room()
    async with environment(room, limits=Limits(steps_max=1)) as env:
        await env.engine.start(visit("a"), id="a")
        lost = await env.engine.start(visit("b", "c"), id="b")
        last = await env.engine.start(visit("d"), id="d")
        await env.advance(0)
        await env.engine.handle("b").cancel()
        with pytest.raises(RunCancelled):
            await lost.result()
        room.door.set()
        assert await last.result() == ["d"]
        assert room.seen == ["a", "d"]


async def test_cancelling_the_one_that_runs_lets_the_next_one_in() -> None:
    room = Room()
    async with environment(room, limits=Limits(steps_max=1)) as env:
        await env.engine.start(visit("a"), id="a")
        await env.engine.start(visit("b"), id="b")
        await env.advance(0)
        await env.engine.handle("a").cancel()
        await env.advance(0)
        assert room.inside == ["b"]


async def test_a_workflow_that_gives_up_a_waiting_step_leaves_no_trace_of_it() -> None:
    room = Room()

    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(5):
                await enter("late")
        except TimeoutError:
            return "gave up"
        return "waited"

    async with Environment(
        [visit, impatient], autojump_s=None, resources={Room: lambda: room}, limits=Limits(steps_max=1)
    ) as env:
        await env.engine.start(visit("a"), id="a")
        run = await env.engine.start(impatient())
        await env.advance(5)
        assert await run.result() == "gave up"
        room.door.set()
        await env.quiet()
        assert room.seen == ["a"]


async def test_a_step_between_two_attempts_takes_no_ones_place() -> None:
    order: list[str] = []

    @step(retry=Retry(attempts=2, initial=timedelta(milliseconds=500), jitter=0))
    async def shaky(name: str) -> None:
        order.append(name)
        if current_step().attempt == 1:
            raise OSError("not yet")

    @workflow
    async def flow() -> None:
        await asyncio.gather(*[shaky(name) for name in "abc"])

    async with Environment([flow], autojump_s=None, limits=Limits(steps_max=1)) as env:
        run = await env.engine.start(flow())
        await env.advance(1)
        await run.result()
        assert order == ["a", "b", "c", "a", "b", "c"]


async def test_a_shutdown_waits_for_those_that_run_and_starts_none_that_wait(source: StoreSource) -> None:
    room = Room()
    async with environment(room, source, limits=Limits(steps_max=2)) as env:
        await env.engine.start(visit("a", "b", "c", "d"), id="r")
        await env.advance(0)
        stopping = asyncio.ensure_future(env.engine.shutdown(grace=60))
        await asyncio.sleep(0)
        room.door.set()
        await stopping
        assert room.seen == ["a", "b"]
        env.kill()
        await env.restart()
        assert await env.engine.handle("r").result() == ["a", "b", "c", "d"]
        assert room.seen == ["a", "b", "c", "d"]


async def test_a_crash_loses_no_step_that_waited_for_its_turn(source: StoreSource) -> None:
    room = Room()
    async with environment(room, source, limits=Limits(steps_max=1)) as env:
        await env.engine.start(visit("a", "b", "c"), id="r")
        await env.advance(0)
        await env.restart()
        room.door.set()
        assert await env.engine.handle("r").result() == ["a", "b", "c"]
        assert room.seen == ["a", "a", "b", "c"]
        assert await env.check() == 1


async def test_a_thousand_steps_that_were_given_up_while_they_waited_are_forgotten() -> None:
    room = Room()
    async with environment(room, limits=Limits(steps_max=1)) as env:
        await env.engine.start(visit("a"), id="a")
        await env.engine.start(visit(*[str(number) for number in range(1000)]), id="r")
        await env.advance(0)
        assert env.engine.runtime.functions.steps_queued == 1000
        await env.engine.handle("r").cancel()
        await env.advance(0)
        assert env.engine.runtime.functions.steps_queued == 0


@pytest.mark.parametrize("bound", ["steps_max", "processes_max"])
async def test_a_bound_of_nothing_is_refused(bound: str) -> None:
    bounds: dict[str, Any] = {bound: 0}
    with pytest.raises(InvalidArguments, match=f"{bound} must be at least 1, not 0"):
        Limits(**bounds)
