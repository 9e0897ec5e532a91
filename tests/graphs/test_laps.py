"""Limits of edges: they count along every way round a loop, also through forks and joins."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Retry, step
from perdure.errors import NoMatchingEdge, RunFailed
from perdure.graph import END, Graph, all_of, any_of, append, assign, timer
from perdure.models.graphs import runner
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

LAPS = {"state.laps": "has(state.laps) ? state.laps + 1 : 1"}


@step(retry=Retry.never())
async def refuse(value: Any) -> Any:
    raise ValueError(f"{value} is refused")


@pytest.fixture(autouse=True)
def few_nodes_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that does not end fails after fewer nodes."""
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 500)


async def laps_of(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> int:
    async with Environment([graph], source) as env:
        result = await env.engine.run(graph(input))
        await env.check()
        laps: int = result["laps"]
        return laps


def round_trip(**limits: Any) -> Graph[Any, Any]:
    """begin -> work (three branches) -> mark -> meet -> begin; each edge may have a limit."""
    graph: Graph[Any, Any] = Graph("round")
    graph.node("begin", assign(LAPS))
    graph.node("work", assign({}), otherwise="end")
    graph.node("mark", assign({}), otherwise="end")
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "work", spawn=3, limit=limits.get("apart"))
    graph.edge("work", "mark", limit=limits.get("inside"))
    graph.edge("mark", "meet", join=all_of(), limit=limits.get("join"))
    graph.edge("meet", "begin", when="state.laps < 50", limit=limits.get("back"))
    graph.edge("meet", "after", priority=1)
    graph.edge("begin", "after", priority=1)
    return graph


@pytest.mark.parametrize(("limits", "laps"), [({"apart": 2}, 3), ({"back": 2}, 3)])
async def test_a_limit_outside_of_the_branches_ends_the_loop(
    limits: dict[str, int], laps: int, source: StoreSource
) -> None:
    assert await laps_of(round_trip(**limits), source) == laps


@pytest.mark.parametrize("where", ["inside", "join"])
async def test_a_limit_inside_the_branches_ends_the_loop(where: str, source: StoreSource) -> None:
    """In the third lap the edge is passed over in every branch, nothing arrives, and the join is not passed either."""
    graph = round_trip(**{where: 2})
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await run.result()
        await env.check()
    assert "limit of 2" in str(failed.value)
    assert isinstance(failed.value.__cause__, NoMatchingEdge)


async def test_a_limit_inside_lets_the_next_tier_take_over(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("tiers")
    graph.node("begin", assign(LAPS))
    graph.node("work", assign({}))
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "work", spawn=3)
    graph.edge("work", "meet", join=all_of(), limit=2)
    graph.edge("work", "after", priority=1, join=any_of())
    graph.edge("meet", "begin")
    assert await laps_of(graph, source) == 3


async def test_the_branch_that_wins_brings_its_laps(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("winner")
    graph.node("begin", assign(LAPS))
    graph.node("work", assign({}))
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "work", spawn=3)
    graph.edge("work", "meet", join=any_of("begin"), limit=4)
    graph.edge("work", "after", priority=1, join=any_of("begin"))
    graph.edge("meet", "begin")
    assert await laps_of(graph, source) == 5


async def test_a_limit_inside_a_fork_within_a_fork_ends_the_loop(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("nested")
    graph.node("begin", assign(LAPS))
    graph.node("part", assign({}))
    graph.node("work", assign({}))
    graph.node("inner", assign({}))
    graph.node("outer", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "part", spawn=2)
    graph.edge("part", "work", spawn=2)
    graph.edge("work", "inner", join=all_of("part"), limit=3)
    graph.edge("work", "after", priority=1, join=any_of("begin"))
    graph.edge("inner", "outer", join=all_of("begin"))
    graph.edge("outer", "begin")
    assert await laps_of(graph, source) == 4


async def test_an_empty_list_counts_as_a_lap_of_the_join(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("empty")
    graph.node("begin", assign(LAPS))
    graph.node("work", assign({}))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="[]")
    graph.edge("work", "meet", join=all_of(), limit=2)
    graph.edge("meet", "begin")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await run.result()
    assert isinstance(failed.value.__cause__, NoMatchingEdge)
    assert "limit of 2" in str(failed.value)


async def test_branches_that_all_fail_count_as_a_lap_of_the_join(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("failing")
    graph.node("begin", assign(LAPS))
    graph.node("work", refuse, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "work", foreach="[1, 2]")
    graph.edge("work", "meet", join=all_of(), limit=2)
    graph.edge("meet", "after")
    graph.edge("meet", "begin", on_error=True, when="state.laps < 20")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert len([e for e in (await env.engine.handle(run.id).history()).journal if e.name == "work"]) == 6
    assert isinstance(failed.value.__cause__, NoMatchingEdge)


async def test_tokens_that_end_count_too(source: StoreSource) -> None:
    """The branch that takes the limited edge ends; another one arrives at the join."""
    graph: Graph[Any, Any] = Graph("ending")
    graph.node("begin", assign(LAPS))
    graph.node("left", assign({}))
    graph.node("right", assign({}))
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps", "output.taken": "state.taken"}))
    graph.edge("begin", "left")
    graph.edge("begin", "right")
    graph.node("taken", assign({"state.taken": "has(state.taken) ? state.taken + 1 : 1"}))
    graph.edge("left", "taken", limit=2)
    graph.edge("left", END, priority=1)
    graph.edge("taken", END)
    graph.edge("right", "meet", join=all_of("begin"), merge=append("state.met", source="state.laps"))
    graph.edge("meet", "begin", limit=4)
    graph.edge("meet", "after", priority=1)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"laps": 5, "taken": 2}


async def test_a_run_that_went_round_before_joins_counted_goes_on_as_it_began(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph: Graph[Any, Any] = Graph("old")
    graph.node("begin", assign(LAPS))
    graph.node("work", timer(60))
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.laps"}))
    graph.edge("begin", "work", spawn=2, limit=2)
    graph.edge("begin", "after", priority=1)
    graph.edge("work", "meet", join=all_of())
    graph.edge("meet", "begin", when="state.laps < 6", limit="unlimited")
    graph.edge("meet", "after", priority=1)
    with monkeypatch.context() as patched:
        patched.setattr(Graph, "outline", None)
        patched.setattr(Graph, "fingerprint", "0123456789abcdef")
        async with Environment([graph], source, autojump_s=None) as env:
            await env.engine.start(graph(), id="r-1")
            await env.advance(60)
            await env.advance(60)
            await env.advance(60)
            clock = env.clock
    async with Environment([graph], source, clock=clock) as env:
        assert await env.engine.handle("r-1").result() == {"laps": 6}
        await env.check()
