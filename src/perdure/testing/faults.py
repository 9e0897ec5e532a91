"""Crash injection: a store that dies or fails at a chosen or random commit."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar, get_args

from perdure.errors import CommitRefused, EngineBug, Misuse, OutcomeUnknown, StoreBroken, StoreBusy
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Staged
from perdure.ports import StepPlace, Store
from perdure.testing.proxy import StoreProxy
from perdure.values.arguments import checked

log = logging.getLogger("perdure.testing")

T = TypeVar("T")

Point = Literal["before", "before_effects", "after_effects", "unknown", "unknown_lost", "busy", "refuse"]

# Crashes of the process before and after a commit, and the two ways in which the outcome of a commit can stay unknown.
CRASH_POINTS: tuple[Point, ...] = ("before", "before_effects", "after_effects", "unknown", "unknown_lost")
DEADLY: frozenset[Point] = frozenset({"before", "before_effects", "after_effects"})

# After this many turns of the event loop, the effects of a commit have begun. For example, a run goes on, or a step
# starts.
_EFFECT_TURNS = 8


@checked(own=("point",))
class Fault:
    """A fault that happens at one commit, at one of these points:

    - "before": the process dies, and the commit does not reach the store
    - "before_effects": the batch is committed, but the process dies before any reply or effect
    - "after_effects": the batch is committed and has its effects; the process dies before the next commit
    - "unknown": the batch is committed, but the store reports an unknown outcome
    - "unknown_lost": the batch is not committed, and the store reports an unknown outcome
    - "busy": the store refuses the batch `times` times, and then accepts it
    - "refuse": the store refuses every batch for which `when` is true for good, so that no other batch is blamed

    The fault happens at the batch with the number `commit`, counted from 1. With `when`, only batches for which `when`
    is true are counted. Counting continues after restarts. A batch that is resent is not counted again. Transactions of
    steps are counted too, unless `when` is given. If the process dies "before" the transaction of a step, the step's
    body has already run.
    """

    def __init__(
        self, point: Point, commit: int = 1, *, when: Callable[[Batch], bool] | None = None, times: int = 1
    ) -> None:
        if point not in get_args(Point):
            raise Misuse(f"there is no fault {point!r}, only {', '.join(get_args(Point))}")
        self.point = point
        self.commit = commit
        self.when = when
        self.times = times
        self.commits = 0  # batches that were counted so far
        self.struck = 0  # how often the fault has happened
        self._matching = 0
        self._last: tuple[str, int] | None = None
        self._is_hit = False
        self._places: dict[StepPlace, bool] = {}  # by transaction that was counted: whether the fault happens there

    @classmethod
    def random(cls, seed: int | None = None, *, points: Sequence[Point] = CRASH_POINTS, commits_max: int = 20) -> Fault:
        """Return a random fault. The seed is logged. The same seed gives the same fault."""
        if not points or commits_max < 1:
            raise Misuse(f"a fault is drawn from points, at one of the first commits: not {points!r}, {commits_max}")
        seed = random.randrange(2**32) if seed is None else seed
        lot = random.Random(seed)
        fault = cls(lot.choice(points), lot.randint(1, commits_max))
        log.warning("%r, drawn with seed %d", fault, seed)
        return fault

    def strikes(self, batch: Batch) -> bool:
        """Count this batch, and return whether the fault happens at it."""
        is_wanted = self.when is None or self.when(batch)
        key = (batch.engine_id, batch.number)
        if key != self._last:
            self._last = key
            self.commits += 1
            self._matching += is_wanted
            self._is_hit = is_wanted and self._matching == self.commit
        if self.point == "refuse":
            hit = is_wanted
        else:
            hit = self._is_hit and self.struck < self.times
        self.struck += hit
        return hit

    def strikes_at(self, place: StepPlace) -> bool:
        """Count the transaction of a step, and return whether the fault happens at it.

        If the same engine begins the transaction again, it is not counted again.
        """
        if self.when is not None:
            return False
        if place not in self._places:
            self.commits += 1
            self._matching += 1
            self._places[place] = self._matching == self.commit
        hit = self.point == "refuse" or (self._places[place] and self.struck < self.times)
        self.struck += hit
        return hit

    def __repr__(self) -> str:
        which = "" if self.when is None else " of those wanted"
        return f"<fault {self.point!r} at commit {self.commit}{which}>"


class _InVain(Exception):
    """Raised to roll back a transaction."""


class FaultyStore(StoreProxy):
    """Passes every request to `inner` until its fault happens.

    If the fault kills the process, `died` is called in a plain callback. After that, the store does not answer any
    request. `died` must kill the engine (`perdure.testing.control.kill`). `Environment(fault=…)` does all this.
    """

    def __init__(self, inner: Store, fault: Fault, died: Callable[[], object]) -> None:
        super().__init__(inner)
        self.fault = fault
        self._died = died
        self._is_dead = False
        self._is_doomed = False

    async def commit(self, batch: Batch) -> Committed:
        if self._is_doomed:
            await self._die()
        if not self.fault.strikes(batch):
            return await super().commit(batch)
        match self.fault.point:
            case "before":
                await self._die()
            case "before_effects":
                await super().commit(batch)
                await self._die()
            case "after_effects":
                committed = await super().commit(batch)
                self._is_doomed = True
                self._count_down(_EFFECT_TURNS)
                return committed
            case "unknown":
                await super().commit(batch)
                raise OutcomeUnknown("the connection was lost after the commit was sent, as asked")
            case "unknown_lost":
                raise OutcomeUnknown("the connection was lost before the commit was sent, as asked")
            case "busy":
                raise StoreBusy("the store is busy, as asked")
            case _:
                raise CommitRefused("the store refuses this batch, as asked")
        raise EngineBug("a dead store went on")

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        if self._is_doomed:
            await self._die()
        if not self.fault.strikes_at(place):
            return await super().transact(place, body)
        match self.fault.point:
            case "before":
                await self._in_vain(place, body)
                await self._die()
            case "before_effects":
                await super().transact(place, body)
                await self._die()
            case "after_effects":
                staged = await super().transact(place, body)
                self._is_doomed = True
                self._count_down(_EFFECT_TURNS)
                return staged
            case "unknown":
                await super().transact(place, body)
                raise OutcomeUnknown("the connection was lost after the commit was sent, as asked")
            case "unknown_lost":
                await self._in_vain(place, body)
                raise OutcomeUnknown("the connection was lost before the commit was sent, as asked")
            case "busy":
                raise StoreBusy("the store is busy, as asked")
            case _:
                raise CommitRefused("the store refuses this transaction, as asked")
        raise EngineBug("a dead store went on")

    async def _in_vain(self, place: StepPlace, body: Callable[[Any], Any]) -> None:
        """Run a step's body, and roll back its writes."""

        def plain(connection: Any) -> Staged:
            body(connection)
            raise _InVain

        async def awaited(connection: Any) -> Staged:
            await body(connection)
            raise _InVain

        with suppress(_InVain):
            await super().transact(place, plain if self.transacts == "plain" else awaited)

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self._is_dead:
            request.close()
            raise StoreBroken("the process that this store belongs to has died, as asked")
        return await request

    async def _die(self) -> None:
        self._is_dead = True
        asyncio.get_running_loop().call_soon(self._died)
        # A caller that waits for an answer dies together with its process.
        await asyncio.get_running_loop().create_future()

    def _count_down(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if self._is_dead:
            return
        if turns:
            loop.call_soon(self._count_down, turns - 1)
        else:
            self._is_dead = True
            self._died()
