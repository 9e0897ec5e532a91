"""What asyncio offers works in workflow code, and asks for the same in the same places each time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.models.functions.loop import running_loop
from tests.functions.loop_driver import Driver, step


def test_gather_keeps_the_order_of_its_arguments() -> None:
    async def program() -> list[Any]:
        return list(await asyncio.gather(step("a"), step("b"), step("c"), return_exceptions=True))

    with Driver(program) as run:
        run.complete("c", 3)
        run.complete("a", 1)
        run.complete("b", error=KeyError("b"))
        assert repr(run.result) == "[1, KeyError('b'), 3]"


def test_a_task_group_waits_for_all() -> None:
    async def program() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step(name)) for name in "ab"]
        return [task.result() for task in tasks]

    with Driver(program) as run:
        run.complete("b", 2)
        assert run.last.end is None
        run.complete("a", 1)
        assert run.result == [1, 2]


@pytest.mark.parametrize(
    ("return_when", "order", "done"),
    [
        (asyncio.FIRST_COMPLETED, ["c"], ["3"]),
        (asyncio.FIRST_EXCEPTION, ["a", "b!"], ["1", "2"]),
        (asyncio.ALL_COMPLETED, ["c", "b", "d", "a"], ["1", "2", "3", "4"]),
    ],
)
def test_wait_returns_sets_in_the_order_of_creation(return_when: str, order: list[str], done: list[str]) -> None:
    async def program() -> tuple[list[str], list[str]]:
        tasks = [asyncio.create_task(step(name)) for name in "abcd"]
        done, pending = await asyncio.wait(reversed(tasks), return_when=return_when)
        return [task.get_name() for task in done], [task.get_name() for task in pending]

    with Driver(program) as run:
        for name in order:
            run.complete(name.rstrip("!"), error=KeyError() if name.endswith("!") else None)
        assert run.result == (done, [name for name in "1234" if name not in done])


def test_wait_with_a_timeout_leaves_the_rest_pending() -> None:
    async def program() -> tuple[int, int]:
        tasks = [asyncio.create_task(step(name)) for name in "ab"]
        done, pending = await asyncio.wait(tasks, timeout=5)
        return len(done), len(pending)

    with Driver(program) as run:
        run.complete("a")
        (timer,) = run.loop.outstanding_timers
        run.fire(timer.position)
        assert run.result == (1, 1)


def test_as_completed_makes_its_tasks_in_order_and_drops_duplicates() -> None:
    async def program() -> list[Any]:
        again = asyncio.ensure_future(step("again"))
        steps = [step(f"s{number}") for number in range(20)]
        return [await one for one in asyncio.as_completed([again, *steps, again])]

    with Driver(program) as run:
        assert run.waiting == {"1.1": "again"} | {f"{2 + number}.1": f"s{number}" for number in range(20)}
        order = ["s7", "s0", "again", *(f"s{number}" for number in range(1, 20) if number != 7)]
        for name in order:
            run.complete(name, name)
        assert run.result == order


def test_as_completed_gives_up_after_its_timeout() -> None:
    async def program() -> list[str]:
        seen = []
        for one in asyncio.as_completed([step("a"), step("b")], timeout=5):
            try:
                seen.append(await one)
            except TimeoutError:
                seen.append("late")
        return seen

    with Driver(program) as run:
        run.complete("b", "b")
        (timer,) = run.loop.outstanding_timers
        run.fire(timer.position)
        assert run.result == ["b", "late"]


def test_as_completed_imported_before_perdure_is_ordered_too() -> None:
    program = """
from asyncio import as_completed
from tests.functions.loop_driver import Driver, step
async def program():
    for one in as_completed([step(str(n)) for n in range(50)]):
        await one
with Driver(program) as run:
    assert list(run.waiting.values()) == [str(n) for n in range(50)], run.waiting
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_asyncio_elsewhere_is_as_before() -> None:
    async def main() -> Any:
        tasks = [asyncio.ensure_future(asyncio.sleep(0, number)) for number in range(3)]
        done, _ = await asyncio.wait(tasks)
        assert type(done) is set
        assert await asyncio.wait_for(asyncio.sleep(0, 5), 60) == 5
        gathered = asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
        assert hash(gathered) == object.__hash__(gathered)
        assert list(await gathered) == [1, 2]
        return sorted([await one for one in asyncio.as_completed([asyncio.sleep(0, 1), asyncio.sleep(0, 2)])])

    assert asyncio.run(main()) == [1, 2]


def test_sets_of_gathered_futures_are_ordered() -> None:
    async def program() -> Any:
        gathered = [asyncio.gather(step(f"{name}1"), step(f"{name}2")) for name in "abcdefgh"]
        _, pending = await asyncio.wait(gathered, return_when=asyncio.FIRST_COMPLETED)
        for one in pending:
            one.cancel()
        await step("end")

    orders = []
    for _ in range(2):
        with Driver(program) as run:
            run.complete("a1")
            run.complete("a2")
            orders.append(run.last.steps_cancelled)
    assert sorted(orders[0]) == sorted(f"{number}.1" for number in range(3, 17))
    assert orders[0] == orders[1]


def test_wait_for_cancels_what_took_too_long() -> None:
    async def program() -> str:
        try:
            await asyncio.wait_for(step("slow"), 5)
        except TimeoutError:
            return f"{await step('other')}"
        return "in time"

    with Driver(program) as run:
        assert run.waiting == {"2": "slow"}, "the same in every version of Python: without a task"
        run.fire("1")
        assert run.last.steps_cancelled == ["2"]
        run.complete("other", "late")
        assert run.result == "late"


def test_wait_for_gives_the_result_and_drops_its_timer() -> None:
    async def program() -> Any:
        result = await asyncio.wait_for(step("a"), timeout=5)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(step("never"), 0)
        return result, await asyncio.wait_for(step("b"), None)

    with Driver(program) as run:
        run.complete("a", 1)
        assert run.last.timers_dropped == ["1"]
        run.complete("b", 2)
        assert run.result == (1, 2)


@pytest.mark.parametrize("in_time", [True, False])
def test_timeout_and_timeout_at(in_time: bool) -> None:
    async def program() -> str:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + 3), asyncio.timeout(60):
                await step("a")
        except TimeoutError:
            return "late"
        return "in time"

    with Driver(program) as run:
        if in_time:
            run.complete("a")
        else:
            run.fire("1")
        assert run.result == ("in time" if in_time else "late")


def test_a_timeout_may_be_rescheduled() -> None:
    async def program() -> None:
        async with asyncio.timeout(5) as timeout:
            await step("a")
            timeout.reschedule(asyncio.get_running_loop().time() + 50)
            await step("b")

    with Driver(program) as run:
        run.complete("a")
        assert run.last.timers_dropped == ["1"]
        assert [timer.position for timer in run.last.timers] == ["3"]
        run.fire("3")
        assert isinstance(run.error, TimeoutError)


def test_shield_lets_the_step_go_on() -> None:
    async def program() -> Any:
        inner = asyncio.ensure_future(step("a"))
        try:
            async with asyncio.timeout(5):
                await asyncio.shield(inner)
        except TimeoutError:
            return await inner

    with Driver(program) as run:
        (timer,) = run.last.timers
        run.fire(timer.position)
        assert not run.last.steps_cancelled
        run.complete("a", "late but there")
        assert run.result == "late but there"


def test_sleep_takes_turns() -> None:
    async def program() -> list[str]:
        order = []

        async def turn(name: str) -> None:
            for _ in range(2):
                order.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(turn("a"), turn("b"))
        await asyncio.sleep(1)
        return order

    with Driver(program) as run:
        run.fire("3")
        assert run.result == ["a", "b", "a", "b"]


def test_a_lock_is_fair() -> None:
    async def program() -> list[str]:
        lock, order = asyncio.Lock(), []

        async def hold(name: str) -> None:
            async with lock:
                await step(name)
                order.append(name)

        await asyncio.gather(*(hold(name) for name in "abc"))
        return order

    with Driver(program) as run:
        for name in "abc":
            assert list(run.waiting.values()) == [name]
            run.complete(name)
        assert run.result == ["a", "b", "c"]


def test_a_semaphore_bounds_how_many_steps_run() -> None:
    async def program() -> None:
        semaphore = asyncio.Semaphore(2)

        async def hold(name: str) -> None:
            async with semaphore:
                await step(name)

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(hold(name))

    with Driver(program) as run:
        assert list(run.waiting.values()) == ["a", "b"]
        run.complete("b")
        assert list(run.waiting.values()) == ["a", "c"]
        for name in "acd":
            run.complete(name)
        assert run.result is None


def test_event_condition_queue_and_barrier() -> None:
    async def program() -> list[Any]:
        event, condition, queue, barrier = (
            asyncio.Event(),
            asyncio.Condition(),
            asyncio.Queue[str](1),
            asyncio.Barrier(3),
        )
        seen: list[Any] = []

        async def produce() -> None:
            for name in "ab":
                await queue.put(await step(name))
            await barrier.wait()
            event.set()

        async def consume() -> None:
            for _ in range(2):
                seen.append(await queue.get())
                queue.task_done()
            async with condition:
                condition.notify_all()
            await barrier.wait()

        async def watch() -> None:
            async with condition:
                await condition.wait_for(lambda: len(seen) == 2)
            await barrier.wait()

        tasks = [asyncio.create_task(one()) for one in (watch, consume, produce)]
        await event.wait()
        await queue.join()
        await asyncio.gather(*tasks)
        return seen

    with Driver(program) as run:
        run.complete("a", "x")
        run.complete("b", "y")
        assert run.result == ["x", "y"]


def test_current_task_and_all_tasks_are_those_of_the_run() -> None:
    async def program() -> tuple[str, list[str]]:
        for name in "abc":
            asyncio.create_task(step(name), name=name)  # noqa: RUF006
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        return current.get_name(), [task.get_name() for task in asyncio.all_tasks()]

    with Driver(lambda: step("of another run"), run_id="run-2"), Driver(program) as run:
        assert run.result == ("main", ["main", "a", "b", "c"])


def test_tasks_tell_their_coroutine_and_stack() -> None:
    async def program() -> Any:
        task = asyncio.create_task(step("a"))
        await asyncio.sleep(0)
        frames = [frame.f_code.co_name for frame in task.get_stack()]
        coroutine: Any = task.get_coro()
        assert "step" in repr(task)
        return coroutine.__name__, frames

    with Driver(program) as run:
        assert run.result == ("step", ["step"])


def test_ensure_future_takes_awaitables() -> None:
    class Awaitable:
        def __await__(self) -> Any:
            return (yield from step("a").__await__())

    async def program() -> Any:
        return await asyncio.ensure_future(Awaitable())

    with Driver(program) as run:
        run.complete("a", 5)
        assert run.result == 5


def test_only_coroutines_become_tasks() -> None:
    async def program() -> None:
        asyncio.get_running_loop().create_task(5)  # type: ignore[arg-type]

    with Driver(program) as run:
        assert isinstance(run.error, TypeError)


def test_uncancel_and_cancelling_work() -> None:
    async def program() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        try:
            await step("a")
        except asyncio.CancelledError:
            assert task.cancelling() == 1
            task.uncancel()
        return f"{await step('b')}"

    with Driver(program) as run:
        assert run.waiting == {"2": "b"}
        run.complete("b", "on")
        assert run.result == "on"


# Async generators


async def numbers(log: list[str]) -> AsyncIterator[Any]:
    try:
        for number in range(3):
            yield await step(f"n{number}")
    finally:
        log.append("cleaned up")


def test_async_generators_and_comprehensions() -> None:
    log: list[str] = []

    async def program() -> list[Any]:
        return [number async for number in numbers(log)]

    with Driver(program) as run:
        for number in range(3):
            run.complete(f"n{number}", number)
        assert run.result == [0, 1, 2]
    assert log == ["cleaned up"]


def test_a_dropped_generator_is_cleaned_up_at_once() -> None:
    log: list[str] = []

    async def program() -> None:
        async for _ in numbers(log):
            break
        log.append("after the loop")
        await step("a")

    with Driver(program) as run:
        run.complete("n0")
        assert log == ["cleaned up", "after the loop"]
        assert run.waiting == {"2": "a"}


def test_a_dropped_generator_cannot_ask_for_a_step_in_its_clean_up() -> None:
    log: list[str] = []

    async def stubborn() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            try:
                await step("never")
            finally:
                log.append("refused")

    async def program() -> None:
        async for _ in stubborn():
            break
        await step("a")

    with Driver(program) as run:
        assert run.waiting == {"1": "a"}
        assert log == ["refused"]


def test_many_generators_leave_nothing_behind() -> None:
    async def one() -> AsyncIterator[int]:
        yield 1

    async def program() -> None:
        for _ in range(100):
            async for _ in one():
                pass
        await step("a")

    with Driver(program) as run:
        assert len(run.loop._generators or ()) < 20


def test_a_generator_that_the_garbage_collector_finds_waits_for_the_end() -> None:
    import gc

    log: list[str] = []

    async def program() -> None:
        generator = numbers(log)
        cycle: list[Any] = [generator]
        cycle.append(cycle)
        await anext(generator)
        del generator, cycle
        await step("a")

    gc.disable()
    try:
        with Driver(program) as run:
            run.complete("n0")
            gc.collect()
            assert log == []
            assert running_loop() is None
        assert log == ["cleaned up"]
    finally:
        gc.enable()
