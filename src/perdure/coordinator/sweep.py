"""The sweep: finds the runs that no engine owns, and arms a timer for each run that is due soon.

It is repeated before the remaining runs are due.

An engine that has a timer for a run does not own the run. When the timer fires, an op finds out whether the run must
still be woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from zlib import crc32

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.listener import Background, Code
from perdure.coordinator.notices import Outage
from perdure.coordinator.timers import Timer, Timers
from perdure.ports import Clock, DueRun, Store

HORIZON_US = 10 * 60 * 1_000_000
_AT_ONCE = 2_000
_ARMED_PER_TURN = 100
_FOREVER = 2**62
_AGAIN_US = 1_000_000

Answered = Callable[[Any, BaseException | None], object]


class DueListener(Protocol):
    """Goes on with due runs. It calls back when that is committed or refused."""

    def wake(self, run_id: str, answered: Answered) -> None:
        """Go on with a run whose timer is due."""
        ...

    def expire(self, run_id: str, due_at: int, answered: Answered) -> None:
        """End a run that has reached its deadline."""
        ...


class Sweeper:
    """Reports runs that are due to the listener. A run is not reported again until the listener calls back.

    Overdue runs are reported in the order of their due times. If other engines take these runs first, each engine
    begins at another place in that order.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        timers: Timers,
        *,
        coordinator: Coordinator,
        code: Code,
        tasks: Background,
        listener: DueListener,
        horizon_us: int = HORIZON_US,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._coordinator = coordinator
        self._code = code
        self._tasks = tasks
        self._listener = listener
        self._is_outrun = False  # whether, since the last sweep, other engines have taken runs that were due here
        self._horizon_us = horizon_us
        self._armed: dict[tuple[str, bool], Timer] = {}
        self._going: set[tuple[str, bool]] = set()  # reported, but not committed yet; the store still has them as due
        # committed after the store was asked, so the store's answer may be older
        self._gone: set[tuple[str, bool]] = set()
        # the runs that the last sweep found, if it found as many as it could take
        self._overdue: set[tuple[str, bool]] = set()
        self._next: Timer | None = None
        self._is_sweeping = False
        self._is_put_off = False  # The next sweep waits until enough of `_going` is committed.
        self._outage = Outage("due runs", coordinator.stats.outages)

    @property
    def busy(self) -> bool:
        """Whether a request to the store is under way."""
        return self._is_sweeping

    async def sweep(self) -> int:
        """Look for runs that are due before the horizon, and arm a timer for each. Return how many timers are armed
        now. Raises StoreError."""
        self._is_sweeping = True
        try:
            now = self._clock.now()
            self._gone.clear()
            found = await self._store.due_runs(offers=self._code.offers(), before=_FOREVER, limit=_AT_ONCE)
            horizon = now + self._horizon_us
            for number, (due, at) in enumerate(self._in_turn(found, now), 1):
                key = (due.run_id, due.deadline)
                if due.due_at < horizon and key not in self._going and key not in self._gone:
                    self._arm(due, at)
                if number % _ARMED_PER_TURN == 0:
                    await asyncio.sleep(0)  # Let other tasks of the loop run.
            later = [due.due_at for due in found if due.due_at >= horizon]
            if later:
                self._look_again_at(max(now, min(later) - self._horizon_us // 2))
            elif len(found) == _AT_ONCE:
                # There may be more due runs. So the timer of the next sweep comes after the timers of the runs that
                # were found now. If the next sweep finds the same runs again, no engine can take them now. Sweeping
                # again at once would repeat this forever.
                found_now = {(due.run_id, due.deadline) for due in found}
                is_any_new = not found_now <= self._overdue
                self._overdue = found_now
                self._look_again_at(max(now if is_any_new else now + _AGAIN_US, found[-1].due_at))
        finally:
            self._is_sweeping = False
        return len(self._armed)

    def left(self, run_id: str, due_at: int | None, deadline: bool = False) -> None:
        """Arm a timer for a run that this engine has released, if `due_at` is known."""
        if due_at is None:
            return
        if due_at < self._clock.now() + self._horizon_us:
            self._arm(DueRun(run_id=run_id, due_at=due_at, deadline=deadline), due_at)
        else:
            self._look_again_at(due_at - self._horizon_us // 2)

    def _in_turn(self, found: Sequence[DueRun], now: int) -> list[tuple[DueRun, int]]:
        """Return the runs that were found, and the time at which the timer of each run fires. Engines that compete for
        the same overdue runs begin at different places.
        """
        overdue = [due for due in found if due.due_at <= now] if self._is_outrun else []
        self._is_outrun = False
        if not overdue:
            return [(due, due.due_at) for due in found]
        start = crc32(self._coordinator.engine.id.encode()) % len(overdue)
        later = [(due, due.due_at) for due in found[len(overdue) :]]
        return [*((due, now) for due in (*overdue[start:], *overdue[:start])), *later]

    def _arm(self, due: DueRun, at: int) -> None:
        key = (due.run_id, due.deadline)
        armed = self._armed.get(key)
        if armed is not None:
            if armed.due_at <= at == due.due_at:
                return
            armed.cancel()
        self._armed[key] = self._timers.arm(at, lambda: self._due(due))

    def _due(self, due: DueRun) -> None:
        key = (due.run_id, due.deadline)
        self._armed.pop(key, None)
        self._going.add(key)
        if due.deadline:
            self._listener.expire(due.run_id, due.due_at, lambda _reply, error: self._answered(key, error))
        else:
            self._listener.wake(due.run_id, lambda reply, error: self._answered(key, error, is_taken=reply is True))

    def _answered(self, key: tuple[str, bool], error: BaseException | None, *, is_taken: bool = True) -> None:
        self._going.discard(key)
        self._is_outrun = self._is_outrun or not is_taken
        if self._is_sweeping and error is None:
            self._gone.add(key)
        if self._is_put_off and not self._is_crowded:
            self._look_again()

    @property
    def _is_crowded(self) -> bool:
        """Whether most of the runs that a sweep would find are already being committed."""
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
        self._tasks.background(self._sweep_again())

    async def _sweep_again(self) -> None:
        try:
            await self.sweep()
            self._outage.worked()
        except Exception as error:  # noqa: BLE001 - an engine that stops sweeping would leave runs asleep for ever
            self._outage.failed("looking for runs that are due is tried again", error)
            self._timers.after(_AGAIN_US, self._look_again)
