"""Work in pieces, done by a task: others have their turn between the pieces."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from perdure.kernel.pieces import Pieces

T = TypeVar("T")


async def in_turns(work: Pieces[T]) -> T:
    """Return the result of all pieces, each done in a turn of the event loop of its own."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
