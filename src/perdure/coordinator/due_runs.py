"""Waking runs that are due and that no engine owns. Many runs are read at once, and they go on before they are claimed.

A run that only sleeps can be replayed before this engine owns it, because workflow code has no outside effects. The
run's progress after its timer has fired is committed together with the claim. If another engine claims the run first,
the commit is refused, and the progress is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.damage import damage_to
from perdure.coordinator.listener import Background
from perdure.coordinator.timers import Timers
from perdure.kernel.ops import Advance, Wake
from perdure.kernel.rules.delivery import taken
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import Clock, Journal, LoadedRun, Store

log = logging.getLogger("perdure")

_READ_AT_ONCE: Final = 64
_WOKEN_PER_TURN: Final = 32  # Each of these runs may be replayed. Together this takes a few milliseconds.

Answered = Callable[[Any, BaseException | None], object]


class Preparer(Protocol):
    """Lets runs go on before they are claimed."""

    def prepare(self, run: Run, journal: Journal) -> Advance | None:
        """Let a run without an owner go on as far as possible before it is claimed. Return the advance to commit.
        Return None if the run must be claimed first.
        """
        ...

    def forgo(self, run_id: str) -> None:
        """Drop the progress that a run made in `prepare`, because it was not committed."""
        ...


class Waker:
    """Reads the runs that must be woken, in groups, and wakes them. A run that is requested during a read is read in
    the next group. After each group, due timers can fire that had to wait because
    too many runs were waiting to be woken.
    """

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        clock: Clock,
        timers: Timers,
        *,
        preparer: Preparer,
        tasks: Background,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._clock = clock
        self._timers = timers
        self._preparer = preparer
        self._tasks = tasks
        self._asked: deque[tuple[str, Answered]] = deque()
        self._is_reading = False
        self._unserved = 0

    @property
    def reading(self) -> int:
        """How many runs are being read, or wait to be read."""
        return self._unserved

    def wake(self, run_id: str, answered: Answered) -> None:
        """Continue a run if no engine owns it. `answered` is called in the same way as for `Coordinator.enqueue`."""
        self._asked.append((run_id, answered))
        self._unserved += 1
        if not self._is_reading:
            self._is_reading = True
            self._tasks.background(self._read_all())

    async def _read_all(self) -> None:
        try:
            while self._asked:
                group = [self._asked.popleft() for _ in range(min(_READ_AT_ONCE, len(self._asked)))]
                found = await self._read([run_id for run_id, _ in group])
                await self._wake_all(group, found)
                self._timers.go_on()
        finally:
            self._is_reading = False
            self._unserved = len(self._asked)

    async def _read(self, ids: list[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        try:
            return await self._store.load_whole(ids)
        except Exception as error:  # noqa: BLE001 - the coordinator reads the runs again, and handles the error
            log.debug("%d due runs are read one by one: %s", len(ids), error)
            return {}

    async def _wake_all(self, group: list[tuple[str, Answered]], found: dict[str, tuple[LoadedRun, Journal]]) -> None:
        loop = asyncio.get_running_loop()
        for start in range(0, len(group), _WOKEN_PER_TURN):
            woken: asyncio.Future[None] = loop.create_future()
            # This must be a plain callback and not this task, because workflow code runs on loops of its own, and a
            # loop cannot run inside a task.
            loop.call_soon(self._wake_some, group[start : start + _WOKEN_PER_TURN], found, woken)
            await woken

    def _wake_some(
        self,
        some: list[tuple[str, Answered]],
        found: dict[str, tuple[LoadedRun, Journal]],
        woken: asyncio.Future[None],
    ) -> None:
        try:
            with self._coordinator.firing():
                for run_id, answered in some:
                    self._unserved -= 1
                    self._wake_one(run_id, answered, found.get(run_id))
        finally:
            if not woken.done():
                woken.set_result(None)

    def _wake_one(self, run_id: str, answered: Answered, found: tuple[LoadedRun, Journal] | None) -> None:
        at = self._clock.now()
        if found is None or not _is_waiting(found[0]) or self._coordinator.loaded(run_id) is not None:
            self._coordinator.enqueue(Wake(run_id=run_id, at=at), answered)
            return
        loaded, journal = found
        then = (
            self._preparer.prepare(taken(loaded.run, self._coordinator.engine.id), journal)
            if not loaded.events
            else None
        )
        if then is None:
            self._coordinator.wake(Wake(run_id=run_id, at=at), loaded, answered)
            return

        def decided(reply: Any, error: BaseException | None) -> None:
            if error is not None or reply is not True:
                self._preparer.forgo(run_id)
            answered(reply, error)

        self._coordinator.wake(Wake(run_id=run_id, at=at, then=then), loaded, decided)


def _is_waiting(loaded: LoadedRun) -> bool:
    """Return whether a run is sound, waits, and has no living owner. Waking this run changes its row. If the row has
    changed after it was read, the commit is refused.
    """
    run = loaded.run
    is_free = run.owner is None or loaded.forsaken
    return is_free and run.status is Status.SUSPENDED and run.hold is None and damage_to(loaded) is None
