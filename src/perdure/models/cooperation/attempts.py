"""Attempts of an operation's code: their number, their time limits, the record of failed attempts, and the decision
whether another attempt follows.

A failed attempt leaves no rows. The store has a wait at the position of the code, with the attempts so far. The wait
stays until the code has ended. So a crash loses no attempt whose pause was long enough to be stored.

A failure of the infrastructure does not count as an attempt and begins no rollback: the code is tried again.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from perdure.errors import InfrastructureFailed, InvalidDefinition
from perdure.kernel.failures import Attempt
from perdure.kernel.failures import Failure as StoredFailure
from perdure.kernel.rows import Wait
from perdure.models.common.store_failures import is_of_the_store
from perdure.models.common.stored_failures import read_failure, write_failure
from perdure.ports import Codec
from perdure.values.arguments import Duration, span_of
from perdure.values.retry import Retry

DURABLE_PAUSE_US: Final = 1_000_000
_INFRASTRUCTURE_FIRST_US: Final = 100_000
_INFRASTRUCTURE_MAX_US: Final = 60_000_000
_HISTORY_MAX: Final = 100
_MESSAGE_MAX_CHARS: Final = 1_000


class Effort(Struct, frozen=True, kw_only=True):
    """The retry policy of code, the time limit of an attempt, and the longest time without a heartbeat."""

    retry: Retry | None = None
    timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None

    @property
    def is_timed(self) -> bool:
        return self.timeout_s is not None or self.heartbeat_timeout_s is not None


ONCE: Final = Effort()


def effort(what: str, *, retry: Retry | None, timeout: Duration | None, heartbeat_timeout: Duration | None) -> Effort:
    """Return the effort for these options. `what` names the code in errors. Raises InvalidDefinition."""
    if retry is None and timeout is None and heartbeat_timeout is None:
        return ONCE
    given: object = retry
    if given is not None and not isinstance(given, Retry):
        raise InvalidDefinition(f"{what}: retry is a Retry(…), not {retry!r:.80}")
    return Effort(
        retry=retry,
        timeout_s=_seconds(timeout, "timeout", what),
        heartbeat_timeout_s=_seconds(heartbeat_timeout, "heartbeat_timeout", what),
    )


def _seconds(duration: Duration | None, name: str, what: str) -> float | None:
    if duration is None:
        return None
    return span_of(duration, f"{what}: {name}", error=InvalidDefinition, positive=True).total_seconds()


class Attempts(Struct, kw_only=True):
    """The record of code that has not ended. It has the failed attempts, the time of the next attempt, and the details
    of the newest heartbeat as JSON.
    """

    position: str
    name: str  # the name of the step
    failed: int = 0  # the number of attempts that count against the policy
    history: list[Attempt] = field(default_factory=list)  # the last attempts
    due_at: int = 0
    pause_us: int = 0  # the pause before the next attempt
    since: int = 0
    details: str | None = None
    is_stored: bool = False

    @property
    def is_durable(self) -> bool:
        """Whether the pause before the next attempt is long enough to be stored."""
        return self.pause_us > DURABLE_PAUSE_US

    def wait(self, run_id: str, codec: Codec, *, is_pausing: bool) -> Wait:
        """Return the wait that stores the attempts."""
        last = self.history[-1] if self.history else None
        failure = None
        if last is not None:
            stored = StoredFailure(type=last.type, message=last.message, history=self.history)
            failure = write_failure(stored, codec)
        return Wait(
            run_id=run_id,
            position=self.position,
            kind="retry" if is_pausing else "beat",
            name=self.name,
            due_at=self.due_at if is_pausing else None,
            attempts=self.failed,
            failure=failure,
            since=self.since,
            details=None if self.details is None else codec.encode(self.details),
        )


def read_attempts(wait: Wait, codec: Codec) -> Attempts:
    """Return the attempts that a wait has stored."""
    history = [] if wait.failure is None else list(read_failure(wait.failure, codec).history)
    return Attempts(
        position=wait.position,
        name=wait.name,
        failed=wait.attempts,
        history=history,
        due_at=wait.due_at or 0,
        pause_us=DURABLE_PAUSE_US + 1 if wait.kind == "retry" else 0,
        since=wait.since,
        details=None if wait.details is None else codec.decode(wait.details),
        is_stored=True,
    )


def is_infrastructure(error: BaseException) -> bool:
    """Return whether an error is a temporary failure of the infrastructure, and not a failure of the work itself."""
    return isinstance(error, InfrastructureFailed) or is_of_the_store(error)


def note_failure(attempts: Attempts, policy: Retry | None, error: BaseException, now: int, random: float) -> bool:
    """Note a failed attempt, and return whether another attempt follows. `due_at` is the time of that attempt. Raises
    the errors of the policy.

    A failure of the infrastructure does not count against the policy. After it, another attempt always follows.
    """
    if is_infrastructure(error):
        pause = min(max(attempts.pause_us * 2, _INFRASTRUCTURE_FIRST_US), _INFRASTRUCTURE_MAX_US)
    elif policy is not None and policy.again(attempts.failed + 1, error):
        attempts.failed += 1
        pause = policy.pause_us(attempts.failed, random, error)
    else:
        attempts.failed += 1
        return False
    kind = f"{type(error).__module__}:{type(error).__qualname__}".removeprefix("builtins:")
    one = Attempt(attempts.failed, kind, _text(error)[:_MESSAGE_MAX_CHARS], now)
    attempts.history = [*attempts.history[1 - _HISTORY_MAX :], one]
    attempts.pause_us = pause
    attempts.due_at = now + pause
    return True


def _text(error: BaseException) -> str:
    try:
        return str(error).encode(errors="backslashreplace").decode().replace("\0", "\\0")
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return f"<{type(error).__qualname__} whose str() failed>"
