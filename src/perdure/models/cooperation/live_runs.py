"""Live runs: the runs of operations that an engine has in memory. If there are too many, some runs are evicted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.kernel.ops import Release
from perdure.kernel.status import Status
from perdure.models.common.eviction import Eviction
from perdure.models.common.host_parts import HostParts
from perdure.models.cooperation.live_run import LiveOperation


class LiveRuns:
    """All runs of operations that are in memory, by id. `expected` are new runs that are being committed."""

    def __init__(self, parts: HostParts) -> None:
        self.by_id: Final[dict[str, LiveOperation]] = {}
        self.expected: Final[dict[str, LiveOperation]] = {}
        self._clock = parts.clock
        self._enqueue = parts.coordinator.enqueue
        self._lookup = parts.coordinator.loaded
        self._runs_max = parts.limits.live_runs_max
        self._eviction = Eviction(parts.limits.live_runs_max, self)
        self.rests = self._eviction.rests
        self.stays = self._eviction.stays

    def expect(self, began: Iterable[LiveOperation]) -> None:
        """Keep new runs that are about to be committed. This engine begins them after the commit."""
        for live in began:
            self.expected[live.id] = live

    def evict(self) -> None:
        """If too many runs are in memory, release waiting runs. An engine that can go on with a released run claims
        it.
        """
        if len(self.by_id) > self._runs_max:
            for run_id in self._eviction.chosen(len(self.by_id)):
                self._enqueue(Release(run_id=run_id, at=self._clock.now(), claim=self.by_id[run_id].claim))

    def may_leave(self, run_id: str) -> bool:
        """Return whether a run only waits."""
        live, run = self.by_id.get(run_id), self._lookup(run_id)
        if live is None or run is None or live.is_busy or live.is_stale:
            return False
        return run.status is Status.SUSPENDED

    def remove(self, run_id: str) -> LiveOperation | None:
        """Remove a run from memory, and return it. Return None if it was not in memory."""
        self._eviction.forget(run_id)
        return self.by_id.pop(run_id, None)


__all__ = ["LiveRuns"]
