"""Runs steps: async ones on the process's loop (see carriers.py), sync ones in threads or in worker processes (see
processes.py); with timeouts, heartbeats and retries.

A step's outcome goes to `finished`. Between attempts it is `paused` and then begun `again`; a pause longer than a
second goes to `delayed`, which makes it durable, as `beaten` does with what heartbeats say. All are called in plain
callbacks, never inside a task.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context, copy_context
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from msgspec.json import decode as from_json

from perdure.coordinator.timers import Timer, Timers
from perdure.errors import CommitRefused, Misuse, StepFailed, StepTimedOut, StoreBroken, StoreError, UnstorableValue
from perdure.kernel.records import Attempt, Failure, StreamItem, Wait
from perdure.models.common.blame import Blame
from perdure.models.common.carriers import Carriers
from perdure.models.common.fence_check import InDoubt, Proof
from perdure.models.common.heartbeats import Beats
from perdure.models.common.interrupts import failed_by_exit, is_by_signal
from perdure.models.functions.artifacts import Stager, Staging
from perdure.models.functions.context import in_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.functions.heartbeats import Pulse
from perdure.models.functions.loop import StepRequest
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.stream_writer import Speaker, StreamWriter
from perdure.ports import Clock, TimerHandle
from perdure.values.failures import brief, receive

if TYPE_CHECKING:
    from perdure.models.functions.processes import ProcessPool
    from perdure.models.functions.transactions import Concluded, Fate, Transactions
    from perdure.models.functions.worker import Ended

log = logging.getLogger("perdure")

DURABLE_BACKOFF_US = 1_000_000
_STORE_FIRST_US = 10_000


class Execution:
    """A step in flight: its attempts so far and the one that runs now, which `pulse` stands for."""

    __slots__ = (
        "_beats", "_outages", "_overtime", "_silence", "_thread", "_timed_out", "_timeout", "attempt", "context",
        "coroutine", "deadline", "details", "dropped", "fate", "history", "live", "pulse", "request", "runner",
        "speaker", "stager", "started_at", "step", "task",
    )  # fmt: skip

    def __init__(self, runner: StepRunner, live: LiveRun, request: StepRequest) -> None:
        call: StepCall[Any] = request.call
        self.runner = runner
        self.live = live
        self.request = request
        self.step: Step[Any, Any] = call.step
        self.attempt = 0
        self.history: list[Attempt] = []
        self.started_at = 0
        self.details: str | None = None  # what the newest heartbeat said, as JSON
        self.task: asyncio.Future[Any] | None = None
        self.coroutine: Coroutine[Any, Any, Any] | None = None
        self.context: Context | None = None
        self.pulse: Pulse | None = None
        self.dropped = False
        self.fate: Fate | None = None  # of a transactional step's writes
        self.speaker: Speaker | None = None
        self.stager: Stager | None = None
        self._beats: Beats | None = None
        self._thread: Future[Any] | None = None
        self._timeout: TimerHandle | None = None
        self._overtime: Timer | None = None  # fires when the time for all attempts is over
        self._silence: TimerHandle | None = None
        self._timed_out: StepTimedOut | None = None
        self._outages = 0  # how often in a row the store failed under the step
        total = self.step.total_timeout_s
        self.deadline = None if total is None else request.emitted_at + round(total * 1_000_000)

    def resume_from(self, wait: Wait) -> None:
        """Take over what the store knows of earlier attempts."""
        self.attempt = wait.attempts
        self.started_at = wait.since
        self.details = wait.details
        if wait.failure is not None:
            self.history = list(from_json(wait.failure, type=Failure).history)

    def queue(self) -> None:
        """Its turn has not come yet; the total timeout counts all the same."""
        if self.deadline is not None:
            self._overtime = self.runner.timers.arm(self.deadline, self._miss_turn)

    def _miss_turn(self) -> None:
        self._overtime = None
        if not self.dropped:
            self.started_at = self.started_at or self.runner.clock.now()
            self._finish(None, self._overall_timeout())

    def begin(self) -> None:
        """Start the next attempt. Raises Misuse if the step cannot be called like this in a worker process, or has no
        transaction on this store."""
        runner, step, call = self.runner, self.step, self.request.call
        if self._timeout is not None or self._overtime is not None:
            self._stop_timers()
        if self.stager is not None:
            self.discard()
        self.attempt += 1
        now = runner.clock.now()
        if not self.started_at:
            self.started_at = now
        self._timed_out = None
        if self.deadline is not None and now >= self.deadline:
            runner.loop.call_soon(self._failed, self._overall_timeout())
            return
        pulse = self.pulse = Pulse(self, self.attempt, self.details)
        context = copy_context()
        context.run(in_step.set, pulse)
        if step.transactional:
            self.live.has_waited = True  # At its end there may be something that nobody asks for any more.
            self.task = runner.transactions.begin(self, pulse, context)
            self.task.add_done_callback(self._transaction_ended)
            self._arm_deadline()
        elif step.is_async:
            self.coroutine = step.function(*call.args, **call.kwargs)
            self.context = context
            runner.carriers.give(self)
        elif step.process:
            self._begin_in_process(pulse)
        else:
            function = partial(_without_stop_iteration, step.function, *call.args, **call.kwargs)
            if step.is_timed:
                function = partial(self._announce, pulse, function)
            function = partial(runner.proof.guarded, self.live.id, function)
            if self.live.id in runner.blame.watched:
                is_current = partial(self._is_current, pulse)
                function = partial(runner.blame.call_in_thread, self.live.id, self, is_current, runner.loop, function)
            self._thread = runner.threads.submit(context.run, function)
            self.task = asyncio.wrap_future(self._thread, loop=runner.loop)
            self.task.add_done_callback(self._thread_ended)
            self._arm_deadline()

    def _begin_in_process(self, pulse: Pulse) -> None:
        runner, step, call = self.runner, self.step, self.request.call
        self.task = runner.processes.submit(
            step,
            step.signature.write(call.args, call.kwargs, runner.payload_max),
            run_id=self.live.id,
            position=self.request.position,
            key=self.live.key_of(self.request.position),
            attempt=self.attempt,
            details=self.details,
            payload_max=runner.payload_max,
            began=partial(self._began_in_process, pulse),
            beat=pulse.receive,
            append=pulse.relay,
        )
        self.task.add_done_callback(self._process_ended)
        self._arm_deadline()

    def discard_pending(self) -> tuple[StreamItem, ...]:
        """The step has ended, or is of no matter: what it appended that is not on its way yet."""
        return () if self.speaker is None else self.speaker.discard_pending()

    def discard(self) -> None:
        """What the last attempt has staged comes to nothing."""
        stager, self.stager = self.stager, None
        if stager is not None:
            self.runner.staging.discard(self, stager)

    def drop(self) -> None:
        """Stop: the outcome no longer matters. A process is killed; a thread cannot be, and is left to end."""
        self.dropped = True
        self.pulse = None
        self._stop_timers()
        self._end_beats()
        self.discard_pending()
        self.discard()
        if self.task is not None and not self.task.done() and self._is_given_up():
            self.task.cancel()

    def _is_given_up(self) -> bool:
        """Whether an attempt can be stopped: not while what it wrote is being committed."""
        return self.fate is None or self.fate.give_up()

    # What attempts say.

    def said(self, details: str) -> None:
        """A heartbeat said something new."""
        self.details = details
        if self._beats is None:
            self._beats = Beats(self.runner.clock, partial(self.runner.beaten, self))
        self._beats.changed()

    def details_written(self) -> None:
        if self._beats is not None:
            self._beats.written()

    def flush(self) -> None:
        """Have all that was said so far written soon."""
        if self.pulse is not None:
            self.pulse.deliver()
        if self._beats is not None:
            self._beats.flush()

    def _end_beats(self) -> None:
        if self._beats is not None:
            self._beats.settle()
            self._beats = None  # It refers back to here.

    @property
    def run_id(self) -> str:
        return self.live.id

    @property
    def may_begin(self) -> bool:
        """Whether its run is surely this engine's to go on with. For those that are async the carriers find out."""
        step = self.step
        return step.is_async or self.runner.proof.is_sure_of(self.live.id, is_alive=step.transactional)

    @property
    def label(self) -> str:
        return f"step {self.step.name!r} of run {self.live.id!r}"

    # Time.

    def suspended(self) -> None:
        """It takes its time, so time is bounded."""
        if self.step.is_timed or self.deadline is not None:
            self._arm()

    def _announce(self, pulse: Pulse, function: Callable[[], Any]) -> Any:
        """In a thread: it may have waited long for one, and its time begins now."""
        self.runner.tell(self.began, pulse)
        return function()

    def _is_current(self, pulse: Pulse) -> bool:
        """Whether an attempt is the one that runs now."""
        return self.pulse is pulse

    def _began_in_process(self, pulse: Pulse) -> None:
        # It runs already: what it does there harms this process hardly as soon as that.
        if self.pulse is pulse:
            self.runner.blame.enter(self.live.id, self, lambda: None)
        self.began(pulse)

    def began(self, pulse: Pulse) -> None:
        if self.pulse is pulse and self.step.is_timed:
            self._arm()

    def _arm_deadline(self) -> None:
        """While it waits for a thread or a process."""
        if self.deadline is not None:
            self._overtime = self.runner.timers.arm(self.deadline, lambda: self._time_out(self._overall_timeout()))

    def _arm(self) -> None:
        """An attempt may take so long, by a clock that nobody sets; all of them together end at a time of day, which
        the next process knows too."""
        step, clock = self.step, self.runner.clock
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if step.timeout_s is not None:
            error = f"step {step.name!r} took longer than its timeout of {step.timeout_s} s in attempt {self.attempt}"
            after = round(step.timeout_s * 1_000_000)
            self._timeout = clock.call_after(after, lambda: self._time_out(StepTimedOut(error)))
        if self._overtime is None:
            self._arm_deadline()
        if step.heartbeat_timeout_s is not None and (pulse := self.pulse) is not None:
            pulse.at = clock.monotonic()
            self._listen(pulse, round(step.heartbeat_timeout_s * 1_000_000))

    def _listen(self, pulse: Pulse, silence_max: int) -> None:
        """Wait until the attempt has been silent for too long. A heartbeat only notes its time, so look again then."""

        def look() -> None:
            if self.pulse is not pulse:
                return
            if clock.monotonic() < pulse.at + silence_max:
                self._listen(pulse, silence_max)
                return
            step = self.step
            error = f"step {step.name!r} sent no heartbeat for {step.heartbeat_timeout_s} s in attempt {self.attempt}"
            self._time_out(StepTimedOut(error))

        clock = self.runner.clock
        self._silence = clock.call_after(pulse.at + silence_max - clock.monotonic(), look)

    def _overall_timeout(self) -> StepTimedOut:
        return StepTimedOut(
            f"step {self.step.name!r} did not finish within {self.step.total_timeout_s} s, "
            f"all attempts taken together ({len(self.history)} failed)"
        )

    def check_deadline(self) -> None:
        """Raise StepTimedOut if the time for all attempts is over."""
        if self.deadline is not None and self.runner.clock.now() >= self.deadline:
            raise self._overall_timeout()

    def _time_out(self, error: StepTimedOut) -> None:
        task = self.task
        if self.dropped or task is None or task.done() or self._timed_out is not None or not self._is_given_up():
            return
        self._timed_out = error
        if self.step.is_async or self.step.transactional:
            task.cancel()
            return
        if self._thread is not None and not self._thread.cancel():
            log.warning("%s; its thread is still busy and keeps its place until it ends", error)
        task.remove_done_callback(self._process_ended if self.step.process else self._thread_ended)
        task.cancel()  # Which kills a process, and leaves a thread alone.
        self.ended(None, error)

    def interrupted(self) -> None:
        """The store failed under the attempt, whose body may run again: it gets its whole time then, and the artifacts
        that it has staged so far are discarded. The time for all attempts goes on."""
        self._stop_attempts_timers()
        if self.stager is not None:
            self.discard()

    def _stop_timers(self) -> None:
        self._stop_attempts_timers()
        if self._overtime is not None:
            self._overtime.cancel()
            self._overtime = None

    def _stop_attempts_timers(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    # Ends.

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self.ended(None, asyncio.CancelledError())
        elif isinstance(error := future.exception(), InDoubt):
            self._doubted()
        elif error is not None:
            self.ended(None, error)
        else:
            self.ended(future.result(), None)

    def _doubted(self) -> None:
        """The attempt waited for its turn, and has not begun: it does once it is sure whose the run is."""
        self.task = self.pulse = None
        self._stop_timers()
        if not self.dropped:
            self.attempt -= 1
            self.runner.paused(self)
            self.runner.again(self)

    def _transaction_ended(self, future: asyncio.Future[Concluded]) -> None:
        if future.cancelled():
            self.ended(None, asyncio.CancelledError())
            return
        end = future.result()
        if not end.is_final or end.error is None:
            self.ended(end.staged, end.error)
            return
        # What it came to cannot be stored, and trying again would not change that.
        self.task = self.pulse = None
        self._stop_timers()
        if not self.dropped:
            self._end_beats()
            self.runner.transactions.conclude(self, end.error)

    def _process_ended(self, future: asyncio.Future[Ended]) -> None:
        if future.cancelled():
            self.ended(None, asyncio.CancelledError())
            return
        if isinstance(error := future.exception(), InDoubt):
            self._doubted()
            return
        if error is not None:
            self.ended(None, error)
            return
        end = future.result()
        if end.details is not None and self.pulse is not None:
            self.pulse.newest = end.details
        if end.failure is not None:
            position = self.request.position
            error = receive(end.failure, run_id=self.live.id, position=position, is_final=end.is_final)
            self.ended(None, error)
            return
        signature = self.step.signature
        try:
            value = signature.result.read(end.result or "", signature.about_result)
        except UnstorableValue as unstorable:
            self.ended(None, unstorable)
        else:
            self.ended(value, None)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """An attempt came to its end."""
        self.task = None
        if self._timeout is not None or self._overtime is not None or self._silence is not None:
            self._stop_timers()
        if error is None or self.dropped:
            self.pulse = None
            if not self.dropped:
                if self._beats is not None:
                    self._end_beats()
                self.runner.finished(self, value, None)
            return
        if self.pulse is not None:
            self.pulse.deliver()  # It may have been said just before.
            self.pulse = None
        if isinstance(error, asyncio.CancelledError):  # In the workflow it would mean another thing.
            error = StepFailed(f"step {self.step.name!r} was cancelled from inside")
        elif is_by_signal(error):
            # Somebody stops the process: that is no end of the step, which runs again in the next one.
            self._end_beats()
            self.runner.paused(self)
            raise error
        self._failed(self._timed_out or error)

    def _failed(self, error: BaseException) -> None:
        if self.dropped:
            return
        runner, policy = self.runner, self.step.retry
        now = runner.clock.now()
        if _is_of_the_store(error) and (self.deadline is None or now < self.deadline):
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
            with suppress(Exception):  # It may refuse to be changed.
                broken.add_note(f"raised by the retry policy of step {self.step.name!r}")
                broken.__cause__ = error
            error = broken
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # In the workflow it would mean another thing.
            failed = StepFailed(failed_by_exit(error, f"step {self.step.name!r}"))
            failed.__cause__ = error
            error = failed
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
            self._finish(None, error)
        elif delay > DURABLE_BACKOFF_US:
            if self._beats is not None:
                self._beats.settle()
            runner.delayed(self, now + delay, error)
        else:
            runner.paused(self)
            runner.clock.call_after(delay, lambda: runner.again(self))

    def _begin_again(self, error: BaseException) -> None:
        """The step asked the engine for something, and the store failed: that is no attempt."""
        self.attempt -= 1
        delay = min(_STORE_FIRST_US << min(self._outages, 16), DURABLE_BACKOFF_US)
        self._outages += 1
        log.log(
            logging.WARNING if self._outages == 1 else logging.DEBUG,
            "%s: the store failed, so the step runs again until it works; this is no attempt of the step. What to do:"
            " check the database (perdure doctor): %s",
            self.label, error,
        )  # fmt: skip
        self.runner.paused(self)
        self.runner.clock.call_after(delay, lambda: self.runner.again(self))

    def _finish(self, value: Any, error: BaseException | None) -> None:
        self._end_beats()
        self.runner.finished(self, value, error)


def _is_of_the_store(error: BaseException) -> bool:
    """Whether a step raised what the engine's store did. What can never be written, or a store that somebody must mend,
    is the step's failure: its policy decides."""
    return isinstance(error, StoreError) and not isinstance(error, (CommitRefused, StoreBroken))


def _without_stop_iteration(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """No future can hold a StopIteration, so that whoever waits for a thread that raised one would wait for ever."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


class StepRunner:
    """Starts steps where they belong. Raises Misuse in a process whose main module was imported by multiprocessing."""

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        resources: Callable[[type[Any]], Any],
        threads_max: int,
        processes_max: int | None,
        payload_max: int,
        speaking: StreamWriter,
        staging: Staging,
        finished: Callable[[Execution, Any, BaseException | None], None],
        delayed: Callable[[Execution, int, BaseException], None],
        paused: Callable[[Execution], None],
        again: Callable[[Execution], None],
        beaten: Callable[[Execution], None],
        blame: Blame,
        proof: Proof,
        transactions: Transactions,
    ) -> None:
        _check_not_imported_again()
        if processes_max is not None and processes_max < 1:
            raise Misuse(f"processes_max is at least 1, not {processes_max}")
        self.clock = clock
        self.timers = timers
        self.resources = resources
        self.payload_max = payload_max
        self.speaking = speaking
        self.staging = staging
        self.finished = finished
        self.delayed = delayed
        self.paused = paused
        self.again = again
        self.beaten = beaten
        self.blame = blame
        self.transactions = transactions
        self.loop = asyncio.get_running_loop()
        self.proof = proof
        self.carriers = Carriers(Execution.ended, proof)
        self.threads = ThreadPoolExecutor(threads_max, thread_name_prefix="perdure-step")
        self._processes_max = processes_max or os.cpu_count() or 1

    @cached_property
    def processes(self) -> ProcessPool:
        """Made when a step first needs it: most engines need none."""
        from perdure.models.functions.processes import ProcessPool

        return ProcessPool(self._processes_max, self.proof.is_sure_of)

    def tell(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back on the loop, from any thread. Once the loop is closed, nobody listens."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Start nothing more; threads that still run are left to end, processes are not."""
        self.carriers.close()
        self.transactions.close()
        self.threads.shutdown(wait=False, cancel_futures=True)
        if "processes" in self.__dict__:
            self.processes.close()


def _check_not_imported_again() -> None:
    """A worker process imports the program's main module. If that opens an engine, it is not meant to be there."""
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Misuse(
            "a worker process has imported the program's main module, which opened an engine: let it do so only under "
            '`if __name__ == "__main__":`'
        )
