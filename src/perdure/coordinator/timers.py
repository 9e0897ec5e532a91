"""The engine's timers: one heap, one callback of the clock for the earliest. Firing is bounded per turn of the loop."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count

from perdure.ports import Clock, TimerHandle

log = logging.getLogger("perdure")

_FIRED_PER_TURN = 256


class Timer:
    """One armed timer; cancelling it leaves a hole in the heap, unless it is the earliest."""

    __slots__ = ("_timers", "callback", "due_at")

    def __init__(self, timers: Timers, due_at: int, callback: Callable[[], object]) -> None:
        self._timers = timers
        self.due_at = due_at
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None
        self._timers.cancelled(self)


class Timers:
    """Calls back at due times, earliest first; equal times in the order they were armed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, int, Timer]] = []
        self._numbers = count()
        self._next: TimerHandle | None = None
        self._next_at = 0
        self._closed = False

    def arm(self, due_at: int, callback: Callable[[], object]) -> Timer:
        timer = Timer(self, due_at, callback)
        heapq.heappush(self._heap, (due_at, next(self._numbers), timer))
        if self._next is None or due_at < self._next_at:
            self._schedule(due_at)
        return timer

    def cancelled(self, timer: Timer) -> None:
        """The clock is not asked to call back for a timer that nobody waits for, or virtual time would go there."""
        heap = self._heap
        if not heap or heap[0][2] is not timer or self._next is None:
            return
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        if heap:
            self._schedule(heap[0][0])
        else:
            self._next.cancel()
            self._next = None

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

    def _fire(self) -> None:
        self._next = None
        now = self._clock.now()
        heap = self._heap
        fired = 0
        while heap and fired < _FIRED_PER_TURN:
            due_at, _, timer = heap[0]
            if timer.callback is not None and due_at > now:
                break
            heapq.heappop(heap)
            if (callback := timer.callback) is not None:
                timer.callback = None
                fired += 1
                try:
                    callback()
                except Exception:
                    log.exception("a timer's callback failed")
        if heap and self._next is None:
            self._schedule(heap[0][0])


async def pause(clock: Clock, seconds: float) -> None:
    """Wait on this clock."""
    over = asyncio.Event()
    timer = clock.call_at(clock.now() + round(seconds * 1_000_000), over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
