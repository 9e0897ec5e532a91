"""The tasks that run async steps. A step that waits has a task of its own. A step that does not wait needs no task of
its own.

A carrier is a task that runs steps one after the other, each in its own context, as long as the steps end without
waiting. The first step that waits keeps the carrier. A new carrier takes the remaining steps. So
`asyncio.current_task()` is always a task, and no two steps share it while one of them waits. A hundred steps that do
not wait need only one task.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, Protocol

from perdure.models.common.fence_check import FenceCheck

log = logging.getLogger("perdure")

_DELIVERED_AT_ONCE_MAX: Final = 250  # outcomes in one turn of the event loop, so that other callbacks can run


class StepJob(Protocol):
    """An async step. It has its coroutine, the context for the coroutine, and, once it waits, its task."""

    coroutine: Coroutine[Any, Any, Any] | None
    context: Context | None
    task: asyncio.Future[Any] | None
    dropped: bool

    @property
    def run_id(self) -> str:
        """The run that the step belongs to."""
        ...

    @property
    def label(self) -> str:
        """The step and its run, as a text for people."""
        ...

    def suspended(self) -> None:
        """Note that the step waits for something for the first time."""

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Note that the step has ended with a value or an error. This is called in a plain callback."""


class Carriers:
    """Runs async steps.

    Before a step begins, the fence check says whether its run still belongs to this engine. If the fence check is not
    certain, the store is asked. Steps of runs that no longer belong to this engine are dropped.
    """

    def __init__(self, fence_check: FenceCheck) -> None:
        self._loop = asyncio.get_running_loop()
        self._fence_check = fence_check
        self._waiting: deque[StepJob] = deque()
        self._outcomes: deque[tuple[StepJob, Any, BaseException | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False

    def give(self, job: StepJob) -> None:
        """Run a step, beginning in the next turn of the event loop."""
        self._waiting.append(job)
        if not self._is_due:
            self._dispatch()

    def close(self) -> None:
        """Discard the steps that have not begun."""
        while self._waiting:
            self._discard(self._waiting.popleft())

    def _dispatch(self) -> None:
        self._is_due = True
        task = self._loop.create_task(self._carry(), name="perdure-steps")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self) -> None:
        self._is_due = False
        waiting = self._waiting
        while waiting:
            while waiting and not self._fence_check.is_sure_of(waiting[0].run_id):
                await self._fence_check.check(lambda: not waiting)
            if not waiting:
                return
            job = waiting.popleft()
            coroutine, context = job.coroutine, job.context
            if job.dropped:
                self._discard(job)
                continue
            assert coroutine is not None
            assert context is not None
            try:
                awaited = context.run(coroutine.send, None)
            except StopIteration as stop:
                self._put_down(job, stop.value, None)
            except BaseException as error:  # noqa: BLE001 - however it ended, that is its outcome
                self._put_down(job, None, error)
            else:
                await self._wait(job, coroutine, context, awaited)
                return

    @types.coroutine
    def _wait(
        self, job: StepJob, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: Any
    ) -> Generator[Any, Any, None]:
        """Run a step that waits for something, until it ends."""
        job.task = asyncio.current_task()
        job.suspended()
        if self._waiting and not self._is_due:
            self._dispatch()
        resume: Callable[[Any], Any]
        while True:
            try:
                received = yield awaited
                resume = coroutine.send
            except BaseException as error:  # noqa: BLE001 - most likely a cancellation, which the step must handle
                received = error
                resume = coroutine.throw
            try:
                awaited = context.run(resume, received)
            except StopIteration as stop:
                return self._put_down(job, stop.value, None)
            except BaseException as error:  # noqa: BLE001 - as above
                return self._put_down(job, None, error)

    def _put_down(self, job: StepJob, value: Any, error: BaseException | None) -> None:
        # The context refers back to the job. Breaking the cycle frees both now.
        job.coroutine = job.context = None
        if error is not None and error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            # After this line, the traceback begins with the step's own code. The method of the base class works even if
            # the exception's own class refuses changes.
            BaseException.with_traceback(error, error.__traceback__.tb_next)
        if not self._outcomes:
            self._loop.call_soon(self._deliver)
        self._outcomes.append((job, value, error))

    def _deliver(self) -> None:
        outcomes, self._outcomes = self._outcomes, deque()
        try:
            for _ in range(min(len(outcomes), _DELIVERED_AT_ONCE_MAX)):
                job, value, error = outcomes.popleft()
                try:
                    job.ended(value, error)
                except Exception:
                    # If handling this outcome fails, the other outcomes of this turn must still be delivered.
                    log.exception("the outcome of %s could not be handled", job.label)
        # A signal may raise an exception here. In that case, the remaining outcomes are delivered in the next turn.
        finally:
            if outcomes:
                if not self._outcomes:
                    self._loop.call_soon(self._deliver)
                outcomes.extend(self._outcomes)
                self._outcomes = outcomes

    @staticmethod
    def _discard(job: StepJob) -> None:
        if job.coroutine is not None:
            job.coroutine.close()
        job.coroutine = job.context = None

    # Every step runs below one of these functions, whose local `job` is the step.
    frames: Final = (_carry.__code__, _wait.__code__)
