"""The timeouts of a step: of an attempt, between two heartbeats, and of all attempts together (the total timeout)."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.coordinator.timers import Timer, Timers
from perdure.errors import StepTimedOut
from perdure.kernel.failures import Attempt
from perdure.models.functions.define import Step
from perdure.ports import Clock, TimerHandle


class Heart(Protocol):
    """A running attempt that sends heartbeats. `at` is the monotonic time of the last heartbeat."""

    at: int


class TimedStep(Protocol):
    """A step whose time is bounded."""

    step: Step[Any, Any]
    attempt: int
    history: list[Attempt]

    @property
    def pulse(self) -> Heart | None:
        """The attempt that runs now."""
        ...

    def miss_turn(self, error: StepTimedOut) -> None:
        """The total timeout elapsed before the step got a slot."""
        ...

    def time_out(self, error: StepTimedOut) -> None:
        """A timeout of the running attempt has elapsed."""
        ...


class Timeouts:
    """The timers of one running step. `error` is the timeout that has stopped the current attempt, or None."""

    __slots__ = ("_attempt", "_clock", "_execution", "_overall", "_silence", "_timers", "deadline", "error")

    def __init__(self, execution: TimedStep, clock: Clock, timers: Timers, asked_at: int) -> None:
        self._execution = execution
        self._clock = clock
        self._timers = timers
        self._attempt: TimerHandle | None = None
        self._overall: Timer | None = None
        self._silence: TimerHandle | None = None
        self.error: StepTimedOut | None = None
        total = execution.step.total_timeout_s
        self.deadline = None if total is None else asked_at + round(total * 1_000_000)

    def is_over(self, now: int) -> bool:
        """Return whether the total timeout has elapsed."""
        return self.deadline is not None and now >= self.deadline

    def queue(self) -> None:
        """Arm the total timeout while the step waits for a slot."""
        if self.deadline is not None:
            self._overall = self._timers.arm(self.deadline, self._miss_turn)

    def _miss_turn(self) -> None:
        self._overall = None
        self._execution.miss_turn(self.overall_error())

    def wait(self) -> None:
        """Arm the total timeout while an attempt waits for a thread, a process or a transaction. The other timeouts do
        not begin yet.
        """
        if self.deadline is not None:
            self._overall = self._timers.arm(self.deadline, lambda: self._execution.time_out(self.overall_error()))

    def begin(self) -> None:
        """Arm the timeouts of an attempt that runs now.

        The timeout of an attempt is measured with a monotonic clock. The total timeout ends at a point in time, which
        is the same for the next process.
        """
        step = self._execution.step
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if step.timeout_s is not None:
            number = self._execution.attempt
            error = f"step {step.name!r} took longer than its timeout of {step.timeout_s} s in attempt {number}"
            after = round(step.timeout_s * 1_000_000)
            self._attempt = self._clock.call_after(after, lambda: self._execution.time_out(StepTimedOut(error)))
        if self._overall is None:
            self.wait()
        if step.heartbeat_timeout_s is not None and (pulse := self._execution.pulse) is not None:
            pulse.at = self._clock.monotonic()
            self._listen(pulse, round(step.heartbeat_timeout_s * 1_000_000))

    def _listen(self, pulse: Heart, silence_max: int) -> None:
        """Wait until the attempt has sent no heartbeat for too long. A heartbeat only notes its time. When the timer is
        due, it checks that time and is armed again.
        """

        def look() -> None:
            execution = self._execution
            if execution.pulse is not pulse:
                return
            if clock.monotonic() < pulse.at + silence_max:
                self._listen(pulse, silence_max)
                return
            step, number = execution.step, execution.attempt
            error = f"step {step.name!r} sent no heartbeat for {step.heartbeat_timeout_s} s in attempt {number}"
            execution.time_out(StepTimedOut(error))

        clock = self._clock
        self._silence = clock.call_after(pulse.at + silence_max - clock.monotonic(), look)

    def overall_error(self) -> StepTimedOut:
        """Return the error of a step whose total timeout has elapsed."""
        step = self._execution.step
        return StepTimedOut(
            f"step {step.name!r} did not finish within {step.total_timeout_s} s, "
            f"all attempts taken together ({len(self._execution.history)} failed)"
        )

    def stop(self) -> None:
        """Stop all timers, because no attempt runs."""
        self.stop_attempt()
        if self._overall is not None:
            self._overall.cancel()
            self._overall = None

    def stop_attempt(self) -> None:
        """Stop the timers of the attempt, because the attempt begins again. The total timeout keeps running."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


__all__ = ["Timeouts"]
