"""How long runs wait for somebody to go on with them, measured from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from perdure.errors import StoreError
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import RunFilter, Store

_EVERY_S = 0.02
_UNFINISHED = (Status.CREATED, Status.RUNNING, Status.SUSPENDED)


class Takeovers:
    """Looks at a store again and again. `waited` has, for each run that somebody had to take over, for how long nobody
    could go on with it, in seconds: from the death of its owner on, or from when it was due."""

    def __init__(self, store: Store) -> None:
        self.waited: list[tuple[float, str]] = []
        self._store = store
        self._lost: dict[str, float] = {}  # engines, and since when
        self._waiting: dict[str, float] = {}  # runs, and since when
        self._hindered_until = 0.0
        self._one_at_a_time = asyncio.Lock()

    def lost(self, engine_ids: Iterable[str]) -> None:
        """These engines do nothing any more, from now on."""
        self._lost.update(dict.fromkeys(engine_ids, time.time()))

    def hindered(self) -> None:
        """Until now nobody may have been able to take anything over: what still waits counts from here."""
        self._hindered_until = time.time()
        self._waiting = dict.fromkeys(self._waiting, self._hindered_until)

    @property
    def longest(self) -> float:
        return max((seconds for seconds, _ in self.waited), default=0.0)

    @property
    def summary(self) -> str:
        middle = sorted(seconds for seconds, _ in self.waited)[len(self.waited) // 2] if self.waited else 0.0
        return (
            f"{len(self.waited)} runs taken over, after {middle:.2f} s in the middle and {self.longest:.2f} s at most"
        )

    @property
    def is_waiting(self) -> bool:
        """Whether there are runs now that wait to be taken over, as of the last look."""
        return bool(self._waiting)

    async def watch(self) -> None:
        while True:
            with suppress(StoreError):  # Then the next look tells.
                await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        async with self._one_at_a_time:
            await self._look()

    async def _look(self) -> None:
        now = time.time()
        found = {run.id: run for run in await self._store.list(RunFilter(statuses=_UNFINISHED, limit=2000))}
        orphans = {run_id: run for run_id, run in found.items() if run.owner in self._lost and run.hold is None}
        needy = {
            run_id: self._lost[run.owner or ""] for run_id, run in orphans.items() if run.status is not Status.SUSPENDED
        }
        needy |= await self._due([run for run_id, run in orphans.items() if run_id not in needy], now)
        for run_id in [run_id for run_id in self._waiting if run_id not in needy]:
            self.waited.append((now - self._waiting.pop(run_id), run_id))
        for run_id, since in needy.items():
            self._waiting.setdefault(run_id, max(since, self._hindered_until))

    async def _due(self, runs: list[Run], now: float) -> dict[str, float]:
        """Of suspended runs: those that were to go on, and since when."""
        found: dict[str, float] = {}
        owners = {run.id: run.owner or "" for run in runs}
        for run_id, one in (await self._store.load(list(owners))).items():
            times = [wait.due_at / 1_000_000 for wait in one.waits if wait.due_at is not None]
            if times and min(times) <= now:
                # It does not say when something was won, only that it was: then it counts from this look.
                found[run_id] = max(self._lost[owners[run_id]], min(times) or self._waiting.get(run_id, now))
        return found
