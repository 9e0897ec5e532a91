"""A running step: its attempts one after the other, with timeouts, heartbeats and retries.

Async steps run on the process's loop (see common/step_tasks.py). Plain functions run in threads (thread_attempts.py),
in worker processes (process_attempts.py), or in a transaction of the store (transactions.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Protocol

from perdure.errors import StepFailed, StepTimedOut
from perdure.kernel.failures import Attempt
from perdure.kernel.rows import StreamItem, Wait
from perdure.models.common.heartbeats import Beats
from perdure.models.common.interrupts import failed_by_exit, is_by_signal
from perdure.models.common.store_failures import is_of_the_store
from perdure.models.common.stored_failures import read_failure
from perdure.models.common.transactions import CodecFailed, Fate
from perdure.models.functions.artifacts import Stager
from perdure.models.functions.commands import StepRequest
from perdure.models.functions.context import in_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.functions.executor import Executor
from perdure.models.functions.heartbeats import Pulse
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.step_protocols import AttemptInFlight
from perdure.models.functions.timeouts import Timeouts
from perdure.models.functions.unwritten_items import UnwrittenItems
from perdure.ports import Codec
from perdure.values.failures import brief

log = logging.getLogger("perdure")

DURABLE_BACKOFF_US = 1_000_000
_STORE_FIRST_US = 10_000


class StepListener(Protocol):
    """Is notified of the progress of running steps. Its methods are called in plain callbacks, never inside a task."""

    def finished(self, execution: Execution, value: Any, error: BaseException | None) -> None:
        """A step has ended."""
        ...

    def paused(self, execution: Execution) -> None:
        """An attempt has failed or could not begin. The next attempt follows within a second."""
        ...

    def again(self, execution: Execution) -> None:
        """The next attempt is due."""
        ...

    def delayed(self, execution: Execution, due_at: int, error: BaseException) -> None:
        """An attempt has failed. The next attempt follows after a pause that must be made durable."""
        ...

    def beaten(self, execution: Execution) -> None:
        """Heartbeats have reported new details that must be made durable."""
        ...

    def broken(self, execution: Execution, error: BaseException) -> None:
        """The codec cannot encode the result of a step. The step's transaction is rolled back."""
        ...


class Execution:
    """A step that has not ended, with its earlier attempts. `pulse` is the attempt that runs now."""

    __slots__ = (
        "_beats",
        "_outages",
        "attempt",
        "context",
        "coroutine",
        "details",
        "dropped",
        "executor",
        "fate",
        "history",
        "listener",
        "live",
        "pulse",
        "request",
        "stager",
        "started_at",
        "step",
        "task",
        "thread",
        "timeouts",
        "unwritten",
    )  # fmt: skip

    def __init__(self, executor: Executor, listener: StepListener, live: LiveRun, request: StepRequest) -> None:
        call: StepCall[Any] = request.call
        self.executor = executor
        self.listener = listener
        self.live = live
        self.request = request
        self.step: Step[Any, Any] = call.step
        self.attempt = 0
        self.history: list[Attempt] = []
        self.started_at = 0
        self.details: str | None = None  # the details of the newest heartbeat, as JSON
        self.task: asyncio.Future[Any] | None = None
        self.thread: Future[Any] | None = None
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.context: Context | None = None
        self.pulse: Pulse | None = None
        self.dropped = False
        self.fate: Fate | None = None  # what became of a transactional step's writes
        self.unwritten: UnwrittenItems | None = None
        self.stager: Stager | None = None
        self.timeouts: Timeouts | None = None
        self._beats: Beats | None = None
        self._outages = 0  # how often in a row the store failed while the step ran
        if self.step.is_timed or self.step.total_timeout_s is not None:
            self.timeouts = Timeouts(self, executor.clock, executor.timers, request.emitted_at)

    # Called by the slots and the carriers.

    @property
    def run_id(self) -> str:
        return self.live.id

    @property
    def label(self) -> str:
        return f"step {self.step.name!r} of run {self.live.id!r}"

    @property
    def is_wanted(self) -> bool:
        return not (self.dropped or self.live.ended)

    @property
    def waits_for_thread(self) -> bool:
        return not (self.step.is_async or self.step.transactional)

    def queue(self) -> None:
        """Wait for a slot. The total timeout counts while the step waits."""
        if self.timeouts is not None:
            self.timeouts.queue()

    def miss_turn(self, error: StepTimedOut) -> None:
        """Fail, because the total timeout elapsed before the step got a slot."""
        if not self.dropped:
            self.started_at = self.started_at or self.executor.clock.now()
            self._finish(None, error)

    # Attempts.

    def resume_from(self, wait: Wait, codec: Codec) -> None:
        """Take over what is stored about earlier attempts."""
        self.attempt = wait.attempts
        self.started_at = wait.since
        self.details = wait.details
        if wait.failure is not None:
            self.history = list(read_failure(wait.failure, codec).history)

    def begin(self) -> None:
        """Start the next attempt. Raises Misuse if the step cannot be called with these arguments in a worker process,
        or has no transaction on this store."""
        executor, step, call, timeouts = self.executor, self.step, self.request.call, self.timeouts
        if self.stager is not None:
            self.discard()
        self.attempt += 1
        now = executor.clock.now()
        if not self.started_at:
            self.started_at = now
        if timeouts is not None:
            timeouts.stop()
            timeouts.error = None
            if timeouts.is_over(now):
                executor.loop.call_soon(self._failed, timeouts.overall_error())
                return
        pulse = self.pulse = Pulse(self, self.attempt, self.details)
        context = copy_context()
        context.run(in_step.set, pulse)
        if step.is_async and not step.transactional:
            self.coroutine = step.function(*call.args, **call.kwargs)
            self.context = context
            executor.carriers.give(self)
            return
        if step.transactional:
            self.live.has_waited = True  # A staged result may remain that no code asks for, until the run ends.
            executor.transactions.begin(self, pulse, context)
        elif step.process:
            executor.processes.begin(self, pulse)
        else:
            executor.threads.begin(self, pulse, context)
        if timeouts is not None:
            timeouts.wait()

    def suspended(self) -> None:
        """Start the timeouts, because the attempt waits for something."""
        if self.timeouts is not None:
            self.timeouts.begin()

    def began(self, pulse: AttemptInFlight) -> None:
        """Start the timeouts of an attempt that had to wait for a thread, a process or a transaction."""
        if self.pulse is pulse and self.step.is_timed and self.timeouts is not None:
            self.timeouts.begin()

    def call_on_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop. This can be called from any thread."""
        self.executor.call_on_loop(callback, *args)

    def discard_pending(self) -> tuple[StreamItem, ...]:
        """Return the appended items that are not being written yet, and forget them. Called when the step has ended or
        its outcome no longer matters.
        """
        return () if self.unwritten is None else self.unwritten.discard_pending()

    def discard(self) -> None:
        """Discard the artifacts that the last attempt has staged."""
        stager, self.stager = self.stager, None
        if stager is not None:
            self.executor.artifacts.discard(self, stager)

    def drop(self) -> None:
        """Stop the step, because its outcome no longer matters. A worker process is killed. A thread cannot be stopped;
        it is left to end.
        """
        self.dropped = True
        self.pulse = None
        if self.timeouts is not None:
            self.timeouts.stop()
        self._end_beats()
        self.discard_pending()
        self.discard()
        if self.task is not None and not self.task.done() and self._is_given_up():
            self.task.cancel()

    def _is_given_up(self) -> bool:
        """Give the attempt up. Returns False if it is too late to give up, because the attempt's transaction is being
        committed.
        """
        return self.fate is None or self.fate.give_up()

    # Heartbeats and streams.

    def note_details(self, details: str) -> None:
        """Take the details of a heartbeat."""
        self.details = details
        if self._beats is None:
            self._beats = Beats(self.executor.clock, self)
        self._beats.changed()

    def write_details(self) -> None:
        """Write the newest details to the store."""
        self.listener.beaten(self)

    def details_written(self) -> None:
        if self._beats is not None:
            self._beats.written()

    def flush(self) -> None:
        """Write all details that were reported so far, as soon as possible."""
        if self.pulse is not None:
            self.pulse.deliver()
        if self._beats is not None:
            self._beats.flush()

    def _end_beats(self) -> None:
        if self._beats is not None:
            self._beats.settle()
            self._beats = None  # `_beats` refers back to this execution.

    # The ends of attempts.

    def check_deadline(self) -> None:
        """Check that the total timeout has not elapsed. Raises StepTimedOut."""
        if self.timeouts is not None and self.timeouts.is_over(self.executor.clock.now()):
            raise self.timeouts.overall_error()

    def time_out(self, error: StepTimedOut) -> None:
        """Stop the running attempt, because its time is up."""
        task, timeouts = self.task, self.timeouts
        if self.dropped or task is None or task.done() or timeouts is None or timeouts.error is not None:
            return
        if not self._is_given_up():
            return
        timeouts.error = error
        if self.step.is_async or self.step.transactional:
            task.cancel()
            return
        if self.thread is not None and not self.thread.cancel():
            log.warning("%s; its thread is still busy and keeps its place until it ends", error)
        self.task = None  # The task's outcome is ignored from now on.
        task.cancel()  # This kills a worker process, and has no effect on a thread.
        self.ended(None, error)

    def interrupted(self) -> None:
        """Prepare for another call of the attempt's body, because the store failed while it ran.

        The body gets its whole timeout again, and the artifacts that it has staged are discarded. The total timeout
        keeps running.
        """
        if self.timeouts is not None:
            self.timeouts.stop_attempt()
        if self.stager is not None:
            self.discard()

    def doubted(self) -> None:
        """Try again an attempt that did not begin. The engine could not confirm that it still owns the run."""
        self.task = self.pulse = None
        if self.timeouts is not None:
            self.timeouts.stop()
        if not self.dropped:
            self.attempt -= 1
            self.listener.paused(self)
            self.listener.again(self)

    def cannot_be_stored(self, error: BaseException) -> None:
        """End the step, because the attempt's result cannot be stored. Another attempt would not change that."""
        self.task = self.pulse = None
        if self.timeouts is not None:
            self.timeouts.stop()
        if self.dropped:
            return
        if isinstance(error, CodecFailed):
            self._end_beats()
            self.listener.broken(self, error.error)
        else:
            self._finish(None, error)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Handle the end of an attempt, with a value or an error."""
        self.task = None
        if self.timeouts is not None:
            self.timeouts.stop()
        if error is None or self.dropped:
            self.pulse = None
            if not self.dropped:
                if self._beats is not None:
                    self._end_beats()
                self.listener.finished(self, value, None)
            return
        if self.pulse is not None:
            self.pulse.deliver()  # The last heartbeat may have arrived just before the end.
            self.pulse = None
        # In the workflow, a CancelledError would cancel the awaiting task.
        if isinstance(error, asyncio.CancelledError):
            error = StepFailed(f"step {self.step.name!r} was cancelled from inside")
        elif is_by_signal(error):
            # A signal is stopping the process. The step has not ended: it runs again in the next process.
            self._end_beats()
            self.listener.paused(self)
            raise error
        stopped = None if self.timeouts is None else self.timeouts.error
        self._failed(stopped or error)

    def _failed(self, error: BaseException) -> None:
        if self.dropped:
            return
        executor, policy, timeouts = self.executor, self.step.retry, self.timeouts
        now = executor.clock.now()
        if is_of_the_store(error) and (timeouts is None or not timeouts.is_over(now)):
            self._begin_again(error)
            return
        self._outages = 0
        kind, message = brief(error)
        self.history.append(Attempt(self.attempt, kind, message[:1000], now))
        try:
            again = policy.again(self.attempt, error)
            delay = policy.pause_us(self.attempt, random.random(), error) if again else 0
        except Exception as broken:  # noqa: BLE001 - the policy has functions of the user's
            again, delay = False, 0
            with suppress(Exception):  # The exception may refuse to be changed.
                broken.add_note(f"raised by the retry policy of step {self.step.name!r}")
                broken.__cause__ = error
            error = broken
        # In the workflow, these exceptions would mean that the process must end.
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            failed = StepFailed(failed_by_exit(error, f"step {self.step.name!r}"))
            failed.__cause__ = error
            error = failed
        if again and timeouts is not None and timeouts.is_over(now + delay):
            timed_out = timeouts.overall_error()
            timed_out.__cause__ = error
            again, error = False, timed_out
        log.info(
            "step %r of run %s failed in attempt %d of %d: %s; %s",
            self.step.name, self.live.id, self.attempt, policy.attempts, error,
            f"again in {delay / 1000:.0f} ms" if again else "it is not tried again",
        )  # fmt: skip
        if not again:
            self._finish(None, error)
        elif delay > DURABLE_BACKOFF_US:
            if self._beats is not None:
                self._beats.settle()
            self.listener.delayed(self, now + delay, error)
        else:
            self.listener.paused(self)
            executor.clock.call_after(delay, lambda: self.listener.again(self))

    def _begin_again(self, error: BaseException) -> None:
        """Run the step again, because the store failed while the step used the engine. This does not count as an
        attempt.
        """
        self.attempt -= 1
        delay = min(_STORE_FIRST_US << min(self._outages, 16), DURABLE_BACKOFF_US)
        self._outages += 1
        log.log(
            logging.WARNING if self._outages == 1 else logging.DEBUG,
            "%s: the store failed, so the step runs again until it works; this is no attempt of the step. What to do:"
            " check the database (perdure doctor): %s",
            self.label, error,
        )  # fmt: skip
        self.listener.paused(self)
        self.executor.clock.call_after(delay, lambda: self.listener.again(self))

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self._end_beats()
        self.listener.finished(self, value, error)


__all__ = ["DURABLE_BACKOFF_US", "Execution", "StepListener"]
