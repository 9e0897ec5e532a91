"""The gate: a run's requests may have outside effects only after the run's earlier progress is committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from perdure.models.common.host_parts import HostParts
from perdure.models.functions.activations import Activations
from perdure.models.functions.answers import Answers
from perdure.models.functions.commands import Commands, TimerRequest
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.steps import Steps


class Gate:
    """Performs the requests of runs: begins their steps, arms their timers, and handles their other requests."""

    def __init__(
        self, parts: HostParts, runs: LiveRuns, activations: Activations, steps: Steps, answers: Answers
    ) -> None:
        self._clock = parts.clock
        self._timers = parts.timers
        self._runs = runs
        self._live = runs.by_id
        self._activations = activations
        self._steps = steps
        self._slots = steps.slots
        self._answers = answers

    def proceed(self, run_id: str) -> None:
        """The earliest pending advance of a run is now committed: perform its requests."""
        live = self._live.get(run_id)
        if live is None or not live.gate:
            return
        match live.gate.popleft():
            case Commands() as commands:
                self.release(live, commands)
            case release:
                release()
                if live.idle:
                    self._runs.rests(live)

    def release(self, live: LiveRun, commands: Commands) -> None:
        """Perform the requests of an activation whose advance is now committed."""
        if not commands.only_steps:
            for position in commands.steps_cancelled:
                self._steps.stop(live, position)
            for position in (*commands.timers_dropped, *commands.asks_withdrawn):
                if (timer := live.timers.pop(position, None)) is not None:
                    timer.cancel()
            self.arm(live, commands.timers)
            self._answers.arm(live, commands.asks)
        for request in commands.steps:
            if live.requests.get(request.position) is request and not live.ended and not self._slots.is_closed:
                self._steps.begin(live, request)
        if not commands.steps and not live.ended and live.idle:
            self._runs.rests(live)
            self._runs.evict()

    def arm(self, live: LiveRun, timers: Sequence[TimerRequest]) -> None:
        """Arm the timers that a run waits for."""
        for timer in timers:
            if live.loop.pending(timer.position) is not None and not live.ended:
                live.timers[timer.position] = self._timers.arm(timer.due_at, partial(self._due, live, timer))

    def _due(self, live: LiveRun, timer: TimerRequest) -> None:
        live.timers.pop(timer.position, None)
        if live.ended or self._slots.is_closed or live.loop.pending(timer.position) is None:
            return
        self._activations.guarded(live, self._go_on_at, timer)

    def _go_on_at(self, live: LiveRun, timer: TimerRequest) -> None:
        self._activations.write(live, live.timer_fired(timer, self._clock.now()))


__all__ = ["Gate"]
