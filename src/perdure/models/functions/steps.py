"""Runs steps: async ones on the process's loop (see carriers.py), sync ones in threads; with timeouts and retries.

A step's outcome goes to `finished`. Between attempts it is `paused` and then begun `again`; a pause longer than a
second goes to `delayed`, which makes it durable. All are called in plain callbacks, never inside a task.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from msgspec.json import decode as from_json

from perdure.errors import StepFailed, StepTimedOut
from perdure.kernel.records import Attempt, Failure, Wait
from perdure.models.functions.carriers import Carriers
from perdure.models.functions.context import CurrentStep, in_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.functions.failures import message_of, type_name
from perdure.models.functions.loop import StepRequest
from perdure.models.functions.runner import LiveRun
from perdure.ports import Clock, TimerHandle

log = logging.getLogger("perdure")

DURABLE_BACKOFF_US = 1_000_000


class Execution:
    """A step in flight: its attempts so far and the one that runs now."""

    __slots__ = (
        "_runner", "_timed_out", "_timeout", "attempt", "context", "coroutine", "deadline", "dropped", "history",
        "live", "request", "started_at", "step", "task",
    )  # fmt: skip

    def __init__(self, runner: StepRunner, live: LiveRun, request: StepRequest) -> None:
        call: StepCall[Any] = request.call
        self._runner = runner
        self.live = live
        self.request = request
        self.step: Step[Any, Any] = call.step
        self.attempt = 0
        self.history: list[Attempt] = []
        self.started_at = 0
        self.task: asyncio.Future[Any] | None = None
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.context: Context | None = None
        self.dropped = False
        self._timeout: TimerHandle | None = None
        self._timed_out: StepTimedOut | None = None
        total = self.step.total_timeout_s
        self.deadline = None if total is None else request.emitted_at + round(total * 1_000_000)

    def resume_from(self, wait: Wait) -> None:
        """Take over what the store knows of earlier attempts."""
        self.attempt = wait.attempts
        self.started_at = wait.since
        if wait.failure is not None:
            self.history = list(from_json(wait.failure, type=Failure).history)

    def begin(self) -> None:
        """Start the next attempt."""
        runner, step, call = self._runner, self.step, self.request.call
        self.attempt += 1
        now = runner.clock.now()
        if self.attempt == 1:
            self.started_at = now
        self._timed_out = None
        context = copy_context()
        # The number is this attempt's: a thread that was given up may still ask when the next one runs.
        context.run(in_step.set, (self.describe, self.attempt))
        if self.deadline is not None and now >= self.deadline:
            runner.loop.call_soon(self._failed, self._overall_timeout())
            return
        if step.is_async:
            self.coroutine = step.function(*call.args, **call.kwargs)
            self.context = context
            runner.carriers.give(self)
        else:
            function = partial(_without_stop_iteration, step.function, *call.args, **call.kwargs)
            self.task = runner.loop.run_in_executor(runner.threads, context.run, function)
            self.task.add_done_callback(self._thread_ended)
            self.suspended()

    def describe(self, attempt: int) -> CurrentStep:
        return CurrentStep(
            run_id=self.live.id,
            position=self.request.position,
            name=self.step.name,
            attempt=attempt,
            resources=self._runner.resources,
        )

    def drop(self) -> None:
        """Stop: the outcome no longer matters. A thread cannot be stopped; it is left to end."""
        self.dropped = True
        if self._timeout is not None:
            self._timeout.cancel()
        if self.task is not None and not self.task.done():
            self.task.cancel()

    def suspended(self) -> None:
        """It takes its time, so time is bounded."""
        if self.step.timeout_s is not None or self.deadline is not None:
            self._arm_timeout(self._runner.clock.now())

    def _arm_timeout(self, now: int) -> None:
        step = self.step
        due = now + round(step.timeout_s * 1_000_000) if step.timeout_s is not None else None
        error = f"step {step.name!r} took longer than its timeout of {step.timeout_s} s in attempt {self.attempt}"
        if self.deadline is not None and (due is None or self.deadline < due):
            due, error = self.deadline, str(self._overall_timeout())
        if due is not None:
            self._timeout = self._runner.clock.call_at(due, lambda: self._time_out(StepTimedOut(error)))

    def _overall_timeout(self) -> StepTimedOut:
        return StepTimedOut(
            f"step {self.step.name!r} did not finish within {self.step.total_timeout_s} s, "
            f"all attempts taken together ({len(self.history)} failed)"
        )

    def _time_out(self, error: StepTimedOut) -> None:
        task = self.task
        if self.dropped or task is None or task.done():
            return
        self._timed_out = error
        if self.step.is_async:
            task.cancel()
            return
        log.warning("%s; its thread is still busy and keeps its place until it ends", error)
        task.remove_done_callback(self._thread_ended)
        task.add_done_callback(_consume)
        self._failed(error)

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self.ended(None, asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.ended(None, error)
        else:
            self.ended(future.result(), None)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """An attempt came to its end."""
        self.task = None
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self.dropped:
            return
        if error is None:
            self._runner.finished(self, value, None)
            return
        if isinstance(error, asyncio.CancelledError):  # In the workflow it would mean another thing.
            error = StepFailed(f"step {self.step.name!r} was cancelled from inside")
        self._failed(self._timed_out or error)

    def _failed(self, error: BaseException) -> None:
        if self.dropped:
            return
        runner, policy = self._runner, self.step.retry
        now = runner.clock.now()
        self.history.append(Attempt(self.attempt, type_name(type(error)), message_of(error)[:1000], now))
        try:
            again = policy.again(self.attempt, error)
            delay = policy.backoff(self.attempt, random.random()) if again else 0
        except Exception as broken:  # noqa: BLE001 - the policy has functions of the user's
            again, delay = False, 0
            broken.add_note(f"raised by the retry policy of step {self.step.name!r}")
            broken.__cause__ = error
            error = broken
        if again and self.deadline is not None and now + delay >= self.deadline:
            timed_out = self._overall_timeout()
            timed_out.__cause__ = error
            again, error = False, timed_out
        log.info(
            "step %r of run %s failed in attempt %d of %d: %s; %s",
            self.step.name, self.live.id, self.attempt, policy.attempts, error,
            f"again in {delay / 1000:.0f} ms" if again else "it is not tried again",
        )  # fmt: skip
        if not again:
            runner.finished(self, None, error)
        elif delay > DURABLE_BACKOFF_US:
            runner.delayed(self, now + delay, error)
        else:
            runner.paused(self)
            runner.clock.call_at(now + delay, lambda: runner.again(self))


def _without_stop_iteration(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """No future can hold a StopIteration, so that whoever waits for a thread that raised one would wait for ever."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


def _consume(task: asyncio.Future[Any]) -> None:
    """Look at an outcome that nobody wants, so that asyncio does not complain about it."""
    if not task.cancelled():
        task.exception()


class StepRunner:
    """Starts steps and knows how many run."""

    def __init__(
        self,
        *,
        clock: Clock,
        resources: Callable[[type[Any]], Any],
        threads_max: int,
        finished: Callable[[Execution, Any, BaseException | None], None],
        delayed: Callable[[Execution, int, BaseException], None],
        paused: Callable[[Execution], None],
        again: Callable[[Execution], None],
    ) -> None:
        self.clock = clock
        self.resources = resources
        self.finished = finished
        self.delayed = delayed
        self.paused = paused
        self.again = again
        self.loop = asyncio.get_running_loop()
        self.carriers = Carriers(Execution.ended)
        self.threads = ThreadPoolExecutor(threads_max, thread_name_prefix="perdure-step")

    def close(self) -> None:
        """Start nothing more; threads that still run are left to end."""
        self.carriers.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
