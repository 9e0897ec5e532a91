"""Where steps run, what they can ask there, and how they are called."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from perdure import Retry, current_step, step, workflow
from perdure.errors import Misuse, NotInStep
from perdure.testing import Environment

QUICK = Retry(attempts=4, initial=timedelta(milliseconds=10), jitter=0)


async def test_a_sync_step_does_not_block_the_loop() -> None:
    let_go = threading.Event()

    @step
    def blocking() -> str:
        assert let_go.wait(10)
        return threading.current_thread().name

    @step
    async def free() -> None:
        let_go.set()

    @workflow
    async def flow() -> str:
        return (await asyncio.gather(blocking(), free()))[0]

    async with Environment([flow]) as env:
        assert (await env.engine.run(flow())).startswith("perdure-step")


async def test_a_step_knows_its_run_and_has_a_key_of_its_own() -> None:
    @step
    async def key() -> tuple[str, str, str]:
        me = current_step()
        return me.run_id, me.name, me.idempotency_key

    @step(name="in a thread")
    def thread_key() -> tuple[str, str, str]:
        me = current_step()
        return me.run_id, me.name, me.idempotency_key

    @workflow
    async def flow() -> list[tuple[str, str, str]]:
        return [await key(), await key(), await thread_key()]

    async with Environment([flow]) as env:
        keys = await env.engine.run(flow(), id="r-1")
        assert {run for run, _, _ in keys} == {"r-1"}
        assert [name for _, name, _ in keys] == [key.name, key.name, "in a thread"]
        assert len({one for _, _, one in keys}) == 3


async def test_the_current_step_is_nowhere_else() -> None:
    @workflow
    async def flow() -> str:
        with pytest.raises(NotInStep):
            current_step()
        return "refused"

    with pytest.raises(NotInStep, match="belongs in a step"):
        current_step()
    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == "refused"


# Calls.


async def test_options_change_one_call_and_not_the_step() -> None:
    calls: list[str] = []

    @step(retry=Retry(attempts=5, initial=timedelta(0)))
    async def failing(who: str) -> None:
        calls.append(who)
        raise ConnectionError

    once = failing.options(retry=Retry.never(), name="once")

    @workflow
    async def flow() -> None:
        for one in (once, failing):
            with pytest.raises(ConnectionError):
                await one(one.name)

    async with Environment([flow]) as env:
        run = await env.engine.start(flow())
        await run.result()
        assert calls == ["once"] + [failing.name] * 5
        assert [entry.name for entry in (await env.engine.handle(run.id).history()).journal] == ["once", failing.name]


async def test_outside_a_workflow_a_step_is_the_plain_function() -> None:
    @step(retry=QUICK)
    async def double(n: int) -> int:
        return n * 2

    @step
    def triple(n: int) -> int:
        return n * 3

    assert await double(2) == 4
    assert await triple(2) == 6
    assert list(await asyncio.gather(double(1), triple(1))) == [2, 3]


async def test_a_step_inside_a_step_is_the_plain_function() -> None:
    @step
    async def inner() -> int:
        return 1

    @step
    async def outer() -> int:
        return await inner() + 1

    @workflow
    async def flow() -> int:
        return await outer()

    async with Environment([flow]) as env:
        run = await env.engine.start(flow())
        assert await run.result() == 2
        assert len((await env.engine.handle(run.id).history()).journal) == 1


async def test_a_call_is_awaited_once() -> None:
    @step
    async def work() -> int:
        return 1

    @workflow
    async def flow() -> str:
        call = work()
        await call
        try:
            await call
        except Misuse as error:
            return str(error)
        return ""

    async with Environment([flow]) as env:
        assert "was awaited before; call the step again" in await env.engine.run(flow())


def test_a_call_that_is_never_awaited_warns() -> None:
    @step
    async def work() -> int:
        return 1

    with pytest.warns(RuntimeWarning, match="work' was never awaited"):
        work.__call__()


def test_a_call_of_the_wrong_shape_fails_where_it_is_written() -> None:
    @step
    async def work(a: int, *, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match=r"work'\(a: 'int', \*, b: 'int'\) -> 'int': missing a required .*'b'"):
        work(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        work(1, b=2, c=3)  # type: ignore[call-arg]
