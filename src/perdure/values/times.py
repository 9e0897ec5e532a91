"""Times and durations: datetimes as microseconds since the epoch and back, durations in seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.errors import Misuse
from perdure.values.arguments import Duration, shown, span_of

_SLEEP_MAX_S: Final = 1000 * 366 * 24 * 3600  # A thousand years, because Python's last date is in the year 9999.


def to_datetime(at: int) -> datetime:
    """Return microseconds since the epoch as an aware datetime."""
    return datetime.fromtimestamp(at // 1_000_000, UTC) + timedelta(microseconds=at % 1_000_000)


def from_datetime(when: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch. Raises Misuse for anything else."""
    if not isinstance(when, datetime):
        raise Misuse(f"a point in time is a datetime with a time zone, not {when!r:.80}")
    if when.tzinfo is None:
        raise Misuse(f"{when.isoformat()} has no time zone; use datetime.now(UTC) or the like")
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def seconds_of(duration: Duration, verb: str) -> float:
    """Return a duration in seconds. Raises Misuse if it is not a duration, or if it is longer than a thousand years."""
    seconds = span_of(duration, f"{verb}(): the duration").total_seconds()
    if not seconds < _SLEEP_MAX_S:
        raise Misuse(f"{verb}({shown(duration)}) is longer than any run lives; at most {_SLEEP_MAX_S:,} seconds")
    return seconds


__all__ = ["from_datetime", "seconds_of", "to_datetime"]
