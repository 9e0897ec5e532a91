"""Runs the kernel's matching inside a transaction. It passes the questions of the matching to a backend, and passes the
answers back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.kernel.batch import Batch
from perdure.kernel.rules.broadcasts import Question, Settlement, settle


def settled(batch: Batch, base: int, answer: Callable[[Question], Any]) -> Settlement:
    """Match the batch's events and waits. `answer` answers the questions of the matching from the current state of the
    tables.
    """
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement


async def settled_by(batch: Batch, base: int, answer: Callable[[Question], Awaitable[Any]]) -> Settlement:
    """Match the batch's events and waits, for a backend with async answers."""
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(await answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement
