"""Going on with runs that no live engine has: after a crash, a deploy, or when another engine left them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any

from msgspec import Struct

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.sweep import Sweeper
from perdure.kernel.ops import Spread, Take
from perdure.kernel.records import Run
from perdure.kernel.status import Status
from perdure.ports import Clock, LoadedRun, Offer, Store

_CLAIMED_AT_ONCE = 500
_SUSPECT_AFTER = 2  # recoveries in a row, without progress, after which a run is resumed apart from others
_SUSPECT_POLLS = 10
_SUSPECT_POLL_S = 0.05


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """What a recovery found and did, in numbers of runs. `waiting` are those that go on soon, by a timer."""

    engines_buried: int
    resumed: int
    waiting: int
    held: int

    @property
    def total(self) -> int:
        return self.resumed + self.waiting + self.held


class Recovery:
    """Claims runs and takes them up. One at a time per engine."""

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        sweeper: Sweeper,
        clock: Clock,
        *,
        recoveries_max: int,
        offers: Callable[[], Sequence[Offer]],
        adopted: Callable[[Run], None],
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._sweeper = sweeper
        self._clock = clock
        self._recoveries_max = recoveries_max
        self._offers = offers
        self._adopted = adopted
        self._background = background
        self._lock = asyncio.Lock()
        self.is_behind = False  # It broke off: what it claimed last may be known to nobody but the store.

    async def run(self) -> RecoveryReport:
        """Bury dead engines, claim what they and others left, and go on with it."""
        async with self._lock:
            self.is_behind = True
            buried = await self._store.bury()
            # Always: others bury engines too, and one that was buried here may not have been mourned then.
            self._coordinator.mourn([engine.id for engine in await self._store.engines() if not engine.alive])
            resumed = held = 0
            suspects: list[LoadedRun] = []
            async for claimed in self._claim():
                suspects += [one for one in claimed if one.run.recoveries >= _SUSPECT_AFTER]
                others = [one for one in claimed if one.run.recoveries < _SUSPECT_AFTER]
                replies = await self._coordinator.insist([self._take(one) for one in others])
                resumed += sum(reply is True for reply in replies)
            poison = [one for one in suspects if one.orphaned and one.run.recoveries >= self._recoveries_max]
            if poison:
                replies = await self._coordinator.insist([self._take(one) for one in poison])
                held += replies.count(False)
                suspects = [one for one in suspects if one not in poison]
            if suspects:
                resumed += len(suspects)
                self._background(self._one_by_one(suspects))
            for event_id in await self._store.spreading():
                self._coordinator.owe(Spread(run_id="", at=self._clock.now(), event_id=event_id))
            waiting = await self._sweeper.sweep()
            self.is_behind = False
        return RecoveryReport(engines_buried=len(buried), resumed=resumed, waiting=waiting, held=held)

    async def _claim(self) -> AsyncIterator[list[LoadedRun]]:
        while True:
            engine = self._coordinator.engine
            claimed = await self._store.claim(
                engine_id=engine.id, epoch=engine.epoch, offers=self._offers(), limit=_CLAIMED_AT_ONCE
            )
            if not claimed:
                return
            self._coordinator.adopt(claimed)
            for one in claimed:
                self._adopted(one.run)
            yield claimed

    def _take(self, one: LoadedRun) -> Take:
        return Take(
            run_id=one.run.id,
            at=self._clock.now(),
            claim=one.run.claim,
            orphaned=one.orphaned,
            recoveries_max=self._recoveries_max,
        )

    async def _one_by_one(self, suspects: list[LoadedRun]) -> None:
        """Go on with runs that were there at several deaths of their process, group by group: if it dies again, those
        not taken up yet are not counted."""
        for group in _groups(suspects):
            await self._coordinator.insist([self._take(one) for one in group])
            for _ in range(_SUSPECT_POLLS):
                if not any(self._is_suspect(one.run.id) for one in group):
                    break
                await asyncio.sleep(_SUSPECT_POLL_S)

    def _is_suspect(self, run_id: str) -> bool:
        """Whether a run has not got on since it was taken up."""
        run = self._coordinator.loaded(run_id)
        return run is not None and run.recoveries > 0 and run.status is not Status.SUSPENDED


def _groups(suspects: list[LoadedRun]) -> Iterator[list[LoadedRun]]:
    """Those blamed most go first, and alone once they were blamed as suspects. Others go in groups that grow, so that
    many innocents do not wait.

    Who goes before the culprit is blamed with it, if it is still at its step. So the order among equals is turned round
    each time: whoever was before the culprit is after it next time, and from then on the culprit is alone in front.
    """
    by_age = sorted(suspects, key=lambda one: (one.run.created_at, one.run.id))
    ranks = {one.run.id: rank if one.run.recoveries % 2 else -rank for rank, one in enumerate(by_age)}
    ordered = sorted(suspects, key=lambda one: (-one.run.recoveries, ranks[one.run.id]))
    size = 1
    while ordered:
        if ordered[0].run.recoveries > _SUSPECT_AFTER:
            group, ordered = ordered[:1], ordered[1:]
        else:
            group, ordered = ordered[:size], ordered[size:]
            size *= 2
        yield group
