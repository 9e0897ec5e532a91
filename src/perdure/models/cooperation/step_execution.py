"""Code of a run that is being executed: the current attempt, its time limits and its heartbeats."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from perdure.coordinator.timers import Timers
from perdure.errors import StepTimedOut
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.status import Status
from perdure.models.common.heartbeats import Beats
from perdure.models.common.store_failures import is_of_the_store
from perdure.models.common.transactions import Fate
from perdure.models.cooperation.attempts import Attempts, Effort, is_infrastructure, note_failure, read_attempts
from perdure.models.cooperation.deadlines import deadline_in
from perdure.models.cooperation.live_run import Code, Draft, LiveOperation
from perdure.ports import Clock, Codec, Journal, TimerHandle

log = logging.getLogger("perdure")


class ExecutionListener(Protocol):
    """Is notified of the progress of executing code."""

    def ended(self, execution: StepExecution, outcome: Any, error: BaseException | None) -> None:
        """Handle the end of an attempt."""
        ...

    def beaten(self, execution: StepExecution) -> None:
        """Store the details that heartbeats have reported."""
        ...


class Surroundings:
    """The parts of an engine that executions need: the clock, the loop, and the listener."""

    __slots__ = ("clock", "listener", "loop", "payload_max")

    def __init__(self, clock: Clock, payload_max: int, listener: ExecutionListener) -> None:
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.payload_max = payload_max
        self.listener = listener


class StepExecution:
    """One attempt of code, in the form that carriers run. Heartbeats may come from any thread."""

    __slots__ = (
        "_beat_at", "_beats", "_is_scheduled", "_newest", "_silence", "_taken", "_timeout", "attempts", "code",
        "context", "coroutine", "details", "dropped", "effort", "fate", "has_store_failed", "in_thread", "is_called",
        "is_over", "live", "position", "task", "thread", "timed_out", "verdict", "where",
    )  # fmt: skip

    def __init__(self, where: Surroundings, live: LiveOperation, code: Code, effort: Effort) -> None:
        self.where = where
        self.live = live
        self.code = code
        self.effort = effort
        self.position = live.position_of(code)
        known = live.attempts
        self.attempts: Attempts | None = known if known is not None and known.position == self.position else None
        self.details = None if self.attempts is None else self.attempts.details  # the details of earlier attempts
        self.coroutine: Any = None
        self.context: Any = None
        self.task: asyncio.Future[Any] | None = None
        self.dropped = False
        self.is_over = False
        self.in_thread = False
        self.fate: Fate | None = None  # what became of its transaction
        # returns whether the store has failed during that transaction
        self.has_store_failed: Callable[[], Awaitable[bool]] | None = None
        self.is_called = False  # whether its function was called, or waits for a thread
        # the thread in which its first function is called, if it is a plain function
        self.thread: Future[Any] | None = None
        self.timed_out: StepTimedOut | None = None
        self.verdict: tuple[BaseException, bool] | None = None
        self._timeout: TimerHandle | None = None
        self._silence: TimerHandle | None = None
        self._beats: Beats | None = None
        self._beat_at = 0
        self._newest: str | None = None
        self._taken: str | None = None
        self._is_scheduled = False

    @property
    def label(self) -> str:
        return f"step {self.code.name!r} of run {self.live.id!r}"

    @property
    def run_id(self) -> str:
        return self.live.id

    @property
    def name(self) -> str:
        return self.code.name

    @property
    def attempt(self) -> int:
        return 1 if self.attempts is None else self.attempts.failed + 1

    @property
    def payload_max(self) -> int:
        return self.where.payload_max

    # Called by the slots.

    @property
    def is_wanted(self) -> bool:
        return not self.dropped

    @property
    def waits_for_thread(self) -> bool:
        return False  # The executor waits for threads, because only some functions of a step need a thread.

    def queue(self) -> None:
        """Wait for a turn. Time limits do not begin yet."""

    # The decision whether another attempt follows.

    def is_tried_again(self, error: BaseException) -> bool:
        """Return whether another attempt follows an attempt that failed with this error. Only the first error decides.

        Raises the errors of the policy.
        """
        if self.verdict is not None:
            return self.verdict[1]
        attempts = self.known_attempts()
        again = note_failure(attempts, self.effort.retry, error, self.where.clock.now(), random.random())
        self.verdict = (error, again)
        if again:
            # A failure of the infrastructure may last forever, so it is logged as a warning.
            level = logging.WARNING if is_infrastructure(error) else logging.INFO
            advice = " What to do: check the database (perdure doctor)." if is_of_the_store(error) else ""
            log.log(
                level, "%s failed and is tried again in %.0f ms: %s.%s",
                self.label, attempts.pause_us / 1000, str(error).rstrip("."), advice,
            )  # fmt: skip
        return again

    def known_attempts(self) -> Attempts:
        """Return the record of the attempts so far."""
        if self.attempts is None:
            self.attempts = Attempts(position=self.position, name=self.code.name, since=self.where.clock.now())
        return self.attempts

    # Time.

    def suspended(self) -> None:
        """Start the time limits, because the code waits for something now.

        In a thread or in a transaction, the time limits start later, because the code may have to wait for the thread
        or the store.
        """
        if self.effort.is_timed and not self.in_thread and self.fate is None:
            self.arm()

    def arm(self) -> None:
        """Start the time limits, because the body begins now."""
        if self.is_over or self.dropped or self._timeout is not None or self._silence is not None:
            return
        limits, clock = self.effort, self.where.clock
        self._beat_at = clock.monotonic()
        if limits.timeout_s is not None:
            error = f"step {self.code.name!r} took longer than its timeout of {limits.timeout_s} s"
            self._timeout = clock.call_after(round(limits.timeout_s * 1_000_000), partial(self._time_out, error))
        if limits.heartbeat_timeout_s is not None:
            self._listen(round(limits.heartbeat_timeout_s * 1_000_000))

    def _listen(self, silence_max: int) -> None:
        """Time out when no heartbeat has come for too long. A heartbeat only notes its time, so the timer checks that
        time when it fires."""

        def look() -> None:
            self._silence = None
            if clock.monotonic() < self._beat_at + silence_max:
                self._listen(silence_max)
            else:
                limit = self.effort.heartbeat_timeout_s
                self._time_out(f"step {self.code.name!r} sent no heartbeat for {limit} s")

        clock = self.where.clock
        self._silence = clock.call_after(self._beat_at + silence_max - clock.monotonic(), look)

    def interrupted(self) -> None:
        """Reset the attempt after the store has failed. Its body may run again with its whole time. A failure that was
        noted in the meantime does not count.
        """
        self._stop_timers()
        if self.verdict is not None and self.attempts is not None and not is_infrastructure(self.verdict[0]):
            self.attempts.failed -= 1
        self.verdict = None

    def _time_out(self, message: str) -> None:
        task = self.task
        if self.is_over or self.dropped or task is None or task.done() or self.timed_out is not None:
            return
        if self.fate is not None and not self.fate.give_up():
            return  # The attempt's transaction is being committed.
        self.timed_out = StepTimedOut(f"{message} in attempt {self.attempt}")
        if self.in_thread:
            log.warning("%s; its thread is still busy and keeps its place until it ends", self.timed_out)
        task.cancel()

    # Heartbeats.

    def receive(self, details: str | None) -> None:
        """Take in a heartbeat from any thread. `details` are JSON."""
        if self.is_over or self.dropped:
            return
        self._beat_at = self.where.clock.monotonic()
        if details is None:
            return
        # `_deliver` does these two steps in the reverse order. So no details are lost, in whatever order the two
        # threads run.
        self._newest = details
        if not self._is_scheduled:
            self._is_scheduled = True
            with suppress(RuntimeError):  # The loop may be closed.
                self.where.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_scheduled = False
        newest = self._newest
        if newest is None or newest == self._taken or self.is_over or self.dropped:
            return
        self._taken = newest
        self.known_attempts().details = newest
        if self._beats is None:
            self._beats = Beats(self.where.clock, self)
        self._beats.changed()

    def write_details(self) -> None:
        """Write the details of heartbeats."""
        self.where.listener.beaten(self)

    def beat_written(self) -> None:
        if self._beats is not None:
            self._beats.written()

    def flush(self) -> None:
        """Write the details of all heartbeats so far, as soon as possible."""
        self._deliver()
        if self._beats is not None:
            self._beats.flush()

    # The ends of attempts.

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Report that the attempt has ended."""
        self.where.listener.ended(self, value, error)

    @property
    def is_forward(self) -> bool:
        """Whether the code is not part of a rollback."""
        return not self.code.rolling_back

    def is_current(self) -> bool:
        """Return whether the outcome of the code still matters."""
        return not (self.is_over or self.dropped)

    def withdraw(self) -> bool:
        """Keep the code from beginning, if it has not begun. Return False if the code has begun."""
        if self.is_called and (self.thread is None or not self.thread.cancel()):
            return False
        self.drop()
        return True

    def end(self, *, is_tried_again: bool = False) -> None:
        """Stop timers and heartbeats, because the attempt has ended or its outcome no longer matters."""
        if is_tried_again and self._newest is not None:
            self._deliver()  # The last heartbeat may have arrived just before the end.
        self.is_over = True
        if self._timeout is not None or self._silence is not None:
            self._stop_timers()
        if self._beats is not None:
            self._beats.settle()
            self._beats = None  # `_beats` refers back to this execution.

    def _stop_timers(self) -> None:
        for timer in (self._timeout, self._silence):
            if timer is not None:
                timer.cancel()
        self._timeout = self._silence = None

    def drop(self) -> None:
        """Cancel the attempt, because its outcome no longer matters. Code in a thread keeps running until it ends."""
        self.dropped = True
        self.end()
        if self.fate is not None:
            self.fate.give_up()
        if self.task is not None and not self.task.done():
            self.task.cancel()


def recall(live: LiveOperation, journal: Journal, codec: Codec) -> None:
    """Give a revived run the stored state of its code: the staged outcome and the failed attempts."""
    live.staged = journal.staged[0] if journal.staged else None
    for wait in journal.waits:
        if wait.kind in ("retry", "beat"):
            live.attempts = read_attempts(wait, codec)


def pause(live: LiveOperation, draft: Draft, code: Code, codec: Codec, now: int) -> None:
    """Let a draft wait for the next attempt of code that has failed, unless that attempt is already due.

    If the run's deadline comes first, the draft waits for the deadline instead.
    """
    attempts = live.attempts
    if attempts is None or attempts.position != live.position_of(code):
        return
    draft.keeps_attempts = True
    if not live.is_pausing(code, now):
        return
    draft.code = None
    deadline = deadline_in(code.context, rolling_back=code.rolling_back)
    draft.until = attempts.due_at if deadline is None or deadline <= now else min(attempts.due_at, deadline)
    if attempts.is_durable:
        if draft.status is not Status.ROLLING_BACK:
            draft.status = Status.SUSPENDED
        draft.wait = attempts.wait(live.id, codec, is_pausing=True)


def armed(live: LiveOperation, until: int, timers: Timers, now: int, due: Callable[[], None]) -> TimerHandle:
    """Arm a timer that calls `due` at the time `until`, and return the timer.

    A short pause between two attempts is not stored. Such a pause lasts its full duration, even if the system's clock
    is changed.
    """
    attempts = live.attempts
    if attempts is None or attempts.is_durable or attempts.due_at != until:
        return timers.arm(until, due)

    def go_on() -> None:
        attempts.due_at = 0
        due()

    return timers.after(min(attempts.pause_us, until - now), go_on)


def heartbeat(execution: StepExecution, status: Status, codec: Codec, now: int) -> ops.Cooperate:
    """Return the op that stores the details of running code, for the next attempt of the code."""
    live = execution.live
    live.attempts = attempts = execution.known_attempts()
    live.has_waited = attempts.is_stored = True
    return ops.Cooperate(
        run_id=live.id,
        at=now,
        claim=live.claim,
        cause="heartbeat",
        status=status,
        added=Cooperation(),
        waits=(attempts.wait(live.id, codec, is_pausing=False),),
        has_waited=True,
    )
