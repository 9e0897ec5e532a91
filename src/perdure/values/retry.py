"""Retry policies and their arithmetic. The random number is passed in as an argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from perdure.errors import InvalidDefinition, MaxRetriesExceeded, Misuse, NonRetryable
from perdure.values.arguments import Duration, checked, shown, span_of

# Errors that another attempt cannot cure. The program is being stopped, memory is exhausted, or the error itself says
# that it is final.
HOPELESS: tuple[type[BaseException], ...] = (
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    MemoryError,
    NonRetryable,
    MaxRetriesExceeded,
    Misuse,
)
RETRY_AFTER_MAX_S = 24 * 3600
Backoff = Literal["none", "linear", "exponential"]
BACKOFFS: tuple[Backoff, ...] = ("none", "linear", "exponential")
_MAXIMUM = timedelta(seconds=300)


@checked(error=InvalidDefinition, own=("attempts", "initial", "maximum", "backoff", "retry_on", "give_up_on"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often and when a failed step is retried.

    `attempts` includes the first attempt. `backoff` says how the pause before the n-th retry grows. With "exponential"
    the pause is initial × multiplier^(n-1), with "linear" it is initial × n, and with "none" it is always `initial`.
    The pause is at most `maximum`. Then the pause varies at random, by at most half of `jitter` times the pause, up or
    down. Durations are timedeltas or seconds. The default of `maximum` is five minutes, or `initial` if that is longer.
    `retry_on` limits retries to these exceptions, and `give_up_on` excludes exceptions from retries. `recoverable`
    replaces both lists, and `delay` replaces the computed pause. A pause longer than a second survives a crash,
    together with the number of attempts so far.

    If the exception has an attribute `retry_after_s`, the next attempt waits at least that many seconds, but at most a
    day. So a step can respect a server's Retry-After.
    """

    attempts: int = 3
    initial: Duration = timedelta(milliseconds=100)
    maximum: Duration | None = None
    multiplier: float = 2.0
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    recoverable: Callable[[BaseException], bool] | None = None
    delay: Callable[[int], Duration] | None = None
    backoff: Backoff = "exponential"

    def __post_init__(self) -> None:
        # Check the policy now. Otherwise a mistake would show only when a step fails, perhaps months later.
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidDefinition(
                f"Retry(attempts={self.attempts!r}): attempts counts the first try, so a whole number, at least 1"
            )
        initial = _duration("initial", self.initial)
        maximum = max(_MAXIMUM, initial) if self.maximum is None else _duration("maximum", self.maximum)
        if maximum < initial:
            raise InvalidDefinition(
                f"Retry(initial={self.initial!r}, maximum={self.maximum!r}): initial is longer than maximum, so that "
                "no pause would ever be that long; leave out maximum, or make it longer"
            )
        object.__setattr__(self, "initial", initial)
        object.__setattr__(self, "maximum", maximum)
        if not 1 <= self.multiplier < math.inf or not 0 <= self.jitter <= 1:
            raise InvalidDefinition(
                f"Retry(multiplier={self.multiplier}, jitter={self.jitter}): multiplier is at least 1, "
                "jitter between 0 and 1"
            )
        if self.backoff not in BACKOFFS:
            raise InvalidDefinition(f"Retry(backoff={self.backoff!r}): backoff must be one of {', '.join(BACKOFFS)}")
        lists: tuple[tuple[str, object], ...] = (("retry_on", self.retry_on), ("give_up_on", self.give_up_on))
        for name, classes in lists:
            if not isinstance(classes, tuple) or not all(isinstance(one, type) for one in classes):
                raise InvalidDefinition(f"Retry({name}={classes!r}): {name} is a tuple of exception classes")

    @classmethod
    def never(cls) -> Retry:
        """Return a policy without retries."""
        return cls(attempts=1)

    @property
    def initial_s(self) -> float:
        return _seconds(self.initial)

    @property
    def maximum_s(self) -> float:
        return _seconds(_MAXIMUM if self.maximum is None else self.maximum)

    def again(self, attempt: int, error: BaseException) -> bool:
        """Whether another attempt follows after attempt number `attempt` has ended with this error. Attempts are
        counted from 1.
        """
        if attempt >= self.attempts or isinstance(error, HOPELESS):
            return False
        if self.recoverable is not None:
            return self.recoverable(error)
        return isinstance(error, self.retry_on) and not isinstance(error, self.give_up_on)

    def pause_us(self, attempt: int, random: float, error: BaseException | None = None) -> int:
        """Return the pause in microseconds between attempt number `attempt`, which ended with `error`, and the next
        attempt. `random` is in [0, 1).
        """
        return max(self._own_pause_us(attempt, random), _asked_for(error))

    def _own_pause_us(self, attempt: int, random: float) -> int:
        if self.delay is not None:
            return max(0, round(_seconds(self.delay(attempt)) * 1_000_000))
        initial = self.initial_s * 1_000_000
        maximum = self.maximum_s * 1_000_000
        try:
            plain = min(initial * self._factor(attempt), maximum)
        except OverflowError:
            plain = maximum if initial else 0.0
        return max(0, round(plain + plain * self.jitter * (random - 0.5)))

    def _factor(self, attempt: int) -> float:
        if self.backoff == "exponential":
            return self.multiplier ** (attempt - 1)
        return attempt if self.backoff == "linear" else 1


def _duration(name: str, given: object) -> timedelta:
    return span_of(given, f"Retry({name}={shown(given)}): {name}", error=InvalidDefinition)


def _seconds(duration: Duration) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _asked_for(error: BaseException | None) -> int:
    """Return the pause that an error asks for, in microseconds. Return 0 if it asks for no pause."""
    seconds = getattr(error, "retry_after_s", None)
    if not isinstance(seconds, int | float) or not seconds > 0:
        return 0
    return round(min(seconds, RETRY_AFTER_MAX_S) * 1_000_000)
