"""Functions that take part: they emit, wait for the whole hierarchy, and have it undone with themselves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import compensate, step, workflow
from perdure.cooperation import emit
from perdure.errors import RunFailed, ScopeFailed
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import Diary

ROOT, CHILD = topic("root"), topic("child")
DIARY = Diary()


@step
async def reserve() -> str:
    DIARY.append("reserve")
    return "reserved"


@step
async def release() -> None:
    DIARY.append("release")


@workflow
async def checkout(fails: bool) -> str:
    found = await reserve()
    await compensate(release())
    await emit(ROOT, {"n": 1})
    if fails:
        raise ValueError("too late")
    return found


@workflow
async def forgiving() -> str:
    try:
        await emit(ROOT, {})
    except ScopeFailed as error:
        return str(error)
    return "no failure"


def operations(**options: Any) -> list[Any]:
    DIARY.clear()
    return [DIARY.operation("root", ROOT, [CHILD], []), DIARY.operation("child", CHILD, [], **options)]


async def test_a_function_waits_for_the_whole_hierarchy(source: StoreSource) -> None:
    async with Environment([checkout, *operations()], source) as env:
        run = await env.engine.start(checkout(False))
        assert await run.result() == "reserved"
        assert DIARY == ["reserve", "root 0", "child 0", "root 1"]
        await env.check()


async def test_a_function_that_fails_has_the_hierarchy_undone(source: StoreSource) -> None:
    async with Environment([checkout, *operations()], source) as env:
        run = await env.engine.start(checkout(True))
        with pytest.raises(RunFailed, match="too late"):
            await run.result()
        assert DIARY[4:] == ["root undo 1", "child undo 0", "root undo 0", "release"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_function_that_is_cancelled_has_the_hierarchy_give_up(source: StoreSource) -> None:
    taking_part = operations()
    taking_part[1].sleep(timedelta(days=1))
    async with Environment([checkout, *taking_part], source, autojump_s=None) as env:
        run = await env.engine.start(checkout(False))
        await env.settle()
        assert await run.cancel()
        await env.settle()
        assert DIARY == ["reserve", "root 0", "child 0", "child undo 0", "root undo 0", "release"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_function_may_catch_the_failure_of_a_hierarchy(source: StoreSource) -> None:
    async with Environment([forgiving, *operations(fails_at=0)], source) as env:
        run = await env.engine.start(forgiving())
        assert "ChildRolledBack: 1 handler of what step" in await run.result()


async def test_a_function_and_its_hierarchy_survive_crashes(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> str:
        run = await env.engine.start(checkout(False), id="o-17")
        return await run.result()

    def once(result: str) -> None:
        assert result == "reserved"

    report = await run_with_crashes(scenario, workflows=[checkout, *operations()], store=fresh, check=once)
    assert report.restarts > 10
