"""Every race of two ops, in all four orders of meeting, in peace and with a crash around each commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.testing import CRASH_POINTS, Environment, Fault, Point, YieldPoints
from tests.races.meeting import ORDERS, Order
from tests.races.programs import RULES, WORKFLOWS, Gate, Stage


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Trials:
    """Runs a race in one environment after another, each on fresh data."""

    def __init__(self, name: str, order: Order, backend: str, path: Path) -> None:
        self.met_after = 0  # commits
        self._rule = RULES[name]
        self._order: Order = order
        self._backend = backend
        self._path = path
        self._count = 0

    async def run(self, fault: Fault | None) -> None:
        gate, points = Gate(), YieldPoints()
        self._count += 1
        store = None if self._backend == "memory" else f"sqlite:///{self._path / str(self._count)}.db"
        resources = {Gate: lambda: gate}
        options: dict[str, Any] = {"autojump_s": None, "probe": points, "resources": resources, **self._rule.options}

        async def scenario(env: Environment) -> Any:
            stage = Stage(env, points, self._order, gate)
            result = await self._rule.race(stage)
            self.met_after = stage.met_after
            return result

        async with Environment(WORKFLOWS, store, fault=fault, **options) as env:
            result = await env.survive(scenario)
            assert result in self._rule.allowed, f"{result!r} came out, and only {self._rule.allowed} may"
            await env.check()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RULES)
async def test_whoever_comes_first_nothing_is_lost(name: str, order: Order, backend: str, tmp_path: Path) -> None:
    trials = Trials(name, order, backend, tmp_path)
    await trials.run(None)


# What each adds: the commit is lost, its effects are lost, they have begun, and twice nobody knows. A real file makes a
# trial slow, so there only those two are tried that are not the same for every store, and every other order.
POINTS: dict[str, tuple[Point, ...]] = {"memory": CRASH_POINTS, "sqlite": ("before_effects", "unknown")}
CASES = [
    (backend, name, order)
    for number, name in enumerate(RULES)
    for backend in POINTS
    for place, order in enumerate(ORDERS)
    if backend == "memory" or place % 2 == number % 2
]


@pytest.mark.parametrize(("backend", "name", "order"), CASES)
async def test_whoever_comes_first_a_crash_loses_nothing(backend: str, name: str, order: Order, tmp_path: Path) -> None:
    """The process dies, or is left in the dark, at each commit from the meeting on."""
    trials = Trials(name, order, backend, tmp_path)
    peace = Fault("busy", times=0)
    await trials.run(peace)
    assert peace.commits > trials.met_after
    struck = 0
    for commit in range(trials.met_after + 1, peace.commits + 1):
        for point in POINTS[backend]:
            fault = Fault(point, commit)
            try:
                await trials.run(fault)
            except Exception as error:
                error.add_note(f"with {fault} of {peace.commits}")
                raise
            struck += fault.struck
    # How many commits there are depends on how fast the store is, so that the last ones may not come.
    assert struck >= len(POINTS[backend])
