"""Retries of one run at the same time, on several engines: it is retried once, and whoever asked hears that it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import Retry, resource, step, workflow
from perdure.errors import ConcurrentModification, RunFailed, RunNotFound, RunNotRetryable
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment, YieldPoints
from perdure.testing.environment import StoreSource


class Weather:
    """How often the step was tried, and what it does then."""

    def __init__(self) -> None:
        self.tries = 0
        self.fails = True
        self.hangs = asyncio.Event()
        self.hangs.set()


@step(retry=Retry.never())
async def risky() -> int:
    weather = resource(Weather)
    weather.tries += 1
    await weather.hangs.wait()
    if weather.fails:
        raise ConnectionError("no answer")
    return weather.tries


@workflow
async def flow() -> int:
    return await risky()


class Fleet:
    """Two engines on one store. `slow` can be stopped where it asks for something."""

    def __init__(self, weather: Weather, slow: Environment, quick: Environment, points: YieldPoints) -> None:
        self.weather = weather
        self.slow = slow.engine
        self.quick = quick.engine
        self.points = points

    async def attempt(self) -> tuple[int, str]:
        view = await self.quick.runs.get("r-1")
        assert view is not None
        return view.attempt, view.status


@asynccontextmanager
async def failed_run(source: StoreSource) -> AsyncIterator[Fleet]:
    if source is None:
        database = MemoryDatabase()
        source = lambda: MemoryStore(database)  # noqa: E731
    weather, points = Weather(), YieldPoints()
    options: dict[str, Any] = {"autojump_s": None, "resources": {Weather: lambda: weather}, "poll_s": 0.01}
    async with (
        Environment([flow], source, probe=points, **options) as slow,
        Environment([flow], source, clock=slow.clock, **options) as quick,
    ):
        with pytest.raises(RunFailed):
            await quick.engine.run(flow(), id="r-1")
        yield Fleet(weather, slow, quick, points)


async def test_a_run_that_somebody_else_has_retried_meanwhile_is_not_retried_again(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        with fleet.points.hold("retry.submit") as held:
            retrying = asyncio.ensure_future(fleet.slow.handle("r-1").retry())
            await held.reached()
            with pytest.raises(RunFailed):
                await (await fleet.quick.handle("r-1").retry()).result()
        handle = await retrying
        with pytest.raises(RunFailed):
            await handle.result()
        assert (fleet.weather.tries, await fleet.attempt()) == (2, (2, "failed"))


async def test_a_run_that_runs_again_by_then_is_left_to_run(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        fleet.weather.hangs.clear()
        fleet.weather.fails = False
        with fleet.points.hold("retry.submit") as held:
            retrying = asyncio.ensure_future(fleet.slow.handle("r-1").retry())
            await held.reached()
            await fleet.quick.handle("r-1").retry()
        handle = await retrying
        fleet.weather.hangs.set()
        assert await handle.result() == 2
        assert await fleet.attempt() == (2, "succeeded")
        with pytest.raises(RunNotRetryable):
            await fleet.slow.handle("r-1").retry()


async def test_another_change_of_the_run_does_not_keep_it_from_being_retried(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        fleet.weather.fails = False
        with fleet.points.hold("retry.submit") as held:
            retrying = asyncio.ensure_future(fleet.slow.handle("r-1").retry())
            await held.reached()
            await fleet.quick.handle("r-1").update(tags={"looked": "at"})
        assert await (await retrying).result() == 2
        assert await fleet.attempt() == (2, "succeeded")


async def test_who_says_which_version_is_told_that_it_is_another(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        view = await fleet.slow.runs.get("r-1")
        assert view is not None
        with fleet.points.hold("retry.submit") as held:
            retrying = asyncio.ensure_future(fleet.slow.handle("r-1").retry(expected_version=view.version))
            await held.reached()
            with pytest.raises(RunFailed):
                await (await fleet.quick.handle("r-1").retry()).result()
        with pytest.raises(ConcurrentModification):
            await retrying
        assert await fleet.attempt() == (2, "failed")


async def test_a_run_that_is_not_there_is_not_found(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        with pytest.raises(RunNotFound):
            await fleet.slow.handle("nobody").retry()


async def test_many_at_once_retry_it_once(source: StoreSource) -> None:
    async with failed_run(source) as fleet:
        fleet.weather.hangs.clear()
        fleet.weather.fails = False
        asked = [engine.handle("r-1").retry() for engine in (fleet.slow, fleet.quick) * 10]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        # Who looks at the run only after it has begun again is told so.
        handles = [one for one in answers if not isinstance(one, RunNotRetryable)]
        fleet.weather.hangs.set()
        assert {await one.result() for one in handles if not isinstance(one, BaseException)} == {2}
        assert not [one for one in handles if isinstance(one, BaseException)]
        assert await fleet.attempt() == (2, "succeeded")
