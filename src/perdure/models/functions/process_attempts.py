"""Attempts of steps with `process=True`, which run in worker processes (see processes.py)."""

from __future__ import annotations

import asyncio
import os
from functools import cached_property, partial
from typing import TYPE_CHECKING

from perdure.errors import Misuse, UnstorableValue
from perdure.models.common.crash_blame import Blame
from perdure.models.common.fence_check import FenceCheck, InDoubt
from perdure.models.functions.step_protocols import AttemptInFlight, StepInFlight
from perdure.values.failures import receive

if TYPE_CHECKING:
    from perdure.models.functions.processes import ProcessPool
    from perdure.models.functions.worker import Ended


class ProcessAttempts:
    """Runs attempts in worker processes. Raises Misuse if `processes_max` is less than 1."""

    def __init__(self, processes_max: int | None, payload_max: int, fence_check: FenceCheck, blame: Blame) -> None:
        if processes_max is not None and processes_max < 1:
            raise Misuse(f"processes_max is at least 1, not {processes_max}")
        self._processes_max = processes_max or os.cpu_count() or 1
        self._payload_max = payload_max
        self._fence_check = fence_check
        self._blame = blame

    @cached_property
    def pool(self) -> ProcessPool:
        """The pool of worker processes. It is created when a step first needs it, because most engines need none."""
        from perdure.models.functions.processes import ProcessPool

        return ProcessPool(self._processes_max, self._fence_check)

    def begin(self, execution: StepInFlight, pulse: AttemptInFlight) -> None:
        """Run an attempt as soon as a process is free. Raises Misuse if the step cannot be called with these arguments
        in a worker process.
        """
        from perdure.models.functions.processes import address_of
        from perdure.models.functions.worker import Job

        step, call, live = execution.step, execution.request.call, execution.live
        position = execution.request.position
        module, function = address_of(step)
        job = Job(
            module=module,
            function=function,
            name=step.name,
            input=step.signature.write(call.args, call.kwargs, self._payload_max),
            run_id=live.id,
            position=position,
            key=live.key_of(position),
            attempt=execution.attempt,
            details=execution.details,
            payload_max=self._payload_max,
        )
        task = execution.task = self.pool.submit(job, _Listener(execution, pulse, self._blame))
        task.add_done_callback(partial(_ended, execution))

    def close(self) -> None:
        """End all processes."""
        if "pool" in self.__dict__:
            self.pool.close()


class _Listener:
    """Passes the messages of an attempt in a worker process to the engine's parts."""

    def __init__(self, execution: StepInFlight, pulse: AttemptInFlight, blame: Blame) -> None:
        self._execution = execution
        self._pulse = pulse
        self._blame = blame
        self.beat = pulse.receive
        self.append = pulse.relay

    def began(self) -> None:
        # The attempt is running already. It is in another process, so it can hardly harm this process before the run is
        # counted as executing.
        execution = self._execution
        if execution.pulse is self._pulse:
            self._blame.enter(execution.live.id, execution, lambda: None)
        execution.began(self._pulse)


def _ended(execution: StepInFlight, future: asyncio.Future[Ended]) -> None:
    if execution.task is not future:
        return  # The attempt's time was up.
    if future.cancelled():
        execution.ended(None, asyncio.CancelledError())
        return
    if isinstance(error := future.exception(), InDoubt):
        execution.doubted()
        return
    if error is not None:
        execution.ended(None, error)
        return
    end = future.result()
    if end.details is not None and execution.pulse is not None:
        execution.pulse.newest = end.details
    if end.failure is not None:
        position = execution.request.position
        error = receive(end.failure, run_id=execution.live.id, position=position, is_final=end.is_final)
        execution.ended(None, error)
        return
    signature = execution.step.signature
    try:
        value = signature.result.read(end.result or "", signature.about_result)
    except UnstorableValue as unstorable:
        execution.ended(None, unstorable)
    else:
        execution.ended(value, None)


__all__ = ["ProcessAttempts"]
