"""What was decided and is committed, in the order of committing, until it is performed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from perdure.kernel.effects import Effect
from perdure.kernel.pieces import parts


class Effects:
    """Performs effects in plain callbacks, never in a task: workflow code runs on loops of its own, which must not nest
    in one. One commit may begin ten thousand children, so each part of the effects has a turn of its own.
    """

    def __init__(self, perform: Callable[[Iterable[Effect]], None]) -> None:
        self._perform = perform
        self._waiting: deque[Sequence[Effect]] = deque()

    def add(self, effects: Sequence[Effect]) -> None:
        """Have effects performed after all that were added before."""
        is_first = not self._waiting
        self._waiting.extend(part for _, part in parts(effects))
        if is_first and self._waiting:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._perform(self._waiting[0])
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)

    async def performed(self) -> None:
        """Wait until all that were added are performed, for one turn of the loop at least."""
        await asyncio.sleep(0)
        while self._waiting:  # noqa: ASYNC110 - each turn of the loop performs a part
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Perform at most the part that is next: the engine has ended, and whoever takes its runs over goes on."""
        while len(self._waiting) > 1:
            self._waiting.pop()


__all__ = ["Effects"]
