"""An engine on virtual time. A test can kill its process and start it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

from perdure.engine import Engine
from perdure.kernel.rows import Staged
from perdure.models.cooperation.define import Operation
from perdure.models.functions.define import Workflow
from perdure.ports import StepPlace, Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.clock import Pilot, VirtualClock, release
from perdure.testing.control import kill
from perdure.testing.faults import Fault, FaultyStore
from perdure.testing.invariants import check_store
from perdure.testing.proxy import StoreProxy
from perdure.values.arguments import Duration, checked, span_of

T = TypeVar("T")

# Where the data are: None for a new store in memory, a URL, or a function that makes stores on the same data.
StoreSource = None | str | Callable[[], Store]


class WatchedStore(StoreProxy):
    """Counts the requests that are under way, and reports when a request has ended."""

    def __init__(self, inner: Store, ended: Callable[[], object]) -> None:
        super().__init__(inner)
        self.in_flight = 0
        self._ended = ended
        self._until_idle: list[asyncio.Future[None]] = []

    async def idle(self) -> None:
        """Wait until no request is under way. If a request was killed together with its engine, this never returns."""
        while self.in_flight:
            future = asyncio.get_running_loop().create_future()
            self._until_idle.append(future)
            await future

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        self.in_flight += 1
        try:
            return await request
        finally:
            self.in_flight -= 1
            self._ended()
            if self._until_idle and not self.in_flight:
                release(self._until_idle)

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        # A running step is not a request to the store, because it may wait for virtual time.
        return await self.inner.transact(place, body)


@checked
class Environment:
    """`async with Environment(workflows=[checkout]) as env:` gives you `env.engine`, on the virtual clock `env.clock`.

    When everything waits, the clock jumps to the next timer. So a run that sleeps for a month ends in milliseconds. If
    a test must act before that timer, pass `autojump_s=None` and call `advance`. While a step runs, the clock jumps
    only after `autojump_s` of real time without progress. So a step that hangs times out. A step that calls `await
    resource(VirtualClock).sleep(…)` sleeps in virtual time.

    `restart` kills the engine, as a crash of its process would, and opens another engine on the same data. You can pass
    other code for it. With a `fault`, the engine dies by itself, and `survive` restarts it. All other options are
    passed to the Engine.
    """

    def __init__(
        self,
        workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None,
        store: StoreSource = None,
        *,
        clock: VirtualClock | None = None,
        autojump_s: float | None = 0.05,
        fault: Fault | None = None,
        watch: Callable[[Store], Store] | None = None,
        **options: Any,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.fault = fault
        self.engine: Engine
        self.restarts = 0
        self._workflows = list(workflows) if workflows is not None else None
        self._make = _maker(store)
        self._autojump_s = autojump_s
        self._watch = watch
        resources = {VirtualClock: lambda: self.clock, **options.pop("resources", {})}
        self._options: dict[str, Any] = {"poll_s": None, "resources": resources, **options}
        self._store: WatchedStore | None = None
        self._is_killed = False
        self._death = asyncio.Event()  # set when the fault kills the engine
        self._pilot: Pilot

    async def __aenter__(self) -> Environment:
        self._pilot = Pilot(
            self.clock,
            autojump_s=self._autojump_s,
            is_quiet=self._is_quiet,
            in_flight=lambda: self._store.in_flight if self._store is not None else 0,
        )
        try:
            await self._open()
        except BaseException:
            self._pilot.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pilot.close()
        if not self.is_dead:
            await self.engine.shutdown(grace=0)

    @property
    def is_dead(self) -> bool:
        """Whether the engine was killed, by its fault or by the test, and not restarted."""
        return self._is_killed

    def kill(self) -> None:
        """Kill the engine, as a crash of its process would. Nothing more is written, and nothing is cleaned up."""
        if not self._is_killed:
            self._is_killed = True
            kill(self.engine)

    async def death(self) -> None:
        """Wait until the fault kills the engine."""
        await self._death.wait()

    async def restart(self, workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None) -> None:
        """Kill the engine, unless it is already dead, and open another engine on the same data. No virtual time passes.

        With `workflows`, the next engine has other code, as after a deployment.
        """
        self.kill()
        if workflows is not None:
            self._workflows = list(workflows)
        self.restarts += 1
        await self._open()

    async def quiet(self) -> None:
        """Wait until only the passing of time or a caller can cause further work."""
        await self._pilot.quiet()

    async def settle(self) -> None:
        """Wait until nothing more happens. Then all timers have fired, and all work that they started is done.

        With `autojump_s=None`, no time passes, and timers do not fire. Raises Misuse if the work never ends.
        """
        await self._pilot.settle()

    async def advance(self, duration: Duration) -> None:
        """Let time pass.

        At every timer, wait until all work that the timer has started is done. A number means seconds.
        """
        await self._pilot.advance(span_of(duration, "a duration") // timedelta(microseconds=1))

    async def check(self) -> int:
        """Check everything in the store, as `check_store` does, and return the number of runs. The engine may be dead.

        No virtual time passes during the check, because a timer that fires would change the data.
        """
        self._pilot.paused = True
        store = self._make()
        try:
            await store.open()
            try:
                return await check_store(store, now=self.clock.now())
            finally:
                await store.close()
        finally:
            self._pilot.paused = False
            self._pilot.touch()

    async def survive(self, scenario: Callable[[Environment], Awaitable[T]]) -> T:
        """Run a scenario to its end. Each time the engine dies, the engine is restarted and the scenario begins again.

        So write a scenario as a program that may be started again. Call `start` with an id, and check before you act.
        """
        while True:
            running = asyncio.ensure_future(scenario(self))
            dying = asyncio.ensure_future(self._death.wait())
            try:
                await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
                if not self.is_dead:
                    await asyncio.wait(
                        {quiet := asyncio.ensure_future(self.quiet()), dying}, return_when=asyncio.FIRST_COMPLETED
                    )
                    quiet.cancel()
            finally:
                for task in (running, dying):
                    task.cancel()
                await asyncio.wait({running, dying})
            if not self.is_dead:
                return running.result()
            if not running.cancelled():
                running.exception()  # The scenario ended because its engine died.
            await self.restart()

    async def _open(self) -> None:
        self._pilot.paused = True
        self._is_killed = False
        self._death.clear()
        inner = self._make()
        if self._watch is not None:
            inner = self._watch(inner)
        if self.fault is not None:
            inner = FaultyStore(inner, self.fault, self._die)
        self._store = WatchedStore(inner, self._pilot.touch)
        self.engine = self.new_engine(self._store)
        opening = asyncio.ensure_future(self.engine.open())
        dying = asyncio.ensure_future(self._death.wait())
        try:
            await asyncio.wait({opening, dying}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            dying.cancel()
            if not opening.done():
                opening.cancel()
            await asyncio.wait({opening, dying})
            self._pilot.paused = False
            self._pilot.touch()
        if not self.is_dead:
            opening.result()
        else:
            # The engine died while it recovered the runs of the previous engine. Restart it once more.
            with suppress(BaseException):
                opening.result()

    def new_engine(self, store: Store) -> Engine:
        """Return the engine of a new process. It is not open yet. Subclasses may override this."""
        return Engine(store, workflows=self._workflows, clock=self.clock, **self._options)

    def _die(self) -> None:
        self.kill()
        self._death.set()

    def _is_quiet(self) -> bool:
        engine = self.engine
        return engine.runtime.is_between_steps and engine.runtime.steps_running <= self.clock.sleeping_steps


def _maker(source: StoreSource) -> Callable[[], Store]:
    if source is None or source == "memory://":
        database = MemoryDatabase()
        return lambda: MemoryStore(database)
    if isinstance(source, str):
        url = source
        return lambda: open_store(url)
    return source


__all__ = ["Environment", "StoreSource", "WatchedStore"]
