"""Whether this engine may still begin steps. A process that stood still, or was cut off from its store, may have been
taken for dead, and what it had may have been done elsewhere. And a run may be about to be stopped from outside: whoever
asked for that may know it before the run's own engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Any, Final

_AGAIN_S: Final = 0.05


class InDoubt(Exception):
    """A step had to wait for its turn, and by then its engine may have been taken for dead, or its run may have been
    stopped: it has not begun."""


class Proof:
    """`is_surely_alive` asks nobody, and can be called in any thread. `check_fence` asks the store; if the engine was
    taken for dead, its runs have been dropped afterwards. `stopping` are the runs that a commit under way stops: they
    have been dropped after a proof, or go on if the commit did not stop them."""

    def __init__(
        self,
        is_surely_alive: Callable[[], bool],
        check_fence: Callable[[], Awaitable[object]],
        stopping: Container[str] = (),
    ) -> None:
        self.is_surely_alive = is_surely_alive
        self._prove = check_fence
        self._stopping = stopping

    def is_sure_of(self, run_id: str, *, is_alive: bool = False) -> bool:
        """Whether a step of a run may begin. Asks nobody, and can be called in any thread. `is_alive`: the step finds
        out for itself whether the engine is, as those do that have a transaction."""
        return run_id not in self._stopping and (is_alive or self.is_surely_alive())

    async def make(self, is_given_up: Callable[[], bool]) -> None:
        """Ask the store, and ask again if the process stood still while the answer was on its way."""
        await self._prove()
        while not self.is_surely_alive() and not is_given_up():
            await asyncio.sleep(_AGAIN_S)
            await self._prove()

    async def make_for(self, run_id: str, is_given_up: Callable[[], bool]) -> None:
        """Return at once if a step of this run may begin. If not, make the proof until it may, or nobody wants it."""
        while not self.is_sure_of(run_id) and not is_given_up():
            await self.make(is_given_up)

    def guarded(self, run_id: str, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a function of a run's step, in the thread that it had to wait for. Raises InDoubt instead."""
        if not self.is_sure_of(run_id):
            raise InDoubt
        return function(*args)


__all__ = ["InDoubt", "Proof"]
