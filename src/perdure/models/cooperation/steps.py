"""Steps of operations. Their code runs in slots, and a listener gets the outcome."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from perdure.errors import EngineBug
from perdure.models.common.interrupts import is_by_signal
from perdure.models.common.slots import Slots
from perdure.models.common.step_tasks import Carriers
from perdure.models.common.transactions import CodecFailed
from perdure.models.cooperation.executor import Executor, TryAgain, effort_of, within_bounds
from perdure.models.cooperation.failures import to_failure
from perdure.models.cooperation.live_run import Code, LiveOperation
from perdure.models.cooperation.moves import Outcome, Raised
from perdure.models.cooperation.operation_parts import OperationParts
from perdure.models.cooperation.step_execution import StepExecution, Surroundings, heartbeat
from perdure.models.cooperation.unwritten_outcomes import Landings

log = logging.getLogger("perdure")


class StepListener(Protocol):
    """Goes on with runs whose code has ended."""

    def go_on(self, live: LiveOperation) -> None:
        """Go on with a run whose code has another attempt."""
        ...

    def land(self, live: LiveOperation, code: Code, outcome: Outcome) -> None:
        """Write the outcome of a run's code."""
        ...

    def hold(self, live: LiveOperation, reason: str) -> None:
        """Hold a run, because the outcome of its code cannot be stored."""
        ...


class Steps:
    """Runs the code of steps. Code that waits for its turn or for a thread can be withdrawn: see `landings`."""

    def __init__(self, parts: OperationParts, executor: Executor, carriers: Carriers, listener: StepListener) -> None:
        limits = parts.engine.limits
        self.slots: Slots[StepExecution] = Slots(limits.steps_max, self, parts.blame)
        self.landings = Landings(self.slots)
        self._clock = parts.engine.clock
        self._codec = parts.engine.codec
        self._lookup = parts.engine.coordinator.loaded
        self._request = parts.engine.coordinator.request
        self._payload_bytes_max = limits.payload_bytes_max
        self._surroundings = Surroundings(parts.engine.clock, limits.payload_bytes_max, self)
        self._executor = executor
        self._carriers = carriers
        self._listener = listener

    def execute(self, live: LiveOperation, code: Code) -> None:
        """Run code now, or as soon as it gets a slot."""
        if self.slots.is_closed:
            return
        live.execution = execution = StepExecution(self._surroundings, live, code, effort_of(live, code))
        self.slots.take(execution)

    def start(self, execution: StepExecution) -> None:
        """Start code that has got a slot."""
        execution.coroutine, execution.context = self._executor.prepare(execution)
        self._carriers.give(execution)

    def ended(self, execution: StepExecution, outcome: Outcome | TryAgain | None, error: BaseException | None) -> None:
        """Go on with the outcome of code."""
        execution.end(is_tried_again=isinstance(outcome, TryAgain))
        self.slots.free(execution)
        if error is not None and is_by_signal(error):
            raise error  # A signal stops the process. The step runs again in the next process.
        live = execution.live
        if execution.dropped or live.is_closed or live.execution is not execution:
            return
        live.execution = None
        live.attempts = execution.attempts
        if isinstance(outcome, TryAgain):
            self._listener.go_on(live)
            return
        if outcome is None:
            if isinstance(error, CodecFailed):
                log.error("run %s cannot go on", live.id, exc_info=error)
                reason = f"the outcome of {execution.code.name!r} cannot be stored: the codec raised {error.error!r}"
                self._listener.hold(live, reason)
                return
            outcome = Raised(
                failure=to_failure(
                    error or EngineBug("a step has no outcome and no error"), live.source, execution.code.name
                )
            )
        bounded = within_bounds(live, outcome, self._payload_bytes_max)
        if live.is_stale:
            self.landings.land_later(live, partial(self._listener.land, live, execution.code, bounded))
        else:
            self._listener.land(live, execution.code, bounded)

    def beaten(self, execution: StepExecution) -> None:
        """Write the details of heartbeats."""
        run = self._lookup(execution.live.id)
        if run is not None and execution.live.execution is execution:
            op = heartbeat(execution, run.status, self._codec, self._clock.now())
            self._request(op, lambda _written, _error: execution.beat_written())

    async def drain(self, grace_s: float) -> None:
        """Start nothing new. Wait until running code has ended, but at most for the grace period."""
        for execution in self.slots:
            execution.flush()
        await self.slots.drain(grace_s)


__all__ = ["StepListener", "Steps"]
