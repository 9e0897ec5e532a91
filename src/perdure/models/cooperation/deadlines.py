"""Deadlines of operations. A deadline applies to the happy path, to the rollback, or to both. Deadlines travel in the
context of messages, so children inherit them.

If a run has several deadlines, the earliest counts. Its trace keeps the other deadlines. A run that misses a
deadline gives up as if it were cancelled (cancellation.py). Deadlines of functions and graphs are in
perdure/kernel/rules/deadlines.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from perdure.errors import InvalidArguments
from perdure.models.cooperation.context import (
    ABOVE,
    EXEMPT,
    NOT_BEFORE,
    TOKENS,
    CancellationToken,
    Context,
    Key,
    checked_tokens,
    token_names,
    united,
)
from perdure.models.cooperation.failures import DEADLINE_MISSED, Failure
from perdure.values.arguments import Duration, span_of

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND


class Deadline(Struct, frozen=True, omit_defaults=True):
    """A time in microseconds since the epoch, its source, and the later deadlines that it has replaced."""

    at: int
    source: str = ""
    trace: tuple[Deadline, ...] = ()


def earlier(one: Deadline, other: Deadline) -> Deadline:
    """Return the earlier of two deadlines. Its trace contains the later deadline."""
    first, second = (one, other) if one.at <= other.at else (other, one)
    lost = [second, *second.trace]
    new = [
        Deadline(at=old.at, source=old.source)
        for old in lost
        if (old.at, old.source) not in {(known.at, known.source) for known in (first, *first.trace)}
    ]
    return Deadline(at=first.at, source=first.source, trace=(*first.trace, *new)) if new else first


HAPPY_DEADLINE: Final = Key("perdure.deadline", Deadline, merge=earlier)


ROLLBACK_DEADLINE: Final = Key("perdure.rollback_deadline", Deadline, merge=earlier)


def deadline_in(context: Context | None, *, rolling_back: bool) -> int | None:
    """Return the deadline of the rollback, or else the deadline of the happy path. Return None if there is no
    deadline.
    """
    if context is None or not context.values:
        return None
    deadline = context.get(ROLLBACK_DEADLINE if rolling_back else HAPPY_DEADLINE)
    return None if deadline is None else deadline.at


def for_compensation(context: Context, depth: int) -> Context:
    """Return the context for messages that a rollback emits. The handlers of these messages must end by the rollback's
    deadline. The reasons for the rollback do not stop these handlers.
    """
    limit = context.get(ROLLBACK_DEADLINE)
    found = context.without(HAPPY_DEADLINE).put(EXEMPT, depth)
    return found if limit is None else found.put(HAPPY_DEADLINE, limit)


def bounded(
    context: Context,
    *,
    now: int,
    source: str,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[CancellationToken] = (),
) -> Context:
    """Return a context with deadlines, with tokens, and with a delay before handlers may begin.

    The earliest deadline counts. Raises InvalidArguments for a time without a time zone, for a time beyond the year
    9999, for a negative delay, and for a token that is not a CancellationToken.
    """
    if names := checked_tokens(tokens):
        context = context.put(TOKENS, united(token_names(context), names))
    for key, when in ((HAPPY_DEADLINE, deadline), (ROLLBACK_DEADLINE, rollback_deadline)):
        if when is not None:
            mine = Deadline(at=time_of(when, now, "a deadline"), source=source)
            known = context.get(key)
            context = context.put(key, mine if known is None else earlier(known, mine))
    if delay is not None and span_of(delay, "a delay"):
        context = context.put(NOT_BEFORE, time_of(delay, now, "a delay"))
    return context


def time_of(when: datetime | Duration, now: int, what: str) -> int:
    """Return a point in time in microseconds since the epoch. `when` is a time, or a duration from now. Raises
    InvalidArguments.
    """
    given: object = when
    if not isinstance(given, datetime):
        at = now + span_of(given, f"{what}, if it is no datetime,") // _MICROSECOND
    elif given.tzinfo is None:
        raise InvalidArguments(f"{given!r} has no time zone: say which time is meant, as in datetime.now(UTC)")
    else:
        at = (given - _EPOCH) // _MICROSECOND
    if at > _LATEST:
        raise InvalidArguments(f"{what} of {when!r:.80} is beyond the year 9999; leave it out for none at all")
    return max(0, at)


def independent(context: Context) -> Context:
    """Return the context of an emission on the global scope. It leaves out the limits of this hierarchy, because they
    do not bound another hierarchy.
    """
    for key in (HAPPY_DEADLINE, ROLLBACK_DEADLINE, EXEMPT, ABOVE, TOKENS):
        context = context.without(key)
    return context


def missed_deadline(deadline: Deadline, source: str, *, rolling_back: bool) -> Failure:
    when = (_EPOCH + timedelta(microseconds=deadline.at)).isoformat()
    path = "rollback" if rolling_back else "happy path"
    return Failure(
        type=DEADLINE_MISSED,
        message=f"the deadline of the {path} was {when}, set by {deadline.source or 'outside'}",
        source=source,
    )


def deadline_ahead(context: Context, now: int, *, rolling_back: bool) -> int | None:
    """Return the deadline if it is in the future. Otherwise return None. A run that still waits after its deadline
    ignores the deadline. The deadline must not wake this run again and again.
    """
    deadline = deadline_in(context, rolling_back=rolling_back)
    return None if deadline is None or deadline <= now else deadline


def earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)
