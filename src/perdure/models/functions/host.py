"""The host of functions. It keeps runs in memory, performs the kernel's decisions for them, evicts runs, and replays
runs.

Everything here happens in plain callbacks of the process's loop. Nothing is written here. The progress of runs becomes
ops for the coordinator (activations.py). A run's requests wait at its gate until these ops are committed
(commit_gate.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure.errors import Misuse
from perdure.kernel.effects import Begin, Deliver, Drop, Finish
from perdure.kernel.ops import Advance
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.runs import Run
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.crash_blame import Blame
from perdure.models.common.host_parts import HostParts
from perdure.models.common.resources import Resources
from perdure.models.functions.activations import Activations
from perdure.models.functions.answers import Answers
from perdure.models.functions.beginnings import Beginnings
from perdure.models.functions.closings import Closings
from perdure.models.functions.commit_gate import Gate
from perdure.models.functions.define import Workflow
from perdure.models.functions.executor import Executor
from perdure.models.functions.journal_reader import missing_entry
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.revival import Revival
from perdure.models.functions.steps import Steps
from perdure.models.functions.unclaimed_runs import UnclaimedRuns
from perdure.ports import Journal


class FunctionHost:
    """All function runs that this engine has in memory."""

    def __init__(
        self,
        parts: HostParts,
        *,
        workflows: Mapping[tuple[str, str], Workflow[Any, Any]],
        resources: Resources,
    ) -> None:
        if parts.limits.steps_max < 1:
            raise Misuse(f"steps_max is at least 1, not {parts.limits.steps_max}")
        self._clock = parts.clock
        self._departures = parts.departures
        self._background = BackgroundTasks()
        self._blame = Blame(parts.clock, parts.coordinator)
        self._runs = LiveRuns(parts, workflows)
        self._live = self._runs.by_id
        self._activations = Activations(parts, self._runs, self._blame)
        self._executor = Executor(parts, resources, self._blame, self._background)
        self._steps = Steps(parts, self._executor, self._activations, self._blame, self._background)
        self._slots = self._steps.slots
        self._answers = Answers(parts, self._runs, self._activations, self._slots, self._background)
        self._gate = Gate(parts, self._runs, self._activations, self._steps, self._answers)
        self._revival = Revival(parts, self._runs, self._activations, self._steps, self._answers, self._gate)
        self._beginnings = Beginnings(parts.clock, self._activations, self._gate)
        self._unclaimed_runs = UnclaimedRuns(parts.clock, self._runs)
        self.awaiting = self._answers.awaiting
        self.closings = Closings()
        self.awaiting = self._answers.awaiting
        self.proceed = self._gate.proceed
        self.forgo = self._unclaimed_runs.forgo

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads in which plain functions run."""
        return self._executor.threads.threads

    @property
    def steps_running(self) -> int:
        """The number of steps whose body runs now. Steps that pause between two attempts or wait for their turn do not
        count."""
        return len(self._slots)

    @property
    def steps_queued(self) -> int:
        """The number of steps that wait for their turn."""
        return len(self._slots.queued)

    @property
    def busy(self) -> bool:
        """Whether work is going on that does not depend on a timer: replays, background tasks, first activations."""
        return bool(self._revival or self._background or self._beginnings.open)

    @property
    def reading(self) -> int:
        """The number of runs that are being read or replayed to come back into memory."""
        return len(self._revival)

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def perform(self, effect: Begin | Deliver | Drop | Finish) -> None:
        """Perform an effect of a decision that is now committed."""
        match effect:
            case Begin():
                self._begin(effect.run, effect.input, is_ahead=effect.is_ahead)
            case Finish():
                self._close(effect.run.id)
            case Deliver():
                if (live := self._live.get(effect.run_id)) is not None:
                    self._answers.deliver(live, effect)
                else:
                    self._revival.deliver(effect)
            case Drop():
                self._drop(effect.run_id)

    async def drain(self, grace_s: float) -> None:
        """Start nothing new. Wait until the running steps have ended, at most for the grace period."""
        await self._slots.drain(grace_s)
        for live in self._live.values():
            for execution in live.running.values():
                execution.flush()

    def closing(self) -> Pieces[None]:
        """Close every run in memory, in pieces. This is the first part of `close`. Afterwards `closings` has the
        remaining pieces.
        """
        self._slots.is_closed = True
        for start, part in parts([*self._live, *self._revival.waking]):
            if start:
                yield
            for run_id in part:
                self._close(run_id)

    def close(self) -> None:
        """Close every run in memory. Writes nothing."""
        at_once(self.closing())
        self.closings.finish()
        self._unclaimed_runs.close()
        self._background.close()
        self._revival.close()
        self._executor.close()

    # Loading and starting runs.

    def prepare(self, run: Run, journal: Journal) -> Advance | None:
        """Let a run go on before an engine has claimed it. Returns the advance, which is committed together with the
        claim. Returns None if the run must be claimed first. See unclaimed_runs.py.
        """
        if self._slots.is_closed or run.model == "operation" or missing_entry(journal.entries) is not None:
            return None
        return self._unclaimed_runs.prepare(run, journal)

    def _begin(self, run: Run, input: str | None, *, is_ahead: bool) -> None:
        if run.id in self._live or run.id in self._revival.waking:
            self._close(run.id)  # The run begins again, as another call or to be rolled back.
        if is_ahead and not self._slots.is_closed and (adopted := self._unclaimed_runs.adopt(run)) is not None:
            live, timers = adopted
            self._blame.forget(run.id)  # The run has made progress.
            self._gate.arm(live, timers)
            self._runs.enter(live)
            return
        if self._unclaimed_runs.runs:
            self._unclaimed_runs.forgo(run.id)
        if input is None:
            self._revival.wake(run)
            return
        if (created := self._activations.made(run)) is not None:
            self._runs.enter(created)
            self._activations.guarded(created, self._beginnings.take, run, input)

    # Dropping runs.

    def _drop(self, run_id: str) -> None:
        """Close a run that no longer belongs to this engine. If the run has a timer, report the time at which the run
        goes on by itself.
        """
        live = self._live.get(run_id)
        due_at: int | None = None
        if live is not None and (live.gate or live.fetching):
            # The run made progress that will not be committed. It can repeat this progress at once.
            due_at = self._clock.now()
        elif live is not None:
            due_at = min((timer.due_at for timer in live.timers.values()), default=None)
        self._close(run_id)
        self._departures.left(run_id, due_at)

    def _close(self, run_id: str) -> None:
        self._blame.forget(run_id)
        live = self._runs.remove(run_id)
        if self._revival.waking:
            live = self._revival.forget(run_id) or live
        if live is None:
            return
        for position in list(live.running):
            self._steps.stop(live, position)
        self.closings.begin(run_id, live.close_in_pieces())


__all__ = ["FunctionHost"]
