"""Runs that nobody has in memory, and when they go on: near ones by a timer each, far ones by looking again in time.

The store tells which they are. What is armed here owns nothing: when it is due, an op finds out whether it still holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from perdure.coordinator.timers import Timer, Timers
from perdure.errors import StoreError
from perdure.ports import Clock, Offer, Ripe, Store

log = logging.getLogger("perdure")

HORIZON_US = 10 * 60 * 1_000_000
_AT_ONCE = 2_000
_FOREVER = 2**62
_AGAIN_US = 1_000_000


class Sweeper:
    """`wake` and `expire` are told of runs that are due; `offers` is the code that this engine has."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        timers: Timers,
        *,
        offers: Callable[[], Sequence[Offer]],
        wake: Callable[[str], None],
        expire: Callable[[str], None],
        background: Callable[[Coroutine[Any, Any, None]], None],
        horizon_us: int = HORIZON_US,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._offers = offers
        self._wake = wake
        self._expire = expire
        self._background = background
        self._horizon_us = horizon_us
        self._armed: dict[tuple[str, bool], Timer] = {}
        self._next: Timer | None = None
        self._is_sweeping = False

    @property
    def busy(self) -> bool:
        """Whether the store is being asked."""
        return self._is_sweeping

    async def sweep(self) -> int:
        """Look for runs that are due before the horizon, and arm a timer for each; how many are armed now."""
        self._is_sweeping = True
        try:
            now = self._clock.now()
            found = await self._store.ripe(offers=self._offers(), before=_FOREVER, limit=_AT_ONCE)
            horizon = now + self._horizon_us
            for ripe in found:
                if ripe.due_at < horizon:
                    self._arm(ripe)
            later = [ripe.due_at for ripe in found if ripe.due_at >= horizon]
            if later:
                self._look_again_at(max(now, min(later) - self._horizon_us // 2))
            elif len(found) == _AT_ONCE:
                self._look_again_at(max(now, found[-1].due_at))
        finally:
            self._is_sweeping = False
        return len(self._armed)

    def left(self, run_id: str, due_at: int | None, deadline: bool = False) -> None:
        """A run was given up that is due, or has its deadline, at a time, if at any."""
        if due_at is None:
            return
        if due_at < self._clock.now() + self._horizon_us:
            self._arm(Ripe(run_id=run_id, due_at=due_at, deadline=deadline))
        else:
            self._look_again_at(due_at - self._horizon_us // 2)

    def _arm(self, ripe: Ripe) -> None:
        key = (ripe.run_id, ripe.deadline)
        armed = self._armed.get(key)
        if armed is not None:
            if armed.due_at <= ripe.due_at:
                return
            armed.cancel()
        self._armed[key] = self._timers.arm(ripe.due_at, lambda: self._due(ripe))

    def _due(self, ripe: Ripe) -> None:
        self._armed.pop((ripe.run_id, ripe.deadline), None)
        (self._expire if ripe.deadline else self._wake)(ripe.run_id)

    def _look_again_at(self, when: int) -> None:
        if self._next is not None:
            if self._next.due_at <= when:
                return
            self._next.cancel()
        self._next = self._timers.arm(when, self._look_again)

    def _look_again(self) -> None:
        self._next = None
        self._is_sweeping = True
        self._background(self._sweep_again())

    async def _sweep_again(self) -> None:
        try:
            await self.sweep()
        except StoreError as error:
            log.warning("looking for runs that are due is tried again: %s", error)
            self._look_again_at(self._clock.now() + _AGAIN_US)
