"""Graphs whose process dies at every one of their commits: the result is the same, and no step ran in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Limits, NamedEvent
from perdure.graph import Graph, timer
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.graphs.programs import PROGRAMS, STARTED, laps, nap, same, waiting


@pytest.mark.parametrize(("make", "expected"), PROGRAMS)
async def test_a_crash_at_any_commit_changes_nothing(
    make: Callable[[], Graph[Any, Any]], expected: Any, fresh: Callable[[], StoreSource]
) -> None:
    graph = make().build()

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == expected
    assert report.restarts >= report.commits


async def test_a_crash_while_it_waits_for_a_child_and_an_event_changes_nothing(
    fresh: Callable[[], StoreSource],
) -> None:
    graph = waiting().build()

    async def scenario(env: Environment) -> Any:
        run = await env.engine.start(graph(), id="one")
        view = await env.engine.runs.get("one")
        if view is not None and view.status in ("running", "suspended"):
            await env.engine.send(NamedEvent("told", "word"), to="one", key="once")
        return await run.result()

    report = await run_with_crashes(scenario, workflows=[graph, nap], store=fresh)
    assert report.result == [5, "word"]


async def test_a_step_that_was_committed_does_not_run_again_after_an_eviction(source: StoreSource) -> None:
    graph = laps()
    graph.edge("done", graph.node("nap", timer(60)))
    graph.edge("nap", graph.node("last", same, input={"value": "state.got"}))
    STARTED.clear()
    async with Environment([graph.build()], source, limits=Limits(live_runs_max=1)) as env:
        handles = [await env.engine.start(graph()) for _ in range(5)]
        assert [await handle.result() for handle in handles] == [[11, 12, 21, 22, 31, 32]] * 5
    assert set(STARTED.values()) == {1}
    assert len(STARTED) == 5 * 7
