"""Clocks: the time, and callbacks at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Protocol

ALARM_LOOKS_EVERY_US = 1_000_000


class TimerHandle(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """The time of day, the time that passes, and callbacks on the running loop. All values are in microseconds.

    Somebody may set the time of day forward or back. `call_at` follows this change, and `call_after` does not.
    """

    def now(self) -> int:
        """Return the time of day, since the epoch."""
        ...

    def monotonic(self) -> int:
        """Return a time that only grows, from an arbitrary start. Use it to measure durations in this process."""
        ...

    def call_at(self, when: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back at the time of day `when` or as soon as possible after it. It never calls back early. If somebody
        changes the time of day, the timer notices that within about a second. Cancelling the timer twice is harmless.
        """
        ...

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when this much time has passed, even if the time of day is changed. Cancelling the timer twice is
        harmless.
        """


class SystemClock:
    """The machine's clock, and the timers of the running asyncio loop."""

    def now(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> int:
        return monotonic_ns() // 1000

    def call_at(self, when: int, callback: Callable[[], object]) -> TimerHandle:
        return _Alarm(self, when, callback)

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        import asyncio

        return asyncio.get_running_loop().call_later(max(0, delay) / 1_000_000, callback)


class _Alarm:
    """A callback at a time of day. It looks at the clock once a second, because event loops only measure the time that
    passes. They do not notice a change of the clock, or that the machine was asleep.
    """

    __slots__ = ("_callback", "_clock", "_next", "_when")

    def __init__(self, clock: SystemClock, when: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._callback: Callable[[], object] | None = callback
        self._next = clock.call_after(min(when - clock.now(), ALARM_LOOKS_EVERY_US), self._look)

    def cancel(self) -> None:
        self._callback = None
        self._next.cancel()

    def _look(self) -> None:
        callback = self._callback
        if callback is None:
            return
        left = self._when - self._clock.now()
        if left > 0:
            self._next = self._clock.call_after(min(left, ALARM_LOOKS_EVERY_US), self._look)
            return
        self._callback = None
        callback()
