"""The loop of a simulation: order inside a process, chance between processes, and time that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure.testing.simulate import SimulatedLoop, Stuck

Scene = Callable[[SimulatedLoop], Coroutine[Any, Any, Any]]


def played(scene: Scene, seed: int = 1) -> Any:
    loop = SimulatedLoop(seed, turns_max=10_000)
    try:
        return loop.run_until_complete(loop.spawn("main", scene(loop)))
    finally:
        loop.run_out()
        loop.close()


def test_callbacks_of_one_process_keep_their_order() -> None:
    async def scene(loop: SimulatedLoop) -> list[int]:
        seen: list[int] = []
        for number in range(20):
            loop.call_soon(seen.append, number)
        while len(seen) < 20:
            await asyncio.sleep(0)
        return seen

    assert played(scene) == list(range(20))


def test_processes_take_turns_by_lot_and_the_same_seed_draws_the_same() -> None:
    async def scene(loop: SimulatedLoop) -> str:
        seen: list[str] = []

        async def work(name: str) -> None:
            for _ in range(10):
                seen.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*[loop.spawn(name, work(name)) for name in "abc"])
        return "".join(seen)

    orders = [played(scene, seed) for seed in range(10)]
    assert orders == [played(scene, seed) for seed in range(10)]
    assert len(set(orders)) == 10
    assert all(sorted(order) == sorted("abc" * 10) for order in orders)


def test_time_goes_on_only_when_nobody_is_ready() -> None:
    async def scene(loop: SimulatedLoop) -> list[float]:
        seen: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(loop.time())

        await asyncio.gather(*[sleep(seconds) for seconds in (86_400.0, 0.5, 3.0)])
        return seen

    assert played(scene) == [0.5, 3.0, 86_400.0]


def test_a_process_that_is_paused_does_nothing_and_then_catches_up() -> None:
    async def scene(loop: SimulatedLoop) -> list[float]:
        seen: list[float] = []

        async def tick() -> None:
            for _ in range(4):
                await asyncio.sleep(1)
                seen.append(loop.time())

        ticking = loop.spawn("clock", tick())
        await asyncio.sleep(1.5)
        loop.process("clock").paused = True
        await asyncio.sleep(10)
        assert len(seen) == 1
        loop.process("clock").paused = False
        await ticking
        return seen

    assert played(scene) == [1.0, 11.5, 12.5, 13.5]


def test_what_a_task_makes_belongs_to_its_process() -> None:
    async def scene(loop: SimulatedLoop) -> list[str]:
        seen: list[str] = []

        async def inner() -> None:
            seen.append("inner")

        async def outer() -> None:
            asyncio.get_running_loop().create_task(inner())
            loop.call_later(1, seen.append, "later")

        await loop.spawn("other", outer())
        loop.process("other").paused = True
        await asyncio.sleep(5)
        return list(seen)

    assert played(scene) in ([], ["inner"])


def test_a_loop_on_which_nothing_can_happen_says_so() -> None:
    async def scene(loop: SimulatedLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing can happen"):
        played(scene)


def test_a_loop_on_which_time_stands_still_says_so() -> None:
    async def scene(loop: SimulatedLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="callbacks have run"):
        played(scene)
