"""Async steps on the process's loop: who shares a task with whom, and that nobody notices."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from perdure import Engine, Retry, current_step, step, workflow
from perdure.errors import RunFailed
from perdure.models.common.fence_check import FenceCheck
from perdure.models.common.step_tasks import Carriers
from perdure.models.functions.block_watch import culprit

colour: ContextVar[str] = ContextVar("colour", default="none")


async def run(flow: Any, *args: Any) -> Any:
    async with Engine("memory://", workflows=[flow]) as engine:
        return await engine.run(flow(*args))


async def test_a_step_that_waits_holds_up_nobody() -> None:
    order: list[str] = []
    door = asyncio.Event()

    @step
    async def wait_for_the_door() -> None:
        await door.wait()
        order.append("waited")

    @step
    async def open_the_door() -> None:
        order.append("opened")
        door.set()

    @workflow
    async def flow() -> None:
        await asyncio.gather(wait_for_the_door(), wait_for_the_door(), open_the_door())

    await run(flow)
    assert order == ["opened", "waited", "waited"]


async def test_every_step_runs_in_a_task_and_shares_it_with_no_suspended_one() -> None:
    tasks: dict[int, list[asyncio.Task[Any] | None]] = {}

    @step
    async def look(number: int, is_waiting: bool) -> None:
        tasks[number] = [asyncio.current_task()]
        if is_waiting:
            await asyncio.sleep(0)
            tasks[number].append(asyncio.current_task())

    @workflow
    async def flow() -> None:
        await asyncio.gather(*[look(number, number % 2 == 0) for number in range(6)])

    await run(flow)
    assert all(found and found[0] is not None for found in tasks.values())
    waiting = [found for number, found in tasks.items() if number % 2 == 0]
    assert all(before is after for before, after in waiting)
    assert len({id(found[0]) for found in waiting}) == len(waiting)


async def test_what_a_step_does_to_its_context_stays_with_it() -> None:
    @step
    async def paint(name: str) -> list[str]:
        before = colour.get()
        colour.set(name)
        attempt = current_step().attempt
        await asyncio.sleep(0)
        return [before, colour.get(), str(attempt)]

    @workflow
    async def flow() -> list[list[str]]:
        return list(await asyncio.gather(paint("red"), paint("blue")))

    assert await run(flow) == [["none", "red", "1"], ["none", "blue", "1"]]
    assert colour.get() == "none"


async def test_timeouts_and_task_groups_work_in_a_step_from_its_first_line() -> None:
    @step
    async def careful() -> str:
        async with asyncio.timeout(60):
            async with asyncio.TaskGroup() as group:
                first = group.create_task(asyncio.sleep(0, "a"))
                second = group.create_task(asyncio.sleep(0, "b"))
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return first.result() + second.result()
        return "too patient"

    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(careful(), careful()))

    assert await run(flow) == ["ab", "ab"]


async def test_cancelling_one_step_leaves_the_others_alone() -> None:
    ended: list[str] = []

    @step
    async def endless(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    @step
    async def short() -> str:
        await asyncio.sleep(0)
        return "short"

    @workflow
    async def flow() -> str:
        lost = asyncio.create_task(endless("lost"))
        first = await short()
        lost.cancel()
        return first + await short()

    assert await run(flow) == "shortshort"
    assert ended == ["lost"]


async def test_a_step_that_cancels_itself_fails_and_its_neighbours_do_not() -> None:
    @step(retry=Retry.never())
    async def give_up() -> None:
        raise asyncio.CancelledError

    @step
    async def go_on() -> str:
        return "went on"

    @workflow
    async def flow() -> list[str]:
        outcomes = await asyncio.gather(give_up(), go_on(), return_exceptions=True)
        return [str(outcome) for outcome in outcomes]

    cancelled, other = await run(flow)
    assert "was cancelled from inside" in cancelled
    assert other == "went on"


async def test_sys_exit_in_a_step_fails_the_run_and_not_the_process() -> None:
    @step
    async def leave() -> None:
        raise SystemExit(3)

    @workflow
    async def flow() -> None:
        await leave()

    with pytest.raises(RunFailed, match="SystemExit"):
        await run(flow)


class Parcel:
    """A step that ends at once."""

    def __init__(self, number: int, hand_over: Callable[[int], object]) -> None:
        self.number = number
        self._hand_over = hand_over
        self.context: Context | None = copy_context()
        self.coroutine: Coroutine[Any, Any, Any] | None = self._carried()
        self.task: asyncio.Future[Any] | None = None
        self.dropped = False

    @property
    def run_id(self) -> str:
        return "run"

    @property
    def label(self) -> str:
        return f"parcel {self.number}"

    async def _carried(self) -> int:
        return self.number

    def suspended(self) -> None:
        raise AssertionError("it does not wait")

    def ended(self, value: Any, error: BaseException | None) -> None:
        assert error is None
        self._hand_over(value)


class Alive:
    """An engine that is surely alive, and whose runs nobody stops."""

    def __init__(self) -> None:
        self.stopping: set[str] = set()

    def is_surely_alive(self) -> bool:
        return True

    async def check_fence(self) -> None:
        await asyncio.sleep(0)


async def test_many_steps_that_end_together_leave_turns_to_others() -> None:
    ended: list[int] = []
    seen: list[int] = []
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def look() -> None:
        seen.append(len(ended))
        if len(ended) < 1000:
            loop.call_soon(look)
        else:
            done.set()

    def hand_over(value: int) -> None:
        if not ended:
            loop.call_soon(look)
        ended.append(value)

    alive = Alive()
    carriers = Carriers(FenceCheck(alive, alive))
    for number in range(1000):
        carriers.give(Parcel(number, hand_over))
    await done.wait()
    assert ended == list(range(1000))
    assert {250, 500, 750} <= set(seen)


async def test_who_is_slow_between_two_steps_is_not_taken_for_the_first() -> None:
    said: list[str] = []
    done = asyncio.Event()

    class Slow(Alive):
        def is_surely_alive(self) -> bool:
            said.append(culprit(sys._getframe()))
            return True

    def hand_over(value: int) -> None:
        if value == 1:
            done.set()

    carriers = Carriers(FenceCheck(Slow(), Alive()))
    carriers.give(Parcel(0, hand_over))
    carriers.give(Parcel(1, hand_over))
    await done.wait()
    assert len(said) == 2
    assert all(text.startswith("code outside of any step") for text in said)


async def test_a_step_does_not_begin_whose_run_is_stopped_by_the_batch_that_proves_the_engine_alive() -> None:
    ended: list[int] = []
    parcel = Parcel(0, ended.append)
    proofs, dropped = 0, asyncio.Event()

    class Stopping(Alive):
        async def check_fence(self) -> None:
            nonlocal proofs
            proofs += 1
            if proofs == 2:  # By the next batch the effects of the first one have been performed.
                parcel.dropped = True
                self.stopping.clear()
                dropped.set()

    fence = Stopping()
    fence.stopping.add("run")
    carriers = Carriers(FenceCheck(fence, fence))
    carriers.give(parcel)
    while not (dropped.is_set() or ended):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (ended, parcel.coroutine) == ([], None)
