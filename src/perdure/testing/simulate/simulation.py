"""A simulation. Engines are processes of one loop, on one simulated database. They can be paused, killed and restarted.

The seed determines everything that happens. The same seed gives the same history. The traces are equal byte by byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any, TypeVar

from perdure.engine import Engine
from perdure.errors import EngineStopped, StoreError
from perdure.models.common.deployment import DEPLOYMENT
from perdure.models.cooperation.define import Operation
from perdure.models.functions.define import Workflow
from perdure.testing.control import kill
from perdure.testing.simulate.database import SimulatedDatabase
from perdure.testing.simulate.loop import SimulatedClock, SimulatedLoop, Stuck, process_name
from perdure.testing.simulate.network import Network, Weather
from perdure.testing.simulate.store import SimulatedStore
from perdure.testing.simulate.transactions import Bug

__all__ = ["Member", "Simulation"]

T = TypeVar("T")

_OPENED_AGAIN_AFTER_S = 0.5


class Simulation:
    """It has the event loop, the database and the fleet. `lot` gives random numbers to the scenario. `trace` has
    everything that happened.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        weather: Weather | None = None,
        lease_s: float = 10.0,
        bugs: Iterable[Bug] = (),
        **options: Any,
    ) -> None:
        # While the digest is unknown, an engine reads more from its store. An earlier simulation may have computed the
        # digest already. So it is computed here in any case.
        DEPLOYMENT.digest()
        self.seed = seed
        self.trace: list[str] = []
        self.loop = SimulatedLoop(seed)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
        self.clock = SimulatedClock(self.loop)
        self.lot = Random(f"{seed}/scenario")
        self.network = Network(Random(f"{seed}/network"), weather or Weather())
        self.database = SimulatedDatabase(self.network, lease_s=lease_s, bugs=frozenset(bugs), note=self.note)
        self.errors: list[str] = []  # errors that engines have logged, without errors of killed engines
        self.ended: set[str] = set()  # processes that were killed
        self.members: dict[str, Member] = {}
        self.options = options
        self._ids = Random(f"{seed}/ids")

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a scenario to its end. Raises the scenario's exception, or Stuck."""
        journalist = _Journalist(self)
        log = logging.getLogger("perdure")
        was = log.propagate
        log.addHandler(journalist)
        log.propagate = False
        try:
            result: T = self.loop.run_until_complete(self.loop.spawn("driver", scenario))
            return result
        finally:
            self._end()
            log.propagate = was
            log.removeHandler(journalist)
            self.loop.close()

    def _end(self) -> None:
        """Release everything, so that nothing depends on the time at which the garbage collector runs."""
        with suppress(Stuck):
            for member in self.members.values():
                member.kill()
            self.loop.run_out()

    def member(
        self,
        name: str,
        workflows: Iterable[Workflow[Any, Any] | Operation[Any]],
        *,
        skew_s: float = 0.0,
        **options: Any,
    ) -> Member:
        """Return a new engine of the fleet, not opened yet. Its clock is fast by `skew_s`, or slow if negative."""
        given = {"clock": SimulatedClock(self.loop, round(skew_s * 1_000_000)), **self.options, **options}
        member = self.members[name] = Member(self, name, list(workflows), given)
        return member

    def note(self, what: str) -> None:
        """Write a line of the trace."""
        name = process_name.get() or "-"
        self.trace.append(f"{self.loop.now_us / 1_000_000:11.6f} {name:9} {what}")

    def new_id(self, now: int, /) -> str:
        """Return an id that the seed determines."""
        return f"{now // 1000:012x}-{self._ids.getrandbits(48):012x}"


class Member:
    """One engine of the fleet. After each restart, it has a new process. Calls run in its process, and end with the
    process.
    """

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        workflows: list[Workflow[Any, Any] | Operation[Any]],
        options: dict[str, Any],
    ) -> None:
        self.name = name
        self.workflows = workflows
        self.lives = 0
        self.engine: Engine
        self._simulation = simulation
        self._options = options
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._calls: dict[asyncio.Future[Any], None] = {}

    @property
    def is_open(self) -> bool:
        """Whether the engine can be called. It must have been opened and not killed since then."""
        return self._is_open

    @property
    def is_paused(self) -> bool:
        return self._simulation.loop.process(self.process).paused

    @property
    def process(self) -> str:
        """The name of its process. It changes with each restart."""
        return f"{self.name}.{self.lives}"

    async def open(self) -> None:
        """Start a process and open the engine. Retry while the database cannot be reached."""
        simulation = self._simulation
        while True:
            self.lives += 1
            self.engine = Engine(
                SimulatedStore(simulation.database),
                workflows=self.workflows,
                ids=simulation.new_id,
                **self._options,
            )
            simulation.note(f"opens {self.process}")
            self._opening = simulation.loop.spawn(self.process, self.engine.open())
            try:
                await asyncio.shield(self._opening)
            except (StoreError, EngineStopped):
                await asyncio.sleep(_OPENED_AGAIN_AFTER_S)
            else:
                self._is_open = True
                return

    async def call(self, request: Callable[[Engine], Awaitable[T]]) -> T:
        """Call the engine. Raises EngineStopped if the engine is killed during the call."""
        if not self._is_open:
            raise EngineStopped(f"{self.name} is not open")
        loop = self._simulation.loop
        answer: asyncio.Future[T] = loop.create_future()
        self._calls[answer] = None

        async def ask() -> T:
            return await request(self.engine)

        def hand_over(task: asyncio.Task[T]) -> None:
            error = task.exception() if not task.cancelled() else EngineStopped("the call was cancelled")
            if answer.done():
                return
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

        task = loop.spawn(self.process, ask())
        task.add_done_callback(hand_over)
        try:
            return await answer
        finally:
            self._calls.pop(answer, None)

    def pause(self) -> None:
        """Pause its process. Its code does not run, and its heartbeats stop."""
        self._simulation.note(f"pauses {self.process}")
        self._simulation.loop.process(self.process).paused = True

    def wake(self) -> None:
        self._simulation.note(f"wakes {self.process}")
        self._simulation.loop.process(self.process).paused = False

    def kill(self) -> None:
        """Kill its process. The database still completes the requests that it has already received."""
        if not self._is_open:
            return
        self._simulation.note(f"kills {self.process}")
        self._is_open = False
        self._simulation.ended.add(self.process)
        context = copy_context()
        context.run(process_name.set, self.process)
        context.run(partial(kill, self.engine))
        # The remaining callbacks of the process only clean up.
        self._simulation.loop.process(self.process).paused = False
        for answer in self._calls:
            if not answer.done():
                answer.set_exception(EngineStopped(f"{self.name} was killed"))
        self._calls.clear()


class _Journalist(logging.Handler):
    """Writes the log messages of engines into the trace."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(logging.WARNING)
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and process_name.get() not in self._simulation.ended:
            self._simulation.errors.append(record.getMessage())
        error = f": {record.exc_info[1]!r}" if record.exc_info and record.exc_info[1] else ""
        self._simulation.note(f"{record.levelname} {record.getMessage()}{error}")
