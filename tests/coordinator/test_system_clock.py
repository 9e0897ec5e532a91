"""The machine's clock: callbacks at a time of day notice that it was set; callbacks after a while do not care."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure.coordinator.timers import Timers, pause
from perdure.ports import SystemClock, TimerHandle
from perdure.ports import clock as clocks
from perdure.testing import VirtualClock

HOUR_US = 3_600_000_000


class Wall:
    """What the machine takes for the time of day."""

    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.us * 1000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(clocks, "time_ns", wall)
    monkeypatch.setattr(clocks, "ALARM_LOOKS_EVERY_US", 500)
    return wall


class CountingClock(SystemClock):
    """Tells how often the loop was asked for something."""

    def __init__(self) -> None:
        self.delays: list[int] = []
        self.looked = asyncio.Event()

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        self.delays.append(delay)
        self.looked.set()
        return super().call_after(delay, callback)

    async def look(self, times: int) -> None:
        """Wait until it has looked at the time so often."""
        for _ in range(times):
            self.looked.clear()
            await self.looked.wait()


async def test_a_callback_comes_when_the_clock_is_set_ahead(wall: Wall) -> None:
    clock, fired = CountingClock(), asyncio.Event()
    clock.call_at(wall.us + HOUR_US, fired.set)
    await clock.look(3)
    assert not fired.is_set()
    wall.us += HOUR_US
    await fired.wait()


async def test_a_callback_waits_when_the_clock_is_set_back(wall: Wall) -> None:
    clock, fired = CountingClock(), asyncio.Event()
    clock.call_at(wall.us + 2000, fired.set)
    wall.us -= HOUR_US
    await clock.look(10)  # In which more time has passed than it was to take.
    assert not fired.is_set()
    wall.us += HOUR_US + 2000
    await fired.wait()


async def test_a_callback_that_was_cancelled_never_comes(wall: Wall) -> None:
    clock, fired = CountingClock(), list[str]()
    alarm = clock.call_at(wall.us + HOUR_US, lambda: fired.append("cancelled"))
    await clock.look(2)
    alarm.cancel()
    alarm.cancel()
    wall.us += 2 * HOUR_US
    over = asyncio.Event()
    clock.call_at(wall.us, over.set)
    clock.call_at(wall.us - HOUR_US, lambda: fired.append("overdue"))
    await over.wait()
    await asyncio.sleep(0)
    assert fired == ["overdue"]


async def test_a_callback_after_a_while_does_not_look_at_the_time_of_day(wall: Wall) -> None:
    clock, fired = CountingClock(), asyncio.Event()
    wall.us -= HOUR_US
    clock.call_after(1000, fired.set)
    await fired.wait()
    await pause(clock, 0.001)
    assert clock.delays == [1000, 1000]
    assert clock.monotonic() <= clock.monotonic()


async def test_however_many_timers_there_are_one_callback_a_second_is_asked_for() -> None:
    clock = CountingClock()
    timers = Timers(clock)
    armed = [timers.arm(clock.now() + HOUR_US + number, lambda: None) for number in range(1000)]
    assert clock.delays == [1_000_000]
    for timer in armed:
        timer.cancel()
    timers.close()
    idle = CountingClock()
    Timers(idle)
    assert idle.delays == []  # Without timers, nobody looks at all.


async def test_timers_that_are_cancelled_take_no_room() -> None:
    clock, fired = VirtualClock(), list[str]()
    timers = Timers(clock)
    timers.arm(clock.now() + 5, lambda: fired.append("late"))
    timers.arm(clock.now() + 1, lambda: fired.append("soon"))
    for number in range(10_000):
        timers.arm(clock.now() + HOUR_US + number, lambda: fired.append("never")).cancel()
        assert len(timers._heap) <= 600
    clock.move_to(clock.now() + 10)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == ["soon", "late"]


async def test_virtual_time_passes_and_is_set() -> None:
    clock, fired = VirtualClock(), list[Any]()
    start = clock.now()
    clock.call_after(10, lambda: fired.append("after ten"))
    clock.call_at(start + 10, lambda: fired.append("at ten"))
    clock.set_back(timedelta(microseconds=5))
    assert (clock.now() - start, clock.monotonic()) == (-5, 0)
    assert clock.next_at == start + 5  # When ten have passed.
    clock.move_to(start + 5)
    await asyncio.sleep(0)
    assert (fired, clock.monotonic()) == (["after ten"], 10)
    clock.set_ahead(timedelta(microseconds=5))
    await asyncio.sleep(0)
    assert (fired, clock.monotonic()) == (["after ten", "at ten"], 10)
