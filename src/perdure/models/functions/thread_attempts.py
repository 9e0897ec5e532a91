"""Attempts of plain functions, which run in threads of the engine's process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from typing import Any

from perdure.models.common.crash_blame import Blame
from perdure.models.common.fence_check import FenceCheck, InDoubt
from perdure.models.common.threads import without_stop_iteration
from perdure.models.functions.step_protocols import AttemptInFlight, StepInFlight


class ThreadAttempts:
    """Runs attempts in a pool of threads. A thread cannot be stopped. If its attempt is given up, the thread is left to
    end.
    """

    def __init__(self, threads_max: int, fence_check: FenceCheck, blame: Blame) -> None:
        self._loop = asyncio.get_running_loop()
        self._fence_check = fence_check
        self._blame = blame
        self.threads = ThreadPoolExecutor(threads_max, thread_name_prefix="perdure-step")

    def begin(self, execution: StepInFlight, pulse: AttemptInFlight, context: Context) -> None:
        """Run an attempt as soon as a thread is free."""
        step, call, run_id = execution.step, execution.request.call, execution.live.id
        function = partial(without_stop_iteration, step.function, *call.args, **call.kwargs)
        if step.is_timed:
            function = partial(_announced, execution, pulse, function)
        function = partial(self._fence_check.guarded, run_id, function)
        if run_id in self._blame.watched:
            is_current = partial(_is_current, execution, pulse)
            function = partial(self._blame.call_in_thread, run_id, execution, is_current, self._loop, function)
        execution.thread = self.threads.submit(context.run, function)
        task = execution.task = asyncio.wrap_future(execution.thread, loop=self._loop)
        task.add_done_callback(partial(_ended, execution))

    def close(self) -> None:
        """Start nothing more."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def _announced(execution: StepInFlight, pulse: AttemptInFlight, function: Callable[[], Any]) -> Any:
    """Report that the attempt begins, and then call the function in this thread. The attempt may have waited long for
    the thread, so its timeout begins now.
    """
    execution.call_on_loop(execution.began, pulse)
    return function()


def _is_current(execution: StepInFlight, pulse: AttemptInFlight) -> bool:
    """Return whether an attempt is the current attempt of its step."""
    return execution.pulse is pulse


def _ended(execution: StepInFlight, future: asyncio.Future[Any]) -> None:
    if execution.task is not future:
        return  # The attempt's time was up.
    if future.cancelled():
        execution.ended(None, asyncio.CancelledError())
    elif isinstance(error := future.exception(), InDoubt):
        execution.doubted()
    elif error is not None:
        execution.ended(None, error)
    else:
        execution.ended(future.result(), None)


__all__ = ["ThreadAttempts"]
