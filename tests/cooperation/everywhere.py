"""A scenario in every order, on every store, and with its process dying at every commit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from perdure.models.cooperation.message_events import EventType, MessageEvent, State
from perdure.testing.faults import CRASH_POINTS, Point
from tests.cooperation.world import Seen, World

T = TypeVar("T")

STORES = ("memory", "sqlite", "postgres")

Scenario = Callable[..., World]
Check = Callable[[Any], None]

_ROLLBACK = "Rollback of "


class Everywhere:
    """`whole` tries every fault at every commit on every store, which takes minutes. Otherwise each commit has one
    fault in memory, and a few of them on the others; which they are differs from scenario to scenario."""

    def __init__(self, *, whole: bool, name: str) -> None:
        self._whole = whole
        self._lot = zlib.crc32(name.encode())

    def __call__(self, scenario: Scenario, check: Check, seeds: int = 12) -> World:
        """In the plain order, in orders drawn by lot with late news, and with a crash around every commit; then on
        engines. Gives the world of the plain order."""
        plain = scenario()
        self._checked(plain, check)
        for seed in range(seeds * 5 if self._whole else seeds):
            self._checked(scenario(seed=seed, late=seed % 2 == 1), check)
        for commit in range(1, plain.commits + 1):
            if self._whole or commit % 2 == 0:
                self._checked(scenario(crash_at=commit), check)
            if self._whole or commit % 2 == 1:
                self._checked(scenario(seed=commit, crash_at=commit, crash_after=True), check)
        self.on_engines(scenario, check)
        return plain

    def on_engines(self, scenario: Scenario, check: Check) -> None:
        """With an engine on each store, and with its process dying at every commit."""
        for on in STORES:
            world: Any = scenario(on=on)
            world.end()
            self._checked(world, check)
            for commit, point in self._faults(on, world.batches):
                faulty: Any = None
                try:
                    faulty = scenario(on=on, crash_at=commit, point=point)
                    faulty.end()
                    self._checked(faulty, check)
                except Exception as error:
                    error.add_note(
                        f"with an engine on {on} and a fault {point!r} at commit {commit} of {world.batches}"
                    )
                    raise

    def few(self, choices: Sequence[T]) -> Sequence[T]:
        """All of them, or one in five."""
        return choices if self._whole else choices[::5]

    def _faults(self, on: str, batches: int) -> Iterator[tuple[int, Point]]:
        if self._whole:
            yield from ((commit, point) for commit in range(1, batches + 1) for point in CRASH_POINTS)
            return
        self._lot += 1
        lot = self._lot
        few = {"memory": batches, "sqlite": 1, "postgres": 1}[on]
        for number in range(min(few, batches)):
            commit = (lot + number) % batches + 1
            yield commit, CRASH_POINTS[(lot + number) % len(CRASH_POINTS)]

    @staticmethod
    def _checked(world: Seen, check: Check) -> None:
        check_undone_once(world)
        check(world)


def check_undone_once(world: Seen) -> None:
    """What the rows say, whatever the scenario: nothing is undone twice, or in another order than the reverse, and
    nothing that was done is left when its run is rolled back, its children neither."""
    hierarchy = world.hierarchy()
    states = {run.lineage: world.state_at(run.lineage) for run in world.runs}
    for run in world.runs:
        rows = list(hierarchy.own(run.lineage))
        done, undone = _done(rows), _undone(rows)
        state = states[run.lineage]
        assert undone == [*reversed(done)][: len(undone)], (run.handler, done, undone)
        if state is State.ROLLED_BACK:
            assert len(undone) == len(done), (run.handler, done, undone)
        elif state in (State.COMMITTED, State.ACTIVE, State.CREATED):
            assert not undone, (run.handler, state, undone)
        above = states.get(run.lineage[:-1])
        if above is State.ROLLED_BACK and not _is_of_rollback(world, run.message_id):
            told = {one.message_id for one in hierarchy.own(run.lineage[:-1]) if one.type is EventType.ROLLBACK_EMITTED}
            assert run.message_id in told, (run.handler, "was not told")
            assert state is not State.COMMITTED, (run.handler, state)


def _done(rows: list[MessageEvent]) -> list[str]:
    """The steps that a run has executed, in order."""
    found: list[str] = []
    for row in rows:
        if row.type is EventType.ROLLING_BACK:
            break
        if row.type is EventType.SUSPENDED and row.child_failure_handler_iteration is None:
            found.append(row.step or "")
    return found


def _undone(rows: list[MessageEvent]) -> list[str]:
    """The steps that it has undone, or passed over: each in a row that says "Rollback of step[3,]"."""
    found: list[str] = []
    is_back = False
    for row in rows:
        is_back = is_back or row.type is EventType.ROLLING_BACK
        text = (row.step or "").rstrip("$")
        is_own = row.type is EventType.SUSPENDED and row.child_failure_handler_iteration is None
        if is_back and is_own and text.startswith(_ROLLBACK) and text.endswith(",]"):
            found.append(text.removeprefix(_ROLLBACK).rpartition("[")[0])
    return found


def _is_of_rollback(world: Seen, message_id: str) -> bool:
    """Whether a message was emitted on the way back."""
    for row in world.events:
        if row.type is EventType.EMITTED and row.message_id == message_id:
            own = world.hierarchy().own(row.cooperation_lineage)
            return any(other.type is EventType.ROLLING_BACK and other.seq < row.seq for other in own)
    raise AssertionError(f"message {message_id} was never emitted")
