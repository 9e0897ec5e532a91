"""The fence check: whether this engine may still begin steps of a run.

If this process stood still, or was cut off from its store, other engines may have marked it dead and taken over its
runs. Also, a request from outside may be about to stop a run. The caller of that request may get its reply before the
engine of the run knows about the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from perdure.coordinator.port import Fence

_AGAIN_S: Final = 0.05


class InDoubt(Exception):
    """A step did not begin. While it waited for its turn, its engine may have been marked dead, or its run may have
    been stopped.
    """


class SignOfLife(Protocol):
    """Knows how long ago this engine sent its last heartbeat."""

    def is_surely_alive(self) -> bool:
        """Return whether it is certain that no other engine has marked this engine dead. This does no I/O, and can be
        called in any thread.
        """
        ...


class FenceCheck:
    """Decides whether steps may begin. If it is not certain, the coordinator asks the store.

    After that, runs are dropped if they no longer belong to this engine, or if a commit that is under way has stopped
    them.
    """

    def __init__(self, signs: SignOfLife, fence: Fence) -> None:
        self.is_surely_alive = signs.is_surely_alive
        self._fence = fence
        self._stopping = fence.stopping

    def is_sure_of(self, run_id: str, *, is_alive: bool = False) -> bool:
        """Return whether a step of a run may begin. This does no I/O, and can be called in any thread.

        With `is_alive`, the check whether the engine is alive is left out. A transactional step makes this check
        itself.
        """
        return run_id not in self._stopping and (is_alive or self.is_surely_alive())

    async def check(self, is_given_up: Callable[[], bool]) -> None:
        """Ask the store whether this engine may still write. If the process stood still while it waited for the answer,
        ask again.
        """
        await self._fence.check_fence()
        while not self.is_surely_alive() and not is_given_up():
            await asyncio.sleep(_AGAIN_S)
            await self._fence.check_fence()

    async def check_for(self, run_id: str, is_given_up: Callable[[], bool]) -> None:
        """Wait until a step of this run may begin, or until the step is given up. If necessary, this asks the store."""
        while not self.is_sure_of(run_id) and not is_given_up():
            await self.check(is_given_up)

    def guarded(self, run_id: str, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call the function of a step in a thread for which the step had to wait. Raises InDoubt if the step may no
        longer begin.
        """
        if not self.is_sure_of(run_id):
            raise InDoubt
        return function(*args)


__all__ = ["FenceCheck", "InDoubt", "SignOfLife"]
