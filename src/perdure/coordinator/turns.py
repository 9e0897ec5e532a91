"""Work in pieces that a task does. Other tasks of the loop can run between the pieces."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from perdure.kernel.pieces import Pieces

T = TypeVar("T")


async def in_turns(work: Pieces[T]) -> T:
    """Do all pieces of the work, each in its own turn of the event loop, and return the result of the work."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
