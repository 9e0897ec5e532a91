"""The engine's timers. They are in one heap, and the clock calls back for the earliest timer.

The number of timers that fire is bounded per turn of the loop, and by the room in the engine's queue. Otherwise, a
hundred thousand timers that are due together would fill the queue, and nothing else could run.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from perdure.ports import Clock, TimerHandle

log = logging.getLogger("perdure")

_FIRED_PER_TURN = 64  # Each timer may run a workflow's code. Together this takes a few milliseconds.
_HOLES_MAX = 256


class Timer:
    """One armed timer. If it is cancelled, it stays in the heap as a hole, unless it is the earliest timer."""

    __slots__ = ("_timers", "callback", "due_at")

    def __init__(self, timers: Timers, due_at: int, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.due_at = due_at
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled(self)


class Timers:
    """Calls back at due times, the earliest first. Timers with equal times fire in the order in which they were armed.

    `room` returns how many timers may fire now. If it returns 0, due timers wait until `go_on` is called. `firing` is a
    context manager that is entered while timers fire.
    """

    def __init__(
        self,
        clock: Clock,
        room: Callable[[], int] | None = None,
        firing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._clock = clock
        self._room = room
        self._firing = firing
        self._is_held_up = False
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._holes = 0  # cancelled timers that are still in the heap
        self._next: TimerHandle | None = None
        self._next_at = 0
        self._closed = False

    def arm(self, due_at: int, callback: Callable[[], object]) -> Timer:
        timer = Timer(self, due_at, callback)
        heapq.heappush(self._heap, (due_at, next(self._numbers), timer))
        if (self._next is None or due_at < self._next_at) and not self._is_held_up:
            self._schedule(due_at)
        return timer

    def go_on(self) -> None:
        """If due timers have waited for room, fire them soon."""
        if self._is_held_up:
            self._is_held_up = False
            asyncio.get_running_loop().call_soon(self._fire)

    def cancelled(self, timer: Timer) -> None:
        """Remove a cancelled timer. The clock must not call back for it. Otherwise virtual time would jump to its due
        time.
        """
        self._holes += 1
        if self._holes > _HOLES_MAX and self._holes * 2 > len(self._heap):
            # Most timers of steps are cancelled long before they are due.
            self._heap = [entry for entry in self._heap if entry[2].callback is not None or entry[2] is timer]
            heapq.heapify(self._heap)
            self._holes = 1
        heap = self._heap
        if not heap or heap[0][2] is not timer or self._next is None:
            return
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._holes -= 1
        if heap:
            self._schedule(heap[0][0])
        else:
            self._unschedule()

    def after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when this many microseconds have passed, even if the time of day is changed in the meantime."""
        return self._clock.call_after(delay, lambda: None if self._closed else callback())

    def close(self) -> None:
        """Fire nothing more."""
        self._closed = True
        self._heap.clear()
        if self._next is not None:
            self._next.cancel()

    def _schedule(self, due_at: int) -> None:
        if self._closed:
            return
        if self._next is not None:
            self._next.cancel()
        self._next_at = due_at
        self._next = self._clock.call_at(due_at, self._fire)

    def _unschedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _fire(self) -> None:
        self._unschedule()
        fires_max = _FIRED_PER_TURN if self._room is None else min(_FIRED_PER_TURN, self._room())
        with self._firing():
            self._fire_due(self._clock.now(), fires_max)
        if self._heap and self._next is None and not self._is_held_up:
            self._schedule(self._heap[0][0])

    def _fire_due(self, now: int, fires_max: int) -> None:
        fired = 0
        while self._heap:
            due_at, _, timer = self._heap[0]
            if timer.callback is not None:
                if due_at > now:
                    break
                if fired >= fires_max:
                    self._is_held_up = self._room is not None and self._room() <= 0
                    break
            heapq.heappop(self._heap)
            if (callback := timer.callback) is None:
                self._holes -= 1
            else:
                timer.callback = None
                fired += 1
                try:
                    callback()
                except Exception:
                    log.exception("a timer's callback failed")


async def pause(clock: Clock, seconds: float) -> None:
    """Wait for this many seconds on this clock."""
    over = asyncio.Event()
    timer = clock.call_after(round(seconds * 1_000_000), over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
