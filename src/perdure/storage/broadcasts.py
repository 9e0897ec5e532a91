"""Drives the kernel's matching inside a transaction: passes its questions to a backend, and the answers back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.kernel.batch import Batch
from perdure.kernel.rules.broadcasts import Question, Settlement, settle


def settled(batch: Batch, base: int, answer: Callable[[Question], Any]) -> Settlement:
    """Match the batch's events and waits. `answer` answers the questions of the matching from the tables in their
    present state."""
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement


async def settled_by(batch: Batch, base: int, answer: Callable[[Question], Awaitable[Any]]) -> Settlement:
    """Match the batch's events and waits, for a backend whose answers must be awaited."""
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(await answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement
