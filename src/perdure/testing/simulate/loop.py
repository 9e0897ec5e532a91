"""The event loop of a simulation. It has several simulated processes, virtual time, and a random order of turns.

A callback belongs to the process in whose context it was created. Callbacks and tasks that it creates belong to that
process too. The callbacks of one process keep their order, as asyncio guarantees. The order between processes is not
guaranteed.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import _set_running_loop  # pyright: ignore[reportPrivateUsage]
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from perdure.errors import InvariantViolated, Misuse

__all__ = ["Process", "SimulatedLoop", "Stuck", "process_name"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

EPOCH_US: Final = 1_893_456_000_000_000  # the first second of 2030
_TURNS_MAX: Final = 500_000

process_name: ContextVar[str] = ContextVar("process_name", default="")


class Stuck(InvariantViolated):
    """Nothing can happen any more, or callbacks run forever while no time passes."""


class Process:
    """The callbacks of one process. While it is `paused`, its callbacks and its due timers wait."""

    __slots__ = ("name", "number", "paused", "ready")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.paused = False
        self.ready: deque[asyncio.Handle] = deque()


class SimulatedLoop(asyncio.AbstractEventLoop):
    """An event loop in which the same seed gives the same order of callbacks. It has no sockets, no threads and no
    signals.

    `schedule` is a digest of the order of turns. `errors` are exceptions that no code has caught.
    """

    def __init__(self, seed: int | str, *, turns_max: int = _TURNS_MAX) -> None:
        self.now_us = 0
        self.turns = 0
        self.schedule = 0
        self.errors: list[dict[str, Any]] = []
        self._turns_max = turns_max
        self._lot = Random(f"{seed}/schedule")
        self._processes: dict[str, Process] = {}
        self._timers: list[tuple[int, int, Process, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._current = self._nobody = self.process("")
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False
        self._running = False

    # Processes.

    def process(self, name: str) -> Process:
        """Return the process of this name. If it does not exist, create it."""
        known = self._processes.get(name)
        if known is None:
            known = self._processes[name] = Process(name, len(self._processes))
        return known

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Create a task of this process."""
        context = copy_context()
        context.run(process_name.set, name)
        return self.create_task(coroutine, name=name, context=context)

    def end(self, name: str) -> None:
        """Drop all callbacks of a process. Its code never runs again."""
        self.process(name).ready.clear()
        self._timers = [entry for entry in self._timers if entry[2].name != name]
        heapq.heapify(self._timers)

    def _of(self, context: Context | None) -> Process:
        name = process_name.get() if context is None else context.get(process_name, "")
        return self.process(name) if name else self._current

    # Running.

    def run_until_complete(self, future: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run until a coroutine or future is done, and return its result. Raises Stuck."""
        if self._running or self._closed:
            raise Misuse("this loop runs already, or is closed")
        done: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
        self._running = True
        _set_running_loop(self)
        try:
            while not done.done():
                self._turn()
        finally:
            _set_running_loop(None)
            self._running = False
        return done.result()

    def run_out(self) -> None:
        """Cancel all tasks, and run callbacks until no callback is ready. No time passes."""
        for process in self._processes.values():
            process.paused = False
        self._turns_max = self.turns + _TURNS_MAX
        _set_running_loop(self)
        try:
            for _ in range(2):
                for task in list(self._tasks):
                    task.cancel()
                while any(process.ready for process in self._processes.values()):
                    self._turn()
        finally:
            _set_running_loop(None)

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > self._turns_max:
            raise Stuck(f"{self._turns_max} callbacks have run, and it is only {self.now_us / 1e6:.3f} s")
        able = [process for process in self._processes.values() if process.ready and not process.paused]
        if not able:
            self._go_on()
            return
        process = able[0] if len(able) == 1 else able[int(self._lot.random() * len(able))]
        self.schedule = (self.schedule * 31 + process.number) & 0xFFFF_FFFF
        handle = process.ready.popleft()
        if not handle.cancelled():
            self._current = process
            handle._run()  # pyright: ignore[reportPrivateUsage]
            self._current = self._nobody

    def _go_on(self) -> None:
        """Let time pass until the next timer is due."""
        timers = self._timers
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing can happen any more: nobody waits for a timer")
        self.now_us = max(self.now_us, timers[0][0])
        while timers and timers[0][0] <= self.now_us:
            _, _, process, handle = heapq.heappop(timers)
            process.ready.append(handle)

    # Methods that asyncio calls.

    def time(self) -> float:
        return self.now_us / 1_000_000

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._of(context).ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at_us(self.now_us + round(delay * 1_000_000), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self._call_at_us(round(when * 1_000_000), callback, *args, context=context)

    def _call_at_us(
        self, when: int, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when / 1_000_000, callback, args, self, context)
        heapq.heappush(self._timers, (max(when, self.now_us), next(self._numbers), self._of(context), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing, because a cancelled timer stays in the queue and is skipped."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Drop all remaining callbacks. Idempotent."""
        self._closed = True
        self._timers.clear()
        for process in self._processes.values():
            process.ready.clear()


class SimulatedClock:
    """The clock of engines on a SimulatedLoop. It is fast by `skew_us`, or slow if that is negative."""

    def __init__(self, loop: SimulatedLoop, skew_us: int = 0) -> None:
        self._loop = loop
        self._skew_us = skew_us

    def now(self) -> int:
        return EPOCH_US + self._loop.now_us + self._skew_us

    def monotonic(self) -> int:
        return self._loop.now_us

    def call_at(self, when: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later((when - self.now()) / 1_000_000, callback)

    def call_after(self, delay: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay / 1_000_000, callback)
