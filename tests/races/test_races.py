"""Every race of two ops, in all four orders of meeting, in peace and with a crash around each commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.testing import Environment, YieldPoints, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.races.meeting import ORDERS, Order
from tests.races.programs import RULES, WORKFLOWS, Gate, Stage


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Trials:
    """Runs a race in one environment after another, each on fresh data."""

    def __init__(self, name: str, order: Order, backend: str, path: Path) -> None:
        self.rule = RULES[name]
        self.points = YieldPoints()
        self._order = order
        self._backend = backend
        self._path = path
        self._count = 0
        self._gate = Gate()
        self.options: dict[str, Any] = {
            "autojump_s": None,
            "probe": self.points,
            "resources": {Gate: lambda: self._gate},
            **self.rule.options,
        }

    def store(self) -> StoreSource:
        self._count += 1
        self._gate = Gate()
        return None if self._backend == "memory" else f"sqlite:///{self._path / str(self._count)}.db"

    async def scenario(self, env: Environment) -> Any:
        return await self.rule.race(Stage(env, self.points, self._order, self._gate))

    def check(self, result: Any) -> None:
        assert result in self.rule.allowed, f"{result!r} came out, and only {self.rule.allowed} may"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RULES)
async def test_whoever_comes_first_nothing_is_lost(name: str, order: Order, backend: str, tmp_path: Path) -> None:
    trials = Trials(name, order, backend, tmp_path)
    async with Environment(WORKFLOWS, trials.store(), **trials.options) as env:
        trials.check(await trials.scenario(env))
        await env.check()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RULES)
async def test_whoever_comes_first_a_crash_loses_nothing(
    name: str, order: Order, backend: str, tmp_path: Path
) -> None:
    trials = Trials(name, order, backend, tmp_path)
    report = await run_with_crashes(
        trials.scenario, workflows=WORKFLOWS, store=trials.store, check=trials.check, **trials.options
    )
    assert report.trials == 5 * report.commits
