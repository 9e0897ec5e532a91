"""The count of recoveries, with a death at every commit: one that only waits is never poison, one that kills always is.

The process dies, or does not know what became of a commit, at each commit in turn: those that take a run up, those that
take a recovery back, and those that count it again, among them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, Retry, resource, step, workflow
from perdure.errors import EngineStopped, StoreBroken
from perdure.testing import CRASH_POINTS, Environment, Fault, Point
from perdure.testing.environment import StoreSource

ALL_COMMITS = range(1, 7)  # the start, and those of two lives after it
ON_POSTGRES = range(2, 5)  # Tables of their own for each take a while: the first one of each kind will do.
RECOVERIES_MAX = 3
SOON = Retry(attempts=1000, initial=timedelta(milliseconds=500), multiplier=1, jitter=0)
EVERY_STORE = pytest.mark.parametrize("fresh", ["memory", "sqlite", "postgres"], indirect=True)


@pytest.fixture
def commits(request: pytest.FixtureRequest) -> range:
    return ON_POSTGRES if request.node.callspec.params["fresh"] == "postgres" else ALL_COMMITS


class Attempts:
    def __init__(self) -> None:
        self.made = 0
        self.is_well = False
        self.kills = 0
        self.death = asyncio.Event()


@step(name="blame_crashes.fail", retry=SOON)
async def fail() -> str:
    attempts = resource(Attempts)
    attempts.made += 1
    if not attempts.is_well:
        raise OSError("not now")
    return "well"


@workflow(name="blame_crashes.pauses")
async def pauses() -> str:
    return await fail()


@step(name="blame_crashes.kill", retry=SOON)
async def kill(lives: int) -> None:
    attempts = resource(Attempts)
    attempts.made += 1
    if attempts.made % 2:
        raise OSError("not now")
    attempts.kills += 1
    attempts.death.set()
    await asyncio.Event().wait()


@workflow(name="blame_crashes.kills")
async def kills() -> None:
    await kill(1)


async def counted(env: Environment, run_id: str) -> tuple[int, str | None]:
    view = await env.engine.runs.get(run_id)
    assert view is not None
    return view.recoveries, view.hold.kind if view.hold is not None else None


@EVERY_STORE
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_run_in_a_short_pause_is_not_blamed_wherever_its_process_dies(
    point: Point, fresh: Callable[[], StoreSource], commits: range
) -> None:
    struck = 0
    for commit in commits:
        attempts = Attempts()
        fault = Fault(point, commit)
        options: dict[str, Any] = {
            "limits": Limits(recoveries_max=RECOVERIES_MAX),
            "resources": {Attempts: lambda one=attempts: one},
        }
        async with Environment([pauses], fresh(), autojump_s=None, fault=fault, **options) as env:
            for _ in range(RECOVERIES_MAX + 2):
                # A death between taking the run up and its rest is counted, once, and nothing else is.
                assert await env.survive(rests) <= fault.struck
                await env.restart()
            assert await env.survive(rests) <= fault.struck
            attempts.is_well = True
            assert await env.survive(goes_on) == "well"
            assert await counted(env, "r") == (0, None)
            await env.check()
        struck += fault.struck
    assert struck >= len(commits) - 1  # It came to each kind of commit.


async def rests(env: Environment) -> int:
    await env.engine.start(pauses(), id="r")
    await env.quiet()
    recoveries, hold = await counted(env, "r")
    assert hold is None
    return recoveries


async def goes_on(env: Environment) -> str:
    await env.advance(1)
    result: str = await env.engine.handle("r").result()
    return result


@EVERY_STORE
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_run_that_kills_its_process_is_held_in_time_wherever_else_it_dies(
    point: Point, fresh: Callable[[], StoreSource], commits: range
) -> None:
    for commit in commits:
        attempts = Attempts()
        fault = Fault(point, commit)
        options: dict[str, Any] = {
            "limits": Limits(recoveries_max=RECOVERIES_MAX),
            "resources": {Attempts: lambda one=attempts: one},
        }
        async with Environment([kills], fresh(), autojump_s=0.001, fault=fault, **options) as env:
            hold: str | None = None
            while hold is None:
                if env.is_dead or attempts.death.is_set():
                    attempts.death.clear()
                    attempts.made += attempts.made % 2  # Each life fails once, then kills.
                    await env.restart()
                    continue
                with suppress(EngineStopped, StoreBroken):  # It may die at any moment.
                    await env.engine.start(kills(), id="r")
                    _, hold = await counted(env, "r")
                await asyncio.sleep(0.001)
            assert hold == "poison"
            # A death of another cause may be counted as its own; none of its own is ever forgotten.
            assert RECOVERIES_MAX <= attempts.kills <= RECOVERIES_MAX + 1, (commit, attempts.kills)
            await env.check()
