"""The steps of an engine's live runs. A step begins when the gate opens, is tried again when it fails, and is written
when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from perdure.kernel.failures import Failure
from perdure.kernel.ops import Advance
from perdure.kernel.rows import Staged, Wait
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.crash_blame import Blame
from perdure.models.common.host_parts import HostParts
from perdure.models.common.slots import Slots
from perdure.models.common.stored_failures import write_failure
from perdure.models.functions.activations import Activations
from perdure.models.functions.commands import StepRequest
from perdure.models.functions.executor import Executor
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.step_execution import Execution
from perdure.values.failures import to_failure


class Steps:
    """Begins and stops steps, and hands their outcomes to their runs."""

    def __init__(
        self, parts: HostParts, executor: Executor, activations: Activations, blame: Blame, background: BackgroundTasks
    ) -> None:
        self._clock = parts.clock
        self._codec = parts.codec
        self._timers = parts.timers
        self._enqueue = parts.coordinator.enqueue
        self._executor = executor
        self._activations = activations
        self._background = background
        self.slots: Slots[Execution] = Slots(parts.limits.steps_max, self, blame)

    def begin(self, live: LiveRun, request: StepRequest) -> None:
        """Run a step that a run has requested. If the step's result is staged, hand over that result instead."""
        position = request.position
        if position in live.staged:
            self._activations.guarded(live, self._take_staged, request, live.staged.pop(position))
            return
        live.running[position] = execution = Execution(self._executor, self, live, request)
        wait = live.retries.get(position) if live.retries else None
        if wait is None:
            self.slots.take(execution)
            return
        execution.resume_from(wait, self._codec)
        if wait.kind == "retry":
            self._pause(execution, wait)
        else:
            self.again(execution)

    def _take_staged(self, live: LiveRun, request: StepRequest, staged: Staged) -> None:
        self._activations.write(live, live.step_staged(request, staged, self._clock.now()))

    def start(self, execution: Execution) -> None:
        """Begin the next attempt of a step that has a slot.

        First check that the run still belongs to this engine. For async steps the carriers make this check.
        """
        step = execution.step
        if not (step.is_async or self._executor.fence_check.is_sure_of(execution.live.id, is_alive=step.transactional)):
            self._background.start(self._begin_once_proven(execution))
            return
        try:
            execution.begin()
        except Exception as error:  # noqa: BLE001 - the step could not be called, which is a failure of the step
            self._could_not_begin(execution, error)

    async def _begin_once_proven(self, execution: Execution) -> None:
        """Begin an attempt after a fence check, because this process may have been stopped for a while.

        If this engine was marked dead, the check drops its runs. The check also drops a run that is being stopped from
        outside.
        """
        await self._executor.fence_check.check(lambda: execution.dropped)
        if not execution.dropped:
            try:
                execution.begin()
            except Exception as error:  # noqa: BLE001 - as in start
                self._could_not_begin(execution, error)

    def _could_not_begin(self, execution: Execution, error: Exception) -> None:
        asyncio.get_running_loop().call_soon(self.finished, execution, None, error)

    def stop(self, live: LiveRun, position: str) -> None:
        """Stop a step whose outcome no longer matters."""
        if (execution := live.running.pop(position, None)) is not None:
            execution.drop()
            self.slots.free(execution)
        if (timer := live.timers.pop(position, None)) is not None:
            timer.cancel()

    # Notifications from running steps.

    def finished(self, execution: Execution, value: Any, error: BaseException | None) -> None:
        """Hand the outcome of a step to its run, and write the run's advance."""
        live, request = execution.live, execution.request
        self.slots.free(execution)
        unwritten = () if execution.unwritten is None else execution.discard_pending()
        if live.running.pop(request.position, None) is None or live.ended:
            return
        if live.requests.get(request.position) is not request:
            return
        try:
            if error is None and execution.step.signature.tells_staged and not execution.step.transactional:
                value = self._executor.artifacts.journaled_result(execution.stager, value)
            if execution.step.transactional and error is None:
                advance = live.step_staged(request, value, self._clock.now())
            else:
                advance = live.step_done(
                    request,
                    value,
                    error,
                    history=execution.history,
                    started_at=execution.started_at,
                    attempts=execution.attempt or 1,
                    at=self._clock.now(),
                )
        except Exception as trouble:  # noqa: BLE001 - as in Activations.guarded, inline to save a call on the hot path
            self._activations.set_aside(live, trouble)
        else:
            if (stager := execution.stager) is not None:
                execution.stager = None
                advance = self._executor.artifacts.kept(execution, stager, advance)
            if unwritten:
                advance = replace(advance, stream_items=unwritten + advance.stream_items, plain=False)
            self._activations.write(live, advance)

    def broken(self, execution: Execution, error: BaseException) -> None:
        """Hold a run, because the codec cannot encode the result of a step. The step's transaction was rolled back."""
        live = execution.live
        self.slots.free(execution)
        if live.running.pop(execution.request.position, None) is not None and not live.ended:
            self._activations.set_aside(live, error)

    def paused(self, execution: Execution) -> None:
        """Free the slot for other steps until the next attempt."""
        self.slots.pause(execution)

    def again(self, execution: Execution) -> None:
        """Run the next attempt as soon as a slot is free."""
        if not (execution.dropped or execution.live.ended or self.slots.is_closed):
            self.slots.take(execution)

    def delayed(self, execution: Execution, due_at: int, error: BaseException) -> None:
        """Make a long pause before the next attempt durable, with the attempts so far."""
        live, request = execution.live, execution.request
        self.slots.free(execution)
        if live.ended or live.requests.get(request.position) is not request:
            return
        failure = to_failure(error, history=execution.history)
        self._activations.guarded(live, self._keep, execution, "retry", failure, due_at)

    def beaten(self, execution: Execution) -> None:
        """Make the newest heartbeat details of a step durable, for its next attempt."""
        live, request = execution.live, execution.request
        if live.ended or live.requests.get(request.position) is not request:
            return
        failed = execution.history[-1:]
        failure = Failure(type=failed[0].type, message=failed[0].message, history=execution.history) if failed else None
        self._activations.guarded(live, self._keep, execution, "beat", failure, None)

    def _keep(
        self, live: LiveRun, execution: Execution, kind: str, failure: Failure | None, due_at: int | None
    ) -> None:
        """Store the state of a step between two attempts or during an attempt."""
        position = execution.request.position
        wait = Wait(
            run_id=live.id,
            position=position,
            kind=kind,
            name=execution.request.name,
            due_at=due_at,
            attempts=len(execution.history),
            failure=None if failure is None else write_failure(failure, self._codec),
            since=execution.started_at,
            details=None if execution.details is None else self._codec.encode(execution.details),
        )
        live.has_waited = True
        live.retries[position] = wait
        if kind == "retry":
            live.pausing[position] = None
            live.gate.append(lambda: self._pause(execution, wait))
        else:
            live.gate.append(execution.details_written)
        cause = "step failed" if kind == "retry" else "heartbeat"
        at, claim = live.time(self._clock.now()), live.claim
        entries = live.take_outline(at)
        self._enqueue(
            Advance(run_id=live.id, at=at, claim=claim, cause=cause, entries=entries, waits=(wait,), idle=live.idle)
        )

    def _pause(self, execution: Execution, wait: Wait) -> None:
        live = execution.live
        if not execution.dropped and not live.ended:
            live.timers[wait.position] = self._timers.arm(wait.due_at or 0, lambda: self._pause_over(execution))

    def _pause_over(self, execution: Execution) -> None:
        """End a durable pause. The run may be suspended, so its status becomes `running` before the step runs.

        The wait's row stays until the step ends, so that a crash does not lose the number of attempts.
        """
        live, position = execution.live, execution.request.position
        live.timers.pop(position, None)
        if execution.dropped or live.ended or self.slots.is_closed:
            return
        live.pausing.pop(position, None)
        live.gate.append(lambda: self.again(execution))
        at = live.time(self._clock.now())
        self._enqueue(Advance(run_id=live.id, at=at, claim=live.claim, cause="retry due"))


__all__ = ["Steps"]
