"""Virtual time: a clock that stands still until it is moved, and a pilot that moves the clock when nothing else
happens.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import count

from perdure.errors import Misuse, NotInStep
from perdure.models.functions.context import current_step
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.times import from_datetime, to_datetime

__all__ = ["Pilot", "VirtualClock", "VirtualTimer", "release"]

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)

# Code that can go on needs a few turns of the event loop to reach its next call of the engine. If nothing calls the
# engine, its store or its clock for this many turns, the clock assumes that everything waits.
_CALM_TURNS = 25
_PATIENCE_S = 0.05
_JUMPS_MAX = 10_000


class VirtualTimer:
    """A callback at a point of virtual time. Cancelling it twice is harmless."""

    __slots__ = ("_callback", "_changed", "when")

    def __init__(self, when: int, callback: Callable[[], object], changed: Callable[[], object]) -> None:
        self.when = when
        self._callback: Callable[[], object] | None = callback
        self._changed = changed

    @property
    def cancelled(self) -> bool:
        return self._callback is None

    def cancel(self) -> None:
        self._callback = None
        self._changed()

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


_JUMP_MAX_S = 250_000_000_000  # almost the longest time that a datetime can represent


@checked
class VirtualClock:
    """The engine's clock in tests. By default it starts at the first second of 2030.

    `set_ahead` and `set_back` change the time of day without letting time pass. In production, a time server does that.
    It also happens on a machine that wakes up after it was suspended. `changed` is called whenever a timer is added or
    removed.
    """

    def __init__(self, start: datetime = EPOCH, changed: Callable[[], object] = lambda: None) -> None:
        self.changed = changed
        self._now = from_datetime(start)
        self._passed = 0
        self._timers: list[tuple[int, int, VirtualTimer]] = []  # by the time of day
        self._lapses: list[tuple[int, int, VirtualTimer]] = []  # by the time that has passed
        self._numbers = count()
        self._sleeping_steps = 0

    def now(self) -> int:
        return self._now

    @property
    def time(self) -> datetime:
        """The current virtual time as a datetime."""
        return to_datetime(self._now)

    def monotonic(self) -> int:
        return self._passed

    def call_at(self, when: int, callback: Callable[[], object]) -> VirtualTimer:
        return self._add(self._timers, when, self._now, callback)

    def call_after(self, delay: int, callback: Callable[[], object]) -> VirtualTimer:
        return self._add(self._lapses, self._passed + delay, self._passed, callback)

    def _add(
        self, timers: list[tuple[int, int, VirtualTimer]], when: int, now: int, callback: Callable[[], object]
    ) -> VirtualTimer:
        timer = VirtualTimer(when, callback, self._timer_changed)
        if when <= now:
            asyncio.get_running_loop().call_soon(timer.fire)
        else:
            heapq.heappush(timers, (when, next(self._numbers), timer))
        self.changed()
        return timer

    async def sleep(self, duration: Duration) -> None:
        """Sleep in virtual time, in a test or in a step's body. A number means seconds.

        While a step sleeps like this, the clock may jump. While a step does anything else, the clock stands still.
        """
        if (delay := _microseconds(duration)) > 0:
            await self._sleep(self.call_after, delay)

    async def sleep_until(self, when: int | datetime) -> None:
        """Sleep until a point in time. A number means microseconds since the epoch. If the time is in the past, this
        returns at once.
        """
        due = from_datetime(when) if isinstance(when, datetime) else when
        if due > self._now:
            await self._sleep(self.call_at, due)

    async def _sleep(self, call: Callable[[int, Callable[[], object]], VirtualTimer], when: int) -> None:
        is_step = False
        with suppress(NotInStep):
            is_step = bool(current_step())
        reached = asyncio.Event()
        timer = call(when, reached.set)
        try:
            with self.step_waits() if is_step else nullcontext():
                await reached.wait()
        finally:
            timer.cancel()

    @contextmanager
    def step_waits(self) -> Generator[None]:
        """Let the clock jump while a step is in this block.

        In this block the step only waits for a test or for virtual time.
        """
        self._sleeping_steps += 1
        self.changed()
        try:
            yield
        finally:
            self._sleeping_steps -= 1

    @property
    def sleeping_steps(self) -> int:
        """The number of steps that only wait for virtual time."""
        return self._sleeping_steps

    @property
    def next_at(self) -> int | None:
        """The time of day at which the next timer is due. None if there is no timer."""
        found = self._first()
        return None if found is None else found[0]

    def _first(self) -> tuple[int, int, list[tuple[int, int, VirtualTimer]]] | None:
        """Return the time of day at which the next timer is due, the timer's number, and its queue."""
        found: list[tuple[int, int, list[tuple[int, int, VirtualTimer]]]] = []
        for timers, ahead in ((self._timers, 0), (self._lapses, self._now - self._passed)):
            while timers and timers[0][2].cancelled:
                heapq.heappop(timers)
            if timers:
                found.append((timers[0][0] + ahead, timers[0][1], timers))
        return min(found, key=lambda one: one[:2], default=None)

    def move_to(self, when: int) -> None:
        """Let time pass until `when`. Timers that are due in this time fire, the earliest first."""
        if when < self._now:
            raise Misuse(
                f"virtual time is {self.time} and does not pass back to {to_datetime(when)}; to set the clock back, "
                "call set_back"
            )
        self._passed += when - self._now
        self._now = when
        self._fire()

    def set_ahead(self, duration: Duration) -> None:
        """Set the time of day forward without letting time pass. A number means seconds. Timers that are due at the new
        time fire.
        """
        self._now += _microseconds(duration)
        self._fire()
        self.changed()

    def set_back(self, duration: Duration) -> None:
        """Set the time of day back without letting time pass. A number means seconds."""
        self._now -= _microseconds(duration)
        self.changed()

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        while (found := self._first()) is not None and found[0] <= self._now:
            # Each timer has a callback of its own, so that an exception in one callback does not affect the others.
            loop.call_soon(heapq.heappop(found[2])[2].fire)

    def _timer_changed(self) -> None:
        self.changed()


def _microseconds(duration: Duration) -> int:
    seconds = span_of(duration, "a duration").total_seconds()
    if abs(seconds) > _JUMP_MAX_S:
        raise Misuse(f"time does not jump by more than {_JUMP_MAX_S} s, not by {seconds} s")
    return round(seconds * 1_000_000)


class Pilot:
    """Moves a VirtualClock to its next timer when only the passing of time can cause further work.

    `is_quiet` returns whether no work is going on. `in_flight` returns the number of requests to the store. While
    something else runs, such as a step that hangs, the clock jumps only if nothing has happened for `autojump_s` of
    real time. If `autojump_s` is None, only `advance` moves the clock. The pilot does not poll while the event loop is
    busy. Whenever something happens, `touch` is called. It starts one short check.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        autojump_s: float | None,
        is_quiet: Callable[[], bool],
        in_flight: Callable[[], int],
    ) -> None:
        self.jumps = 0
        self.paused = False
        self._clock = clock
        self._autojumps = autojump_s is not None
        self._patience_s = _PATIENCE_S if autojump_s is None else autojump_s
        self._is_quiet = is_quiet
        self._in_flight = in_flight
        self._loop = asyncio.get_running_loop()
        self._turns_left = 0
        self._looking = False
        self._later: asyncio.TimerHandle | None = None
        self._closed = False
        self._target: int | None = None
        self._until_target: list[asyncio.Future[None]] = []
        self._until_quiet: list[asyncio.Future[None]] = []
        self._until_settled: list[asyncio.Future[None]] = []
        self._jumps_max = 0
        clock.changed = self.touch

    def touch(self) -> None:
        """Note that something happened. The pilot then waits again until nothing more happens."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._turns_left = _CALM_TURNS
        if not self._looking and not self._closed:
            self._looking = True
            self._loop.call_soon(self._turn)

    def close(self) -> None:
        """Stop moving the clock, and release all waiters."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        for waiting in (self._until_target, self._until_quiet, self._until_settled):
            release(waiting)

    async def quiet(self) -> None:
        """Wait until only the passing of time or a caller can cause further work."""
        await self._wait_in(self._until_quiet)

    async def settle(self) -> None:
        """Wait until all timers have fired and only a caller can cause further work.

        Raises Misuse if that is never the case.
        """
        self._jumps_max = self.jumps + _JUMPS_MAX
        await self._wait_in(self._until_settled)

    async def advance(self, microseconds: int) -> None:
        """Let this much time pass.

        At every timer in this time, wait until all work that the timer has started is done.
        """
        if self._target is not None:
            raise Misuse("the clock is being advanced already")
        self._target = self._clock.monotonic() + microseconds
        try:
            await self._wait_in(self._until_target)
        finally:
            self._target = None

    async def _wait_in(self, waiting: list[asyncio.Future[None]]) -> None:
        future = self._loop.create_future()
        waiting.append(future)
        self.touch()
        await future

    def _turn(self) -> None:
        if self._closed:
            return
        if self._turns_left:
            self._turns_left -= 1
            self._loop.call_soon(self._turn)
            return
        self._looking = False
        self._look(waited=False)

    def _look(self, *, waited: bool) -> None:
        if self._in_flight() or self.paused or self._closed:
            return  # When the request ends, `touch` is called.
        is_quiet = self._is_quiet()
        if is_quiet and self._until_quiet:
            release(self._until_quiet)
            self.touch()  # Let the waiters act before time passes.
            return
        if is_quiet or waited:
            self._go_on(is_quiet)
        if not is_quiet and not self._looking:
            self._later = self._loop.call_later(self._patience_s, lambda: self._look(waited=True))

    def _go_on(self, is_quiet: bool) -> None:
        due = self._clock.next_at
        if self._target is not None:
            target = self._clock.now() + self._target - self._clock.monotonic()
            if due is None or due > target:
                self._clock.move_to(target)
                release(self._until_target)
            else:
                self._jump(due)
        elif due is not None and self._autojumps:
            self._jump(due)
            if self._until_settled and self.jumps >= self._jumps_max:
                error = Misuse(f"nothing settled in {_JUMPS_MAX} jumps of the clock; it is {self._clock.time} now")
                release(self._until_settled, error)
        elif is_quiet:
            release(self._until_settled)

    def _jump(self, due: int) -> None:
        self.jumps += 1
        self._clock.move_to(due)
        self.touch()


def release(waiting: list[asyncio.Future[None]], error: Exception | None = None) -> None:
    """Let all waiters go on. If an error is given, they raise it."""
    for future in waiting:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    waiting.clear()
