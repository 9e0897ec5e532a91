"""The tokens of a large fork are made piece by piece, and come to the same as if they were made at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from perdure.errors import LimitExceeded, RunFailed
from perdure.graph import Graph, GraphLimits, all_of, any_of, assign, collect, timer, wait
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.graphs import runner, token_moves
from perdure.models.graphs.machine import Machine
from perdure.models.graphs.rules_versions import PIECES_RULES
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

PIECE = 4


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_moves, "BRANCHES_AT_ONCE_MAX", PIECE)
    monkeypatch.setattr(runner, "BEGUN_AT_ONCE_MAX", PIECE)
    monkeypatch.setattr(runner, "ROUTED_AT_ONCE_MAX", PIECE)


@contextmanager
def work_per_activation() -> Iterator[list[int]]:
    """How many tokens were made, moved or ended in each activation of a run."""
    machine: list[Machine] = []
    most: list[int] = []
    begin, activate = Machine.begin, WorkflowLoop._activate

    def begun(self: Machine) -> Any:
        machine.append(self)
        return begin(self)

    def activated(loop: WorkflowLoop, *args: Any) -> Any:
        before = machine[-1].tokens.work if machine else 0
        try:
            return activate(loop, *args)
        finally:
            most.append((machine[-1].tokens.work if machine else 0) - before)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Machine, "begin", begun)
        patched.setattr(WorkflowLoop, "_activate", activated)
        yield most


def spread(name: str, join: Any, **options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph(name, **options)
    graph.node("begin", assign({}))
    graph.node("mark", assign({"state.mark": "branch.item"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "meet", join=join, merge=collect("state.got", source="state.mark"))
    graph.output("state.got")
    return graph


async def test_no_activation_makes_more_than_some_tokens(source: StoreSource) -> None:
    graph = spread("large_fork", all_of())
    with work_per_activation() as most:
        async with Environment([graph], source) as env:
            assert await env.engine.run(graph(list(range(5_000)))) == list(range(5_000))
            await env.check()
    assert max(most) < 1_600


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("count", [0, 1, PIECE, PIECE + 1, 5 * PIECE + 1])
@pytest.mark.parametrize("at_once", [None, 1, 3])
async def test_all_branches_go_on_in_their_order(source: StoreSource, count: int, at_once: int | None) -> None:
    graph: Graph[Any, Any] = Graph("pieces_in_order")
    graph.node("begin", assign({}))
    graph.node("nap", timer(1))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="input", at_once=at_once)
    graph.edge("nap", "meet", join=all_of(), merge=collect("state.got", source="branch.item"))
    graph.output("state.got")
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(list(range(count)))) == list(range(count))
        await env.check()


@pytest.mark.usefixtures("small_pieces")
async def test_branches_that_are_not_needed_any_more_are_not_made(source: StoreSource) -> None:
    """The first branch is at the join at once, and that is enough."""
    graph: Graph[Any, Any] = Graph("pieces_not_needed")
    graph.node("begin", assign({}))
    graph.node("nap", timer(60))
    graph.node("meet", assign({"output.met": "true"}))
    graph.edge("begin", "meet", join=any_of())
    graph.edge("begin", "nap", foreach="input")
    graph.edge("nap", "meet", join=any_of())
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(list(range(40))))
        assert await run.result() == {"met": True}
        assert (await env.engine.handle(run.id).tokens()).tokens_total == PIECE + 2
        await env.check()


@pytest.mark.usefixtures("small_pieces")
async def test_a_fork_inside_of_a_large_fork(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("pieces_inside")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("leaf", assign({}))
    graph.node("inner", assign({}))
    graph.node("outer", assign({}))
    graph.edge("begin", "part", foreach="input")
    graph.edge("part", "leaf", foreach="input")
    graph.edge("leaf", "inner", join=all_of("part"), merge=collect("state.inner", source="branch.item"))
    graph.edge("inner", "outer", join=all_of("begin"), merge=collect("state.outer", source="size(state.inner)"))
    graph.output("state.outer")
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(list(range(9)))) == [9] * 9
        await env.check()


@pytest.mark.usefixtures("small_pieces")
async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("pieces_crashing")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[5, 1, 4, 2, 3, 1, 2, 3, 1, 1]", at_once=6)
    graph.edge("nap", "meet", join=all_of(), merge=collect("state.got", source="branch.item"))
    graph.output("state.got")

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == [5, 1, 4, 2, 3, 1, 2, 3, 1, 1]


@pytest.mark.usefixtures("small_pieces")
async def test_tokens_that_are_yet_to_be_made_count_for_the_limit(source: StoreSource) -> None:
    graph = spread("pieces_limited", all_of(), limits=GraphLimits(tokens=10))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(list(range(11))))
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, LimitExceeded)


@pytest.mark.usefixtures("small_pieces")
async def test_what_is_told_of_a_large_fork_is_complete(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("pieces_told")
    graph.node("begin", assign({}))
    graph.node("wait", wait("never"))
    graph.node("nap", timer(60))
    graph.node("meet", assign({}))
    graph.edge("begin", "wait", spawn=10)
    graph.edge("begin", "nap")
    graph.edge(["wait", "nap"], "meet", join=any_of())
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="told")
        await run.result()
        view = await env.engine.handle("told").tokens()
        assert view.nodes["wait"].cancelled == 10
        spawned = [token for token in view.tokens if token.branch_total == 11]
        assert sorted(token.branch_index for token in spawned) == list(range(11))
        assert len({token.parent for token in spawned}) == 1


async def test_runs_that_began_by_earlier_rules_go_on_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their journals have no entries for pieces."""
    monkeypatch.setattr(token_moves, "BRANCHES_AT_ONCE_MAX", PIECE)
    machine = Machine(spread("earlier", all_of()).build()._draft.built(), list(range(20)), PIECES_RULES - 1)
    (first,) = machine.begin().run
    assert len(machine.completed(first.id, None).run) == 20
    assert not machine.is_growing
