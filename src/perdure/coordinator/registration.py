"""The engine's registration with its store. The engine registers at the start, and again if it was marked dead or could
not use its store.
"""

from __future__ import annotations

import asyncio
import logging

from perdure.coordinator.caller_patience import Restarts
from perdure.coordinator.parts import Parts
from perdure.coordinator.queued_ops import from_outside
from perdure.coordinator.store_retries import StoreRequests
from perdure.errors import Fenced, StoreBroken, StoreMisconfigured
from perdure.kernel.rows import Engine

log = logging.getLogger("perdure")


class Registration:
    """The engine's row, under which the coordinator writes, and the number of its last batch. `unfit` is the error of a
    part of the engine that could not use the store, or None. While `is_restarting`, the engine has dropped its runs,
    and the store cannot be used.
    """

    def __init__(self, parts: Parts, requests: StoreRequests) -> None:
        self._parts = parts
        self._requests = requests
        self._restarts = Restarts(parts.limits)
        self.engine: Engine
        self.number = 0
        self.unfit: StoreMisconfigured | None = None
        self.is_restarting = False

    async def join(self) -> None:
        """Register with the store. Raises StoreError."""
        self.engine = await self._parts.listener.enroll()
        self.number = self.engine.batch

    async def renew(self, error: Fenced | StoreMisconfigured) -> Fenced:
        """Drop all runs and register again. This engine was marked dead, or its store cannot be used now.

        The engine stops its heartbeat, so that other engines may take its runs. Ops of callers are decided again.
        Returns the error that refuses the engine's own ops. Raises StoreBroken after too many attempts.
        """
        log.warning("%s; dropping %d runs and registering anew", error, len(self._parts.memory.runs))
        fenced = error if isinstance(error, Fenced) else Fenced(f"the engine starts over: {error}")
        self._parts.forget(list(self._parts.memory.runs))
        self._parts.memory.untaken.clear()
        self._parts.seen.clear()
        await self._parts.effects.performed()  # From here on, the runs are dropped.
        self._parts.store.withdraw(self.engine.id)
        self._parts.inbox.put_back(from_outside(self._parts.inbox.empty(), fenced))
        while True:
            try:
                if isinstance(error, StoreMisconfigured):
                    await self._pause_before_restart(error)
                self.unfit = None
                await self._requests.read(self._renew_once)
            except StoreMisconfigured as again:
                error = again
            else:
                break
        self.is_restarting = False
        log.info("registered anew as engine %s", self.engine.id)
        self._parts.listener.lost_track()
        return fenced

    async def _pause_before_restart(self, error: StoreMisconfigured) -> None:
        """Wait before the next registration. Raises StoreBroken if the engine has restarted too often, or if it is
        stopping anyway.
        """
        self._parts.callers.failed(error)
        pause_s = self._restarts.next_pause_s(asyncio.get_running_loop().time())
        if pause_s is None or self._parts.stopped is not None:
            tried = f"after {self._restarts.count} new starts: " if pause_s is None else ""
            raise StoreBroken(f"{tried}{error}") from error
        log.warning(
            "the engine registers anew in %.1f s (%d of %d times): %s. What to do: mend the database (perdure doctor);"
            " then the engine goes on by itself",
            pause_s, self._restarts.count, self._parts.limits.restarts_max, error,
        )  # fmt: skip
        self.is_restarting = True
        await asyncio.sleep(pause_s)

    async def _renew_once(self) -> None:
        # If the store was restored to an earlier state, the engine counts as alive in it. Without this line, no other
        # engine would get its runs.
        await self._parts.store.retire(self.engine.id)
        await self.join()


__all__ = ["Registration"]
