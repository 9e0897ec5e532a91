"""Many nodes at once are begun slice by slice, so that the process never stands still for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import LimitExceeded, RunFailed
from perdure.graph import Graph, all_of, any_of, assign, collect, timer, wait
from perdure.models.graphs import runner
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.graphs.pattern_tasks import World, add

SLICE = 3


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BEGUN_AT_ONCE_MAX", SLICE)


def spread(join: Any, seconds: str = "0") -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("slices")
    graph.node("begin", assign({}))
    graph.node("mark", assign({"state.mark": "branch.item"}))
    add(graph, "work", seconds, label="string(state.mark)")
    graph.node("meet", assign({}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "work")
    graph.edge("work", "meet", join=join, merge=collect("state.got"))
    graph.output("state.got")
    return graph


async def test_all_are_begun_in_their_order(source: StoreSource) -> None:
    graph = spread(all_of())
    async with World([graph], source) as world:
        assert await world.engine.run(graph(list(range(20)))) == [str(number) for number in range(20)]
        assert world.trace.begun == [str(number) for number in range(20)]


async def test_none_waits_for_the_end_of_another(source: StoreSource) -> None:
    """Steps that last, and waits for what never comes, do not keep the others from beginning."""
    graph = spread(all_of(), "60")
    async with World([graph], source) as world:
        await world.engine.run(graph(list(range(20))))
        assert world.seconds == pytest.approx(60, abs=0.01)
        assert world.trace.at_once_max == 20


async def test_those_that_have_not_begun_are_ended_with_the_others(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("ended")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("wait", wait("never"))
    graph.node("meet", assign({"output.met": "true"}))
    graph.edge("begin", "part", foreach="input")
    graph.edge("part", "meet", when="branch.item == 0", join=any_of("begin"))
    graph.edge("part", "wait", priority=1)
    graph.edge("wait", "meet", join=any_of("begin"))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph([1] * 20 + [0] + [1] * 20))
        assert await run.result() == {"met": True}
        await env.check()


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("crashing")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("mark", assign({"state.mark": "branch.item * 2"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[5, 1, 4, 2, 3, 1, 2, 3]")
    graph.edge("nap", "mark")
    graph.edge("mark", "meet", join=all_of(), merge=collect("state.got", source="state.mark"))
    graph.output("state.got")

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == [10, 2, 8, 4, 6, 2, 4, 6]


async def test_as_many_as_fit_into_one_slice_take_no_timer(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("fitting")
    graph.node("begin", assign({}))
    add(graph, "work")
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=all_of())
    async with World([graph], source) as world:
        run = await world.engine.start(graph([1, 2]))
        await run.result()
        assert {entry.kind for entry in (await world.engine.history(run.id)).journal} == {"step"}


@pytest.mark.parametrize("tokens", [1, SLICE - 1, 5 * SLICE])
async def test_loops_in_which_nothing_waits_are_ended_all_the_same(
    tokens: int, source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 200)
    graph: Graph[Any, Any] = Graph("endless")
    graph.node("begin", assign({}))
    graph.node("spin", assign({}))
    graph.edge("begin", "spin", spawn=tokens)
    graph.edge("spin", "spin", limit="unlimited")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, LimitExceeded)


async def test_many_nodes_one_after_the_other_take_no_timer(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("row")
    graph.node("count", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("end", assign({"output.laps": "state.laps"}))
    graph.edge("count", "count", limit=10 * SLICE)
    graph.edge("count", "end", priority=1)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        assert await run.result() == {"laps": 10 * SLICE + 1}
        assert (await env.engine.history(run.id)).journal == []
