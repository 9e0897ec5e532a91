"""Every race of two ops, in all four orders of meeting, in peace and with a crash around each commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.testing import CRASH_POINTS, Environment, Fault, YieldPoints
from perdure.testing.environment import StoreSource
from tests.races import answers, programs
from tests.races.programs import Gate, Stage
from tests.races.races import ORDERS, Order

RULES = {**programs.RULES, **answers.RULES}
WORKFLOWS = [*programs.WORKFLOWS, *answers.WORKFLOWS]

# A trial takes milliseconds: one that hangs is to say which it is before the whole test is given up.
TRIAL_LIMIT_S = 60


class Trials:
    """Runs a race in one environment after another, each on fresh data."""

    def __init__(self, name: str, order: Order, fresh: Callable[[], StoreSource]) -> None:
        self.met_after = 0  # commits
        self._name = name
        self._rule = RULES[name]
        self._order: Order = order
        self._fresh = fresh

    async def run(self, fault: Fault | None) -> None:
        """Run it once. Raises what went wrong, with a note of where."""
        try:
            async with asyncio.timeout(TRIAL_LIMIT_S):
                await self._run(fault)
        except Exception as error:
            where = "in peace" if fault is None or not fault.times else f"with {fault}, after {fault.commits} in all"
            error.add_note(f"in {self._name}, {self._order!r}, {where}")
            raise

    async def _run(self, fault: Fault | None) -> None:
        gate, points = Gate(), YieldPoints()
        resources = {Gate: lambda: gate}
        options: dict[str, Any] = {"autojump_s": None, "probe": points, "resources": resources, **self._rule.options}

        async def scenario(env: Environment) -> Any:
            stage = Stage(env, points, self._order, gate)
            result = await self._rule.race(stage)
            self.met_after = stage.met_after
            return result

        async with Environment(WORKFLOWS, self._fresh(), fault=fault, **options) as env:
            result = await env.survive(scenario)
            assert result in self._rule.allowed, f"{result!r} came out, and only {self._rule.allowed} may"
            await env.check()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RULES)
async def test_whoever_comes_first_nothing_is_lost(name: str, order: Order, fresh: Callable[[], StoreSource]) -> None:
    await Trials(name, order, fresh).run(None)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RULES)
async def test_whoever_comes_first_a_crash_loses_nothing(
    name: str, order: Order, fresh: Callable[[], StoreSource]
) -> None:
    """The process dies, or is left in the dark, at each commit from the meeting on."""
    trials = Trials(name, order, fresh)
    peace = Fault("busy", times=0)
    await trials.run(peace)
    first, last = trials.met_after + 1, peace.commits
    assert first <= last
    struck = 0
    for commit in range(first, last + 1):
        for point in CRASH_POINTS:
            fault = Fault(point, commit)
            await trials.run(fault)
            struck += fault.struck
    # How many commits there are depends on how fast the store is, so that the last ones may not come.
    assert struck >= len(CRASH_POINTS)
