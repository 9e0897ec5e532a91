"""Recovery: an engine goes on with runs that no living engine owns, after a crash, a deployment, or a release by
another engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.damaged_runs import set_aside
from perdure.coordinator.listener import Background, Code
from perdure.coordinator.sweep import Sweeper
from perdure.errors import StoreError
from perdure.kernel.ops import Spread, Take
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import Clock, LoadedRun, Store

_CLAIMED_AT_ONCE = 500
_SUSPECT_AFTER = 2  # after so many recoveries in a row without progress, a run is resumed separately
_SUSPECT_POLLS = 10
_SUSPECT_POLL_S = 0.05


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The result of a recovery: numbers of runs. `waiting` is the number of runs that will go on soon, and for which
    this engine has a timer.
    """

    engines_marked_dead: int
    resumed: int
    waiting: int
    held: int

    @property
    def total(self) -> int:
        return self.resumed + self.waiting + self.held


class RecoveryListener(Protocol):
    """The engine for which runs are recovered."""

    def fingerprint(self) -> None:
        """Give fingerprints to all offers from now on. This takes a while, so it is called only if a run is blocked."""
        ...

    def arm_deadline(self, run: Run) -> None:
        """If a claimed run has a deadline, arm its timer. This is called before the run is taken."""
        ...

    async def waiting(self, loaded: Sequence[LoadedRun]) -> Container[str]:
        """Return the runs that were waiting when their engine died. All the given runs are rolling back, so their
        status does not say whether they were waiting.
        """
        ...


class Recovery:
    """Claims runs and takes them. An engine runs one recovery at a time."""

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        sweeper: Sweeper,
        clock: Clock,
        *,
        recoveries_max: int,
        code: Code,
        tasks: Background,
        listener: RecoveryListener,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._sweeper = sweeper
        self._clock = clock
        self._recoveries_max = recoveries_max
        self._code = code
        self._tasks = tasks
        self._listener = listener
        self._lock = asyncio.Lock()
        # Runs that a recovery has claimed, and that it could not take or set aside because it was interrupted. No other
        # engine can claim these runs, so the next recovery of this engine goes on with them.
        self._claimed: list[LoadedRun] = []
        self._claiming: asyncio.Task[None] | None = None
        self._suspects: list[LoadedRun] = []
        self.is_behind = False  # whether the last recovery was interrupted

    async def run(self) -> RecoveryReport:
        """Mark dead engines, claim the runs that they and other engines have left, and go on with these runs."""
        async with self._lock:
            self.is_behind = True
            marked_dead = await self._store.mark_dead_engines()
            await self._take_fingerprints()
            resumed = held = 0
            async for claimed in self._claim():
                self._suspects += [one for one in claimed if one.run.recoveries >= _SUSPECT_AFTER]
                others = [one for one in claimed if one.run.recoveries < _SUSPECT_AFTER]
                replies = await self._coordinator.submit_internal([self._take(one) for one in others])
                resumed += sum(reply is True for reply in replies)
            poison = [one for one in self._suspects if one.orphaned and one.run.recoveries >= self._recoveries_max]
            if poison:
                replies = await self._coordinator.submit_internal([self._take(one) for one in poison])
                held += replies.count(False)
            suspects, self._suspects = [one for one in self._suspects if one not in poison], []
            if suspects:
                resumed += len(suspects)
                self._tasks.background(self._one_by_one(suspects))
            for event_id in await self._store.spreading():
                self._coordinator.enqueue(Spread(run_id="", at=self._clock.now(), event_id=event_id))
            waiting = await self._sweeper.sweep()
            self.is_behind = False
        return RecoveryReport(engines_marked_dead=len(marked_dead), resumed=resumed, waiting=waiting, held=held)

    async def _take_fingerprints(self) -> None:
        offers = self._code.offers()
        if all(one.fingerprint for one in offers):
            return
        me, now = self._coordinator.engine.id, self._clock.now()
        if (await self._store.look(engine_id=me, offers=offers, at=now)).blocked:
            self._listener.fingerprint()

    async def _claim(self) -> AsyncIterator[list[LoadedRun]]:
        while True:
            await self._claim_uncut()
            if not self._claimed:
                return
            engine_id, now = self._coordinator.engine.id, self._clock.now()
            self._claimed = await set_aside(self._store, engine_id, now, self._claimed)
            judged = await self._without_blame(self._claimed)
            self._claimed = []
            yield judged

    async def _claim_uncut(self) -> None:
        """Claim more runs. If the caller is cancelled, the claim goes on, because the store may have given runs
        already. The next recovery finds them in `_claimed`.
        """
        if self._claiming is None:
            self._claiming = asyncio.get_running_loop().create_task(self._claim_more())
            # If no caller waits any more, a failure of the claim is ignored, because the next recovery claims again.
            self._claiming.add_done_callback(lambda claiming: claiming.cancelled() or claiming.exception())
        claiming = self._claiming
        try:
            await asyncio.wait([claiming])
        finally:
            if claiming.done():
                self._claiming = None
        claiming.result()

    def close(self) -> None:
        """Claim no more runs, because the engine ends. If the store has given runs to the engine in the meantime, the
        engine releases them when it signs off. If it cannot, other engines recover them.
        """
        if self._claiming is not None:
            self._claiming.cancel()

    async def _claim_more(self) -> None:
        engine = self._coordinator.engine
        claim = partial(self._store.claim, engine_id=engine.id, epoch=engine.epoch, limit=_CLAIMED_AT_ONCE)
        claimed = await self._coordinator.claim(partial(claim, offers=self._code.offers()))
        for one in claimed:
            self._listener.arm_deadline(one.run)
        self._claimed += claimed

    async def _without_blame(self, claimed: list[LoadedRun]) -> list[LoadedRun]:
        """Return the runs. Clear `orphaned` of those runs that only waited when their engine died, because they cannot
        have killed it. Raises StoreError.
        """
        doubtful = [one for one in claimed if one.orphaned and one.run.status is Status.ROLLING_BACK]
        if not doubtful:
            return claimed
        waited = await self._waited(doubtful)
        return [replace(one, orphaned=False) if one.run.id in waited else one for one in claimed]

    async def _waited(self, doubtful: list[LoadedRun]) -> set[str]:
        """Return the runs that only waited. If the rows of a run cannot be read, the run is left out. The damage is
        reported when the run is taken. Raises StoreError.
        """
        try:
            found = await self._listener.waiting(doubtful)
            return {one.run.id for one in doubtful if one.run.id in found}
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - damaged rows may raise anything
            alone = doubtful if len(doubtful) > 1 else []
            return set[str]().union(*[await self._waited([one]) for one in alone])

    def _take(self, one: LoadedRun) -> Take:
        return Take(
            run_id=one.run.id,
            at=self._clock.now(),
            claim=one.run.claim,
            orphaned=one.orphaned,
            recoveries_max=self._recoveries_max,
        )

    async def _one_by_one(self, suspects: list[LoadedRun]) -> None:
        """Go on, group by group, with runs that were executing each time when their process died several times. If the
        process dies again, this death does not count for runs that were not taken yet.
        """
        for group in _groups(suspects):
            await self._coordinator.submit_internal([self._take(one) for one in group])
            for _ in range(_SUSPECT_POLLS):
                if not any(map(self._is_suspect, group)):
                    break
                await asyncio.sleep(_SUSPECT_POLL_S)

    def _is_suspect(self, taken: LoadedRun) -> bool:
        """Return whether a run has made no progress since it was taken, and does not wait."""
        run = self._coordinator.loaded(taken.run.id)
        counted = taken.run.recoveries + taken.orphaned
        return run is not None and run.recoveries >= counted and run.status is not Status.SUSPENDED


def _groups(suspects: list[LoadedRun]) -> Iterator[list[LoadedRun]]:
    """Yield the runs in groups. Runs with the most recoveries come first. If the process died again after a run had
    become a suspect, this run is alone in its group. All other groups grow in size, so that many innocent runs do not
    wait for long.

    A run that is taken before the culprit, and that is still executing when the process dies, is blamed together with
    the culprit. So the order of runs with the same number of recoveries is reversed each time. A run that came before
    the culprit comes after the culprit the next time. From then on, only the culprit has the most recoveries, and it
    comes first.
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
