"""Outcomes of code that are not written yet, since the run is being read again."""

from __future__ import annotations

from collections.abc import Callable

from perdure.models.common.slots import Slots
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.step_execution import StepExecution


class Landings:
    """Writes outcomes of code as soon as their runs may go on. Draining waits for these writes."""

    def __init__(self, slots: Slots[StepExecution]) -> None:
        self._slots = slots

    def withdraw(self, live: LiveOperation) -> None:
        """Keep a run that is asked to give up from beginning a step: code that waits for its turn or a thread never
        runs."""
        execution: StepExecution | None = live.execution
        if execution is not None and execution.is_forward and execution.withdraw():
            live.execution = None
            self._slots.free(execution)

    def land_later(self, live: LiveOperation, landing: Callable[[], None]) -> None:
        """Write an outcome later, once the run was read again: requests to the run decide what comes next."""
        live.landing = landing
        self._slots.expect(live)

    def land(self, live: LiveOperation) -> bool:
        """Write the outcome that was to be written later. Return whether there was one."""
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
