"""Live runs: the function runs that an engine has in memory. If there are too many, some runs are evicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perdure.kernel.ops import Release
from perdure.kernel.runs import Run
from perdure.models.common.eviction import Eviction
from perdure.models.common.host_parts import HostParts
from perdure.models.functions.define import Workflow
from perdure.models.functions.runner import LiveRun

# A run whose timer is due within this time is not evicted, because it would be read again at once. A graph that follows
# many edges in a row uses timers that are as short as this.
_SOON_US: Final = 1_000


class LiveRuns:
    """All runs of functions that are in memory, by id."""

    def __init__(self, parts: HostParts, workflows: Mapping[tuple[str, str], Workflow[Any, Any]]) -> None:
        self._codec = parts.codec
        self._ids = parts.ids
        self._clock = parts.clock
        self._coordinator = parts.coordinator
        self._mailbox = parts.coordinator.mailbox
        self._workflows = workflows
        limits = parts.limits
        self._bounds = limits.payload_bytes_max, limits.callbacks_max
        self._runs_max = limits.live_runs_max
        self._eviction = Eviction(limits.live_runs_max, self)
        self.leaving = self._eviction.leaving
        self.by_id: Final[dict[str, LiveRun]] = {}

    def make(self, run: Run) -> LiveRun | None:
        """Return a new live run that is not in `LiveRuns` yet. Return None if this engine does not have the run's
        workflow.
        """
        workflow = self._workflows.get((run.workflow, run.workflow_version))
        if workflow is None:
            return None
        return LiveRun(run, workflow, self._codec, self._ids, *self._bounds, self._mailbox)

    def has(self, live: LiveRun) -> bool:
        """Return whether this object still stands for the run in memory. The run may have been closed and replayed in
        the meantime.
        """
        return self.by_id.get(live.id) is live

    def enter(self, live: LiveRun) -> None:
        """Add a run to the runs in memory. If there are too many runs, others are evicted."""
        self.by_id[live.id] = live
        if len(self.by_id) > self._runs_max:
            self.evict()

    def rests(self, live: LiveRun) -> None:
        """Note that a run waits from now on. The run may be evicted when there are too many runs."""
        self._eviction.rests(live.id)

    def evict(self) -> None:
        """If there are too many runs, evict those that have waited longest. When such a run can go on, any engine that
        has its workflow can claim it.
        """
        if len(self.by_id) > self._runs_max:
            now = self._clock.now()
            for run_id in self._eviction.chosen(len(self.by_id)):
                self._coordinator.enqueue(Release(run_id=run_id, at=now, claim=self.by_id[run_id].claim))

    def may_leave(self, run_id: str) -> bool:
        """Return whether a run only waits, and waits for longer than a moment."""
        live = self.by_id.get(run_id)
        if live is None or live.gate or live.ended or live.pausing or live.fetching:
            return False
        if not (live.idle and live.has_waited):  # A run that has not begun has asked for nothing yet.
            return False
        soon = self._clock.now() + _SOON_US
        return not any(timer.due_at <= soon for timer in live.timers.values())

    def remove(self, run_id: str) -> LiveRun | None:
        """Take a run out of memory and return it."""
        if self.leaving or self._eviction.resting:
            self._eviction.forget(run_id)
        return self.by_id.pop(run_id, None)


__all__ = ["LiveRuns"]
