"""Deadlocks: runs that wait for each other to end, so that none of them ever ends.

A run stands still if it waits only for the ends of other runs, and all these runs stand still too. The check follows
the stored waits from run to run, across engines. A run that also waits for a timer or an event, or that has a deadline,
may go on. A held run may go on too: its hold was reported, and somebody may lift it. A run that rolls back stands still
if it waits for a compensating workflow, and that workflow stands still.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from perdure.coordinator.notices import Outage
from perdure.coordinator.timers import pause
from perdure.kernel.rows import Wait
from perdure.kernel.status import Status
from perdure.ports import Clock, LoadedRun, Store

log = logging.getLogger("perdure")

PERIOD_S: Final = 30
_RUNS_MAX: Final = 1_000  # how many runs the check follows from one run
_READ_AT_ONCE: Final = 64
_WATCHED_MAX: Final = 10_000
_PERIOD_MAX_US: Final = 3_600 * 1_000_000


async def standstill(store: Store, run_id: str) -> tuple[str, ...]:
    """Return the cycle of runs that keeps a run standing still.

    Each run of the cycle waits for the next one, and the last run waits for the first. The result is empty if the run
    may go on, or if more than _RUNS_MAX runs would have to be followed.
    """
    waits: dict[str, tuple[Wait, ...]] = {}
    asked = [run_id]
    while asked:
        part, asked = asked[:_READ_AT_ONCE], asked[_READ_AT_ONCE:]
        found = await store.load(part)
        for one in part:
            waits[one] = _awaited(found.get(one))
            if not waits[one]:
                return ()
        known = waits.keys() | set(asked)
        asked += [target for target in _targets(waits, part) if target not in known]
        if len(waits) + len(asked) > _RUNS_MAX:
            return ()
    # Each run waited when it was read. If a second read finds the same waits, all runs waited at the same time.
    again = await store.load(list(waits))
    if any(_awaited(again.get(one)) != known for one, known in waits.items()):
        return ()
    return _cycle(waits, run_id)


def _awaited(one: LoadedRun | None) -> tuple[Wait, ...]:
    """Return the waits of a run that waits only for other runs to end. Return an empty tuple for any other run."""
    if one is None or one.run.hold:
        return ()
    # A run that rolls back waits for a workflow that it has started to undo something. No deadline ends this wait.
    if one.run.status is not Status.ROLLING_BACK and (
        one.run.status is not Status.SUSPENDED or one.run.deadline is not None
    ):
        return ()
    is_more = any(wait.kind != "run" or wait.target is None or wait.due_at is not None for wait in one.waits)
    return () if is_more else one.waits


def _targets(waits: Mapping[str, Sequence[Wait]], run_ids: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(wait.target or "" for one in run_ids for wait in waits[one])]


def _cycle(waits: Mapping[str, Sequence[Wait]], run_id: str) -> tuple[str, ...]:
    path: dict[str, None] = {}
    while run_id not in path:
        path[run_id] = None
        run_id = waits[run_id][0].target or ""
    ids = list(path)
    return tuple(ids[ids.index(run_id) :])


def described(cycle: Sequence[str]) -> str:
    """Return the warning about runs that wait for each other, and the advice what to do."""
    ways = [f"{one!r} waits for {other!r}" for one, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True)]
    shown = ways if len(ways) <= 10 else [*ways[:9], f"… ({len(ways) - 10} more)", ways[-1]]
    return (
        f"runs wait for each other, and nothing can end that: {', '.join(shown)}. What to do: cancel one of them; "
        "have one of them wait for an event instead, or give it a timer or a deadline"
    )


class StandstillWatch:
    """Checks runs that wait for other runs to end: first after PERIOD_S, then less and less often.

    Warns of each cycle once.

    The engine adds a run to `awaiting` when the run begins to wait for the end of another run. The watch takes the runs
    out of `awaiting`. After a restart of the engine, a run is watched again when it begins its next wait. The method
    `waits()` of a run's handle shows a cycle at any time.
    """

    def __init__(self, store: Store, clock: Clock, awaiting: dict[str, None], outages: Counter[str]) -> None:
        self._store = store
        self._clock = clock
        self._awaiting = awaiting
        self._outages = outages
        self._due: dict[str, tuple[int, int]] = {}  # by run: the time of its next check, and the period before it
        self._warned: set[frozenset[str]] = set()

    async def run(self) -> None:
        """Check regularly, until this is cancelled."""
        outage = Outage("standstills", self._outages)
        while True:
            await pause(self._clock, PERIOD_S)
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - whatever the error is, the next check may succeed
                outage.failed("looking for runs that wait for each other failed and is tried again", error)
            else:
                outage.worked()

    async def look(self) -> None:
        """Check the runs whose next check is due."""
        now = self._clock.now()
        due = [run_id for run_id, (at, _) in self._due.items() if at <= now]
        for run_id in due:
            period = min(2 * self._due.pop(run_id)[1], _PERIOD_MAX_US)
            cycle = await standstill(self._store, run_id)
            if cycle and frozenset(cycle) not in self._warned:
                self._warned.add(frozenset(cycle))
                log.warning("%s", described(cycle))
            elif not cycle and await self._is_waiting(run_id):
                self._watch(run_id, now + period, period)
        for run_id in self._awaiting:
            self._watch(run_id, now, PERIOD_S * 1_000_000 // 2)
        self._awaiting.clear()

    def _watch(self, run_id: str, at: int, period: int) -> None:
        if run_id in self._due or len(self._due) < _WATCHED_MAX:
            self._due[run_id] = at, period

    async def _is_waiting(self, run_id: str) -> bool:
        found = (await self._store.load([run_id])).get(run_id)
        return found is not None and any(wait.kind == "run" for wait in found.waits)


__all__ = ["PERIOD_S", "StandstillWatch", "described", "standstill"]
