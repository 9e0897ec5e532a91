"""Runs that nobody has in memory, and when they go on: near ones by a timer each, far ones by looking again in time.

The store tells which they are. What is armed here owns nothing: when it is due, an op finds out whether it still holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from zlib import crc32

from perdure.coordinator.notices import Outage
from perdure.coordinator.timers import Timer, Timers
from perdure.ports import Clock, Offer, Ripe, Store

HORIZON_US = 10 * 60 * 1_000_000
_AT_ONCE = 2_000
_ARMED_PER_TURN = 100
_FOREVER = 2**62
_AGAIN_US = 1_000_000

Answered = Callable[[Any, BaseException | None], object]


class Sweeper:
    """`wake` and `expire` are told of runs that are due, and call back when that is committed or refused: until then a
    run that is found again is not told of again. `offers` is the code that this engine has, `me` its id.

    What is overdue goes in the order of being due, unless other engines get it first: then each begins elsewhere."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        timers: Timers,
        *,
        offers: Callable[[], Sequence[Offer]],
        wake: Callable[[str, Answered], None],
        expire: Callable[[str, int, Answered], None],
        background: Callable[[Coroutine[Any, Any, None]], None],
        me: Callable[[], str],
        horizon_us: int = HORIZON_US,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._offers = offers
        self._wake = wake
        self._expire = expire
        self._background = background
        self._me = me
        self._is_outrun = False  # Since the last look, others have taken runs that were found due here.
        self._horizon_us = horizon_us
        self._armed: dict[tuple[str, bool], Timer] = {}
        self._going: set[tuple[str, bool]] = set()  # told, and not committed yet: the store still has them as due
        self._gone: set[tuple[str, bool]] = set()  # committed since the store was asked: it may not have known that
        self._overdue: set[tuple[str, bool]] = set()  # what the last look found, if that was all it could take
        self._next: Timer | None = None
        self._is_sweeping = False
        self._is_put_off = False  # until enough of what is going is committed
        self._outage = Outage("due runs")

    @property
    def busy(self) -> bool:
        """Whether the store is being asked."""
        return self._is_sweeping

    async def sweep(self) -> int:
        """Look for runs that are due before the horizon, and arm a timer for each; how many are armed now."""
        self._is_sweeping = True
        try:
            now = self._clock.now()
            self._gone.clear()
            found = await self._store.ripe(offers=self._offers(), before=_FOREVER, limit=_AT_ONCE)
            horizon = now + self._horizon_us
            for number, (ripe, at) in enumerate(self._in_turn(found, now), 1):
                key = (ripe.run_id, ripe.deadline)
                if ripe.due_at < horizon and key not in self._going and key not in self._gone:
                    self._arm(ripe, at)
                if number % _ARMED_PER_TURN == 0:
                    await asyncio.sleep(0)  # What is asked for meanwhile has its turn.
            later = [ripe.due_at for ripe in found if ripe.due_at >= horizon]
            if later:
                self._look_again_at(max(now, min(later) - self._horizon_us // 2))
            elif len(found) == _AT_ONCE:
                # Its timer comes after those of what was found. If they are found again nevertheless, nobody can take
                # them up now, and asking for them at once would go on for ever.
                found_now = {(ripe.run_id, ripe.deadline) for ripe in found}
                is_any_new = not found_now <= self._overdue
                self._overdue = found_now
                self._look_again_at(max(now if is_any_new else now + _AGAIN_US, found[-1].due_at))
        finally:
            self._is_sweeping = False
        return len(self._armed)

    def left(self, run_id: str, due_at: int | None, deadline: bool = False) -> None:
        """A run was given up that is due, or has its deadline, at a time, if at any."""
        if due_at is None:
            return
        if due_at < self._clock.now() + self._horizon_us:
            self._arm(Ripe(run_id=run_id, due_at=due_at, deadline=deadline), due_at)
        else:
            self._look_again_at(due_at - self._horizon_us // 2)

    def _in_turn(self, found: Sequence[Ripe], now: int) -> list[tuple[Ripe, int]]:
        """What was found, and when the timer of each is to fire: engines that are after the same runs begin at
        different places among those that are overdue."""
        overdue = [ripe for ripe in found if ripe.due_at <= now] if self._is_outrun else []
        self._is_outrun = False
        if not overdue:
            return [(ripe, ripe.due_at) for ripe in found]
        start = crc32(self._me().encode()) % len(overdue)
        later = [(ripe, ripe.due_at) for ripe in found[len(overdue) :]]
        return [*((ripe, now) for ripe in (*overdue[start:], *overdue[:start])), *later]

    def _arm(self, ripe: Ripe, at: int) -> None:
        key = (ripe.run_id, ripe.deadline)
        armed = self._armed.get(key)
        if armed is not None:
            if armed.due_at <= at == ripe.due_at:
                return
            armed.cancel()
        self._armed[key] = self._timers.arm(at, lambda: self._due(ripe))

    def _due(self, ripe: Ripe) -> None:
        key = (ripe.run_id, ripe.deadline)
        self._armed.pop(key, None)
        self._going.add(key)
        if ripe.deadline:
            self._expire(ripe.run_id, ripe.due_at, lambda _reply, error: self._answered(key, error))
        else:
            self._wake(ripe.run_id, lambda reply, error: self._answered(key, error, is_taken=reply is True))

    def _answered(self, key: tuple[str, bool], error: BaseException | None, *, is_taken: bool = True) -> None:
        self._going.discard(key)
        self._is_outrun = self._is_outrun or not is_taken
        if self._is_sweeping and error is None:
            self._gone.add(key)
        if self._is_put_off and not self._is_crowded:
            self._look_again()

    @property
    def _is_crowded(self) -> bool:
        """Whether a look would find again, for the most part, what is being committed."""
        return len(self._going) * 2 > _AT_ONCE

    def _look_again_at(self, when: int) -> None:
        if self._next is not None:
            if self._next.due_at <= when:
                return
            self._next.cancel()
        self._next = self._timers.arm(when, self._look_again)

    def _look_again(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self._is_put_off = self._is_crowded
        if self._is_put_off:
            return
        self._is_sweeping = True
        self._background(self._sweep_again())

    async def _sweep_again(self) -> None:
        try:
            await self.sweep()
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - an engine that looks no more would leave runs asleep for ever
            self._outage.failed("looking for runs that are due is tried again", error)
            self._timers.after(_AGAIN_US, self._look_again)
