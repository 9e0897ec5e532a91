"""What time it is, and callbacks at a time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns
from typing import Protocol

ALARM_LOOKS_EVERY_US = 1_000_000


class TimerHandle(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """What time it is, how much time passes, and callbacks on the running loop. All in microseconds.

    The time of day may be set, ahead and back. `call_at` follows it; `call_after` does not.
    """

    def now(self) -> int:
        """Return the time of day, since the epoch."""
        ...

    def monotonic(self) -> int:
        """Return a time that only grows, from any beginning: to measure how long something takes in this process."""
        ...

    def call_at(self, when: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when it is `when`, or as soon after as possible, and never early. If the time of day is set, ahead
        or back, that is noticed within a second or so. Cancel is idempotent."""
        ...

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when this much time has passed, whatever the time of day is then. Cancel is idempotent."""


class SystemClock:
    """The machine's clock and the running asyncio loop."""

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
    """A callback at a time of day. It looks at the clock once a second, since loops only count time: they do not notice
    that a clock was set, or that the machine was asleep."""

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
