"""Which code of operations runs now, which waits for its turn, and what has ended but is not written yet."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from perdure.models.common.blame import Blame
from perdure.models.cooperation.execution import StepExecution
from perdure.models.cooperation.live import LiveOperation

log = logging.getLogger("perdure")


class Slots:
    """At most `steps_max` executions run at once; `start` begins one."""

    def __init__(self, steps_max: int, start: Callable[[StepExecution], None], blame: Blame) -> None:
        self._steps_max = steps_max
        self._start = start
        self._blame = blame
        self._active: set[StepExecution] = set()
        self._queued: OrderedDict[StepExecution, None] = OrderedDict()
        self._landing: set[LiveOperation] = set()
        self._drained = asyncio.Event()
        self.is_closed = False  # Nothing new is started.

    def __len__(self) -> int:
        """How many run now."""
        return len(self._active)

    def take(self, execution: StepExecution) -> None:
        """Have code run as soon as there is room."""
        if len(self._active) >= self._steps_max:
            self._queued[execution] = None
            self._blame.rest(execution.run_id)
        else:
            self._begin(execution)

    def _begin(self, execution: StepExecution) -> None:
        self._active.add(execution)
        if self._blame.watched:
            self._blame.enter(execution.run_id, execution, partial(self._start_counted, execution))
        else:
            self._start(execution)

    def _start_counted(self, execution: StepExecution) -> None:
        """The run is counted as executing, which may have taken a commit."""
        if execution.dropped:
            return
        if self.is_closed:
            self.free(execution)
        else:
            self._start(execution)

    def free(self, execution: StepExecution) -> None:
        """It has ended, or is never to begin."""
        self._active.discard(execution)
        if self._queued:
            self._queued.pop(execution, None)
        if self._blame.watched:
            self._blame.leave(execution.run_id, execution)
        while self._queued and len(self._active) < self._steps_max:
            waiting = self._queued.popitem(last=False)[0]
            if not waiting.dropped and not self.is_closed:
                self._begin(waiting)
        if self.is_closed:
            self._check()

    def withdraw(self, live: LiveOperation) -> None:
        """A run that is asked to give up begins no step: what waits for its turn, or for a thread, never gets it."""
        execution: StepExecution | None = live.execution
        if execution is not None and execution.is_forward and execution.withdraw():
            live.execution = None
            self.free(execution)

    def land_later(self, live: LiveOperation, landing: Callable[[], None]) -> None:
        """Have something written once the run has been read anew: what is asked of it decides what comes next."""
        live.landing = landing
        self._landing.add(live)

    def land(self, live: LiveOperation) -> bool:
        """Write what was to be written later; whether there was something."""
        landing, live.landing = live.landing, None
        self._landing.discard(live)
        if landing is not None:
            landing()
        self._check()
        return landing is not None

    def forget(self, live: LiveOperation) -> None:
        """The run is closed."""
        live.landing = None
        self._landing.discard(live)
        if (execution := live.execution) is not None:
            live.execution = None
            execution.drop()
            self.free(execution)

    async def drain(self, grace_s: float) -> None:
        """Start nothing new; wait until the code that runs has ended, or for the grace period."""
        self.is_closed = True
        for execution in self._active:
            execution.flush()
        if self._active or self._landing:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), grace_s)
            except TimeoutError:
                log.warning("%d steps did not end within %s s and will run again", len(self._active), grace_s)

    def _check(self) -> None:
        """Say that all has ended, if it has and nothing new is started."""
        if self.is_closed and not self._active and not self._landing:
            self._drained.set()
