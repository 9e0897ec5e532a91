"""The effects of commits. They are kept in the order of the commits until they are performed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from perdure.coordinator.listener import EffectListener
from perdure.kernel.effects import Effect
from perdure.kernel.pieces import parts


class Effects:
    """Performs effects in plain callbacks and never in a task, because workflow code runs on loops of its own, and a
    loop cannot run inside a task. One commit may begin ten thousand children. So the effects are performed in parts,
    one part in each turn of the loop.

    Once all effects are performed, it calls the listener's `performed`. It calls `performed` even if no effects were
    added.
    """

    def __init__(self, listener: EffectListener) -> None:
        self._listener = listener
        self._waiting: deque[Sequence[Effect]] = deque()
        self._is_due = False  # whether the next part, or the call of the listener, is in the loop's queue

    def add(self, effects: Sequence[Effect]) -> None:
        """Add effects. They are performed after all earlier effects."""
        self._waiting.extend(part for _, part in parts(effects))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            if self._waiting:
                self._listener.perform(self._waiting[0])
        finally:
            if self._waiting:
                self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)
            else:
                self._is_due = False
                self._listener.performed()

    async def performed(self) -> None:
        """Wait until all added effects are performed. This takes at least one turn of the loop."""
        await asyncio.sleep(0)
        while self._is_due:  # noqa: ASYNC110 - each turn of the loop performs a part
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Perform at most the next part, because the engine has ended. The engine that takes over its runs performs the
        remaining effects.
        """
        while len(self._waiting) > 1:
            self._waiting.pop()


__all__ = ["Effects"]
