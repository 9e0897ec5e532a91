"""Drives the kernel's matching inside a transaction: puts its questions to a backend, and its answers back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.kernel.batch import Batch
from perdure.kernel.rules.broadcasts import Question, Settlement, settle


def settled(batch: Batch, base: int, answer: Callable[[Question], Any]) -> Settlement:
    """What the batch's events and waits come to, with `answer` asked about the tables as they are now."""
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement


async def settled_by(batch: Batch, base: int, answer: Callable[[Question], Awaitable[Any]]) -> Settlement:
    """The same for a backend whose answers take time."""
    matching = settle(batch, base)
    try:
        question = next(matching)
        while True:
            question = matching.send(await answer(question))
    except StopIteration as stop:
        settlement: Settlement = stop.value
        return settlement
