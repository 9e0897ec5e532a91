"""The process dies right before and right after every commit of what is asked of a hierarchy, and of what holds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits
from perdure.cooperation import Operation, Scope, TimeWindow
from perdure.errors import RunFinished, ScopeFailed
from perdure.testing import CRASH_POINTS, Environment, run_with_crashes
from perdure.testing.faults import Point
from tests.cooperation import engines
from tests.cooperation.test_cooperation_engine import agree, run_of
from tests.cooperation.test_cost import DEEP, deep
from tests.cooperation.test_holds import CHILD, ROOT, child, parent, quick, unreadable

HOUR = timedelta(hours=1)
Result = list[tuple[str, str, bool]]
Scenario = Callable[[Environment], Awaitable[object]]


async def survives(
    on: str, operations: Sequence[Operation[Any]], scenario: Scenario, expected: Result, **options: Any
) -> None:
    """All runs (handler, status, whether held) are as expected at the end, whenever the process died. `on` is a store,
    or a store and the only point at which the process dies: "postgres before"."""
    store, _, point = on.partition(" ")
    points: list[Point] = [one for one in CRASH_POINTS if point in ("", one)]

    async def to_its_end(env: Environment) -> Result:
        await scenario(env)
        await env.settle()
        await agree(env, *operations)
        found = (await env.engine.runs.list()).runs
        return sorted((run.workflow, str(run.status), run.hold is not None) for run in found)

    def check(result: Result) -> None:
        assert result == expected

    report = await run_with_crashes(
        to_its_end,
        workflows=operations,
        store=engines.SOURCES[store],
        points=points,
        check=check,
        autojump_s=None,
        **options,
    )
    assert points
    assert report.trials == len(points) * report.commits
    assert report.commits > 2


@pytest.fixture(params=["memory", "sqlite"])
def on(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def emitted(env: Environment, on: Any = ROOT, message: Any = None, **limits: Any) -> str:
    return (await env.engine.emit(on, message or {}, id="m-1", **limits)).id


async def test_a_cancellation(on: str) -> None:
    async def scenario(env: Environment) -> None:
        root = await emitted(env)
        await env.settle()
        await env.engine.handle(root).cancel()

    operations = [parent([]), child([])]
    await survives(on, operations, scenario, [("child", "rolled_back", False), ("root", "rolled_back", False)])


@pytest.mark.parametrize("by", ["cancel", "deadline"])
async def test_a_held_run_that_gives_up(on: str, by: str) -> None:
    async def scenario(env: Environment) -> None:
        root = await emitted(env, deadline=2 * HOUR)
        await env.settle()
        await env.engine.recover()
        await env.settle()
        if by == "cancel":
            await env.engine.handle(root).cancel()
        else:
            await env.advance(3 * HOUR)

    operations = [parent([]), child([], unreadable())]
    await survives(on, operations, scenario, [("child", "rolled_back", False), ("root", "rolled_back", False)])


async def test_a_held_run_that_is_not_undone_in_time(on: str) -> None:
    """A pause is completed in a commit of its own, from the run's rows: whoever opens the store next does it too."""

    async def scenario(env: Environment) -> None:
        await emitted(env, deadline=HOUR / 2, rollback_deadline=HOUR / 2)
        await env.settle()
        view = await env.engine.runs.get(await run_of(env.engine, "child"))
        assert view is not None
        if view.hold is None:
            with suppress(RunFinished):
                await env.engine.handle(view.id).pause()
        await env.settle()
        await env.advance(HOUR)

    operations = [parent([]), child([])]
    expected = [("child", "rollback_failed", False), ("root", "rollback_failed", False)]
    await survives(on, operations, scenario, expected)


async def test_a_handler_that_is_dismissed(on: str) -> None:
    root = Operation[Any]("root", ROOT, strategy=TimeWindow(HOUR))

    @root.step
    async def ask(scope: Scope, message: Any) -> None:
        await scope.emit(CHILD, {})

    async def scenario(env: Environment) -> None:
        await env.engine.topics.register(CHILD, "absent")
        await emitted(env)
        await env.settle()
        await env.advance(2 * HOUR)

    await survives(on, [root], scenario, [("absent", "cancelled", False), ("root", "succeeded", False)])


async def test_a_handler_that_is_retired_and_released(on: str) -> None:
    async def scenario(env: Environment) -> None:
        if not (await env.engine.runs.list(workflow="root")).runs:
            await env.engine.topics.register(CHILD, "absent")
        await emitted(env)
        await env.settle()
        await env.engine.topics.retire(CHILD, "absent", release=True)

    await survives(on, [parent([])], scenario, [("absent", "cancelled", False), ("root", "succeeded", False)])


async def test_code_that_changes_and_blocks(on: str) -> None:
    good, other = [parent([]), quick([])], [parent([]), quick([], step="renamed")]

    async def scenario(env: Environment) -> None:
        root = await emitted(env)
        await env.settle()
        await env.restart(other)
        await env.engine.handle(root).roll_back()
        await env.settle()
        await env.restart(good)

    await survives(on, good, scenario, [("child", "rolled_back", False), ("root", "rolled_back", False)])


async def test_an_emission_below_the_last_level(on: str) -> None:
    async def scenario(env: Environment) -> None:
        await emitted(env, DEEP, {"left": 6})

    await survives(on, deep(), scenario, [("deep", "rolled_back", False)] * 4, limits=Limits(hierarchy_levels_max=4))


@pytest.mark.parametrize("leaf_keeps", [False, True])
async def test_a_rollback_whose_failures_refer_to_each_other(on: str, leaf_keeps: bool) -> None:
    async def scenario(env: Environment) -> None:
        root = await env.engine.emit(DEEP, {"left": 4}, id="m-1")
        with suppress(ScopeFailed):
            await root.finished()

    expected = "rollback_failed" if leaf_keeps else "rolled_back"
    operations = deep(root_fails=True, leaf_keeps=leaf_keeps)
    await survives(on, operations, scenario, [("deep", expected, False)] * 4)
