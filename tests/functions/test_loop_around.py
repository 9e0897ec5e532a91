"""The loop of one run: what is around an activation, and what is left after it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.errors import ForbiddenInWorkflow, InvariantViolated
from perdure.models.functions.loop import WorkflowLoop, running_loop
from tests.functions.loop_driver import START, Driver, Step, step


def test_the_process_loop_is_the_running_one_before_and_after() -> None:
    seen = []

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def program() -> None:
        seen.append(asyncio.get_running_loop())
        async for _ in numbers():
            await step("a")
        raise KeyboardInterrupt

    def callback(process: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
        assert asyncio.current_task() is None
        run = Driver(program)
        assert asyncio.get_running_loop() is process
        run.complete("a")
        run.complete("a")
        assert isinstance(run.error, KeyboardInterrupt)
        assert asyncio.get_running_loop() is process
        run.loop.close()
        assert asyncio.get_running_loop() is process
        seen.append(run.loop)
        done.set_result(None)

    async def main() -> list[int]:
        process = asyncio.get_running_loop()
        done: asyncio.Future[None] = process.create_future()
        process.call_soon(callback, process, done)
        await done
        return [number async for number in numbers()]

    assert asyncio.run(main()) == [1, 2]
    assert seen[0] is seen[1]
    assert running_loop() is None


def test_without_a_process_loop_the_hooks_are_put_back() -> None:
    async def program() -> None:
        await step("a")

    before = sys.get_asyncgen_hooks()
    with Driver(program) as run:
        assert sys.get_asyncgen_hooks() == before
        run.complete("a")
    assert sys.get_asyncgen_hooks() == before


def test_generators_of_the_process_go_to_the_hooks_of_its_loop() -> None:
    """The activation leaves its own hooks in place for the next one; they must pass on what is not a workflow's."""
    cleaned = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")

    async def main() -> None:
        with Driver(lambda: step("a")):
            pass
        async for _ in numbers():
            break
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert cleaned == ["yes"]


def test_it_works_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> Any:
        done = asyncio.get_running_loop().create_future()

        def callback() -> None:
            with Driver(lambda: step("a")) as run:
                run.complete("a", 5)
                done.set_result(run.result)

        asyncio.get_running_loop().call_soon(callback)
        return await done

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == 5


def test_an_activation_inside_another_is_a_bug() -> None:
    async def outer() -> None:
        WorkflowLoop(run_id="inner").begin(lambda: step("a"), START)

    with Driver(outer) as run:
        assert isinstance(run.error, InvariantViolated)


def test_context_variables_start_afresh_and_follow_tasks() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the process's")

    async def child() -> str:
        await step("a")
        return variable.get()

    async def program() -> list[str]:
        seen = [variable.get()]
        variable.set("main")
        task = asyncio.create_task(child())
        variable.set("changed")
        other = contextvars.Context()
        seen += [await task, await asyncio.create_task(child(), context=other)]
        return [*seen, variable.get()]

    with Driver(program) as run:
        run.complete("a")
        run.complete("a")
        assert run.result == ["unset", "main", "unset", "changed"]


def test_a_future_completed_from_outside_is_refused() -> None:
    futures: list[asyncio.Future[None]] = []

    async def program() -> None:
        futures.append(asyncio.get_running_loop().create_future())
        await futures[0]

    with Driver(program), pytest.raises(ForbiddenInWorkflow, match="from outside"):
        futures[0].set_result(None)


def test_two_thousand_live_runs_stay_small() -> None:
    async def program() -> None:
        await Step("a")

    def begin(number: int) -> WorkflowLoop:
        loop = WorkflowLoop(run_id=f"run-{number}")
        loop.begin(program, START)
        return loop

    begin(0).close()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        loops = [begin(number) for number in range(2_000)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(loops) < 2_500
    for loop in loops:
        loop.close()


def test_finished_tasks_are_not_kept() -> None:
    async def program() -> None:
        for _ in range(3):
            await asyncio.gather(*(step("a") for _ in range(10)))
        await step("b")

    with Driver(program) as run:
        for _ in range(30):
            run.complete("a")
        assert run.loop.stack().count("task ") == 1
        assert not run.loop._tasks
