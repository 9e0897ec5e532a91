"""Whether this engine may still begin steps. A process that stood still, or was cut off from its store, may have been
taken for dead, and what it had may have been done elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

_AGAIN_S: Final = 0.05


class InDoubt(Exception):
    """A step had to wait for its turn, and by then its engine may have been taken for dead: it has not begun."""


class Proof:
    """`is_surely_alive` asks nobody, and can be called in any thread. `prove` asks the store; if the engine was taken
    for dead, its runs have been dropped afterwards."""

    def __init__(self, is_surely_alive: Callable[[], bool], prove: Callable[[], Awaitable[object]]) -> None:
        self.is_surely_alive = is_surely_alive
        self._prove = prove

    async def make(self, is_given_up: Callable[[], bool]) -> None:
        """Ask the store, and ask again if the process stood still while the answer was on its way."""
        await self._prove()
        while not self.is_surely_alive() and not is_given_up():
            await asyncio.sleep(_AGAIN_S)
            await self._prove()

    def guarded(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function, in the thread that it had to wait for. Raises InDoubt instead."""
        if not self.is_surely_alive():
            raise InDoubt
        return function(*args)


__all__ = ["InDoubt", "Proof"]
