"""Timers of workflow code: `sleep` and `sleep_until`, and the result of a timer that has fired.

A duration becomes a point in time when the code calls `sleep`. Timers that are options of a wait are in waits.py. The
engine arms timers in perdure/coordinator/timers.py. perdure/kernel/rules/delivery.py decides which wait a due timer
wins.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from perdure.models.functions.context import require_loop
from perdure.models.functions.loop import WorkflowLoop
from perdure.values.arguments import Duration, checked
from perdure.values.times import from_datetime, seconds_of, to_datetime


class TimeReached(Struct, frozen=True):
    """The result of a timer: the time when it was due, and the time when it fired."""

    scheduled_at: datetime
    fired_at: datetime


@checked
async def sleep(duration: Duration) -> TimeReached:
    """Wait durably: the process may end during the wait. A number means seconds.

    Raises InvalidArguments for a negative duration. If the time may have passed already, use `sleep_until`.
    """
    loop = require_loop("sleep")
    return await _wait_until(loop, loop.now() + round(seconds_of(duration, "sleep") * 1_000_000), "sleep")


@checked
async def sleep_until(when: datetime) -> TimeReached:
    """Wait durably until a point in time. A time in the past is reached at once."""
    loop = require_loop("sleep_until")
    return await _wait_until(loop, from_datetime(when), "sleep_until")


async def _wait_until(loop: WorkflowLoop, due_at: int, name: str) -> TimeReached:
    scheduled_at, fired_at = await loop.request_timer(due_at, name)
    return TimeReached(to_datetime(scheduled_at), to_datetime(fired_at))


class Fired(Struct, frozen=True):
    """The value of a timer's journal entry: the time when the timer was due, and the time when it fired, in
    microseconds.
    """

    due: int
    fired: int
