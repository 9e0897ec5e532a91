"""Timeouts of runs, nodes and joins of graphs.

A timeout is a durable timer. The timer of a join begins when the first branch arrives. The machine requests these
timers. token_moves.py decides what happens when they are due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from perdure.errors import GraphTimedOut
from perdure.models.functions.context import timed_out
from perdure.values.failures import entry_of


async def within(seconds: float | None, place: str, awaited: Awaitable[Any]) -> Any:
    """Await something durably, with a timeout. Raises GraphTimedOut."""
    if seconds is None:
        return await awaited
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            return await awaited
    except TimeoutError:
        if timer.expired():
            raise timed_out(out_of_time(place, seconds)) from None
        raise


def out_of_time(place: str, seconds: float | None) -> GraphTimedOut:
    """Return the error for a node or a run that took longer than its timeout."""
    return GraphTimedOut(f"{place} took longer than its timeout of {seconds:g} s", place=place)


def join_timed_out(failure: BaseException | None) -> None:
    """If the timeout of a join has caused a failure, mark the failure as raised by that timeout."""
    if failure is not None and entry_of(failure) is None:
        timed_out(failure)
