"""Outcomes of code that are not written yet, because the run is being read again."""

from __future__ import annotations

from collections.abc import Callable

from perdure.models.common.slots import Slots
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.step_execution import StepExecution


class Landings:
    """Writes the outcomes of code as soon as their runs may go on. Draining the host waits for these writes."""

    def __init__(self, slots: Slots[StepExecution]) -> None:
        self._slots = slots

    def withdraw(self, live: LiveOperation) -> None:
        """Keep a run that was asked to give up from beginning a step. Code that waits for its turn or for a thread
        never runs.
        """
        execution: StepExecution | None = live.execution
        if execution is not None and execution.is_forward and execution.withdraw():
            live.execution = None
            self._slots.free(execution)

    def land_later(self, live: LiveOperation, landing: Callable[[], None]) -> None:
        """Write an outcome later, once the run was read again. Requests to the run may change what comes next."""
        live.landing = landing
        self._slots.expect(live)

    def land(self, live: LiveOperation) -> bool:
        """Write the outcome that was deferred. Return whether there was a deferred outcome."""
        landing, live.landing = live.landing, None
        if landing is None:
            return False
        try:
            landing()
        finally:
            if live.landing is None:
                self._slots.written(live)
        return True

    def forget(self, live: LiveOperation) -> None:
        """Drop the outcome and the code of a run that is closed."""
        live.landing = None
        self._slots.written(live)
        if (execution := live.execution) is not None:
            live.execution = None
            execution.drop()
            self._slots.free(execution)


__all__ = ["Landings"]
