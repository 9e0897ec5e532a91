"""Forks and joins: where branches come apart and meet, nested, in loops, early, late, never."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Retry, RunHandle, step
from perdure.errors import InvalidDefinition, JoinFailed, RunFailed
from perdure.graph import (
    END,
    Graph,
    all_of,
    any_of,
    append,
    assign,
    collect,
    keyed,
    last_wins,
    m_of,
    merge_object,
    reduce_with,
    timer,
)
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

# pyright: reportUnusedFunction=false


@step
async def same(value: Any) -> Any:
    return value


@step(retry=Retry.never())
async def refuse(value: Any) -> Any:
    if value in ("bad", 0):
        raise ValueError(f"{value} is refused")
    return value


async def run(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> Any:
    async with Environment([graph], source) as env:
        result = await env.engine.run(graph(input))
        await env.check()
        return result


async def failure(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> BaseException:
    async with Environment([graph], source) as env:
        handle: RunHandle[Any] = await env.engine.start(graph(input))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        await env.check()
        assert failed.value.__cause__ is not None
        return failed.value.__cause__


def spread(join: Any, *merges: Any, needs: Any = same, **options: Any) -> Graph[Any, Any]:
    """A list is gone through, and its branches meet."""
    graph: Graph[Any, Any] = Graph("spread")
    graph.node("begin", assign({}))
    graph.node("work", needs, input={"value": "branch.item"}, **options)
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=join, merge=merges)
    graph.output({"got": "state.got"})
    return graph


async def test_branches_meet_in_the_order_of_their_list_whatever_the_order_of_their_ends(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("jitter")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="input")
    graph.edge("nap", "work")
    graph.edge("work", "meet", join=all_of(), merge=append("state.got"))
    graph.output("state.got")
    assert await run(graph, source, [5, 1, 4, 2, 3]) == [5, 1, 4, 2, 3]


async def test_nested_fan_out_of_three_by_four_through_the_same_edge(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("nested")
    graph.node("outer", assign({}))
    graph.node("inner", assign({}))
    graph.node("work", same, input={"value": "branch.parent.item * 10 + branch.item"})
    graph.node("row", assign({}))
    graph.node("table", assign({}))
    graph.edge("outer", "inner", foreach="input.rows")
    graph.edge("inner", "work", foreach="input.columns")
    graph.edge("work", "row", join=all_of(), merge=collect("state.row"))
    graph.edge("row", "table", join=all_of(), merge=collect("state.table", source="state.row"))
    graph.output("state.table")
    assert await run(graph, source, {"rows": [1, 2, 3], "columns": [1, 2, 3, 4]}) == [
        [11, 12, 13, 14],
        [21, 22, 23, 24],
        [31, 32, 33, 34],
    ]


async def test_fan_out_in_a_loop_meets_in_every_lap(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("laps")
    graph.node("lap", assign({"state.lap": "has(state.lap) ? state.lap + 1 : 1"}))
    graph.node("work", same, input={"value": "state.lap * 10 + branch.item"})
    graph.node("meet", assign({}))
    graph.node("done", assign({}))
    graph.edge("lap", "work", foreach="[1, 2]")
    graph.edge("work", "meet", join=all_of(), merge=append("state.got"))
    graph.edge("meet", "lap", limit=2)
    graph.edge("meet", "done", priority=1)
    graph.output("state.got")
    assert await run(graph, source) == [11, 12, 21, 22, 31, 32]


async def test_several_tokens_in_one_branch_count_as_one(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("several")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("short", same, input={"value": "branch.item"})
    graph.node("nap", timer(5))
    graph.node("long", same, input={"value": "branch.item * 100"})
    graph.node("meet", assign({"state.times": "has(state.times) ? state.times + 1 : 1"}))
    graph.edge("begin", "part", foreach="input")
    graph.edge("part", "short")
    graph.edge("part", "nap")
    graph.edge("nap", "long")
    graph.edge(["short", "long"], "meet", join=all_of("begin"), merge=collect("state.got"))
    graph.output({"got": "state.got", "times": "state.times"})
    assert await run(graph, source, [1, 2]) == {"got": [100, 200], "times": 1}


async def test_branches_may_leave_for_the_join_of_an_outer_fork(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("leaving")
    graph.node("outer", assign({}))
    graph.node("inner", assign({}))
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("row", same, input={"value": "state.row"})
    graph.node("table", assign({"state.times": "has(state.times) ? state.times + 1 : 1"}))
    graph.edge("outer", "inner", foreach="input")
    graph.edge("inner", "work", foreach="branch.item")
    graph.edge("work", "row", when="nodes.work < 10", join=all_of("inner"), merge=collect("state.row"))
    graph.edge(["work", "row"], "table", priority=1, join=all_of("outer"), merge=collect("state.table"))
    graph.output({"table": "state.table", "times": "state.times"})
    # The first list stays, the second one leaves as a whole, the third in part: then what met comes last.
    assert await run(graph, source, [[1, 2], [10, 11], [3, 12]]) == {"table": [[1, 2], 11, [3]], "times": 1}


async def test_branches_that_end_early_are_not_waited_for(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("early")
    graph.node("begin", assign({}))
    graph.node("look", same, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "look", foreach="input")
    graph.edge("look", "meet", when="nodes.look > 2", join=all_of("begin"), merge=collect("state.got"))
    graph.edge("look", END, priority=1)
    graph.output("state.got")
    assert await run(graph, source, [1, 2, 3, 4]) == [3, 4]
    assert await run(graph, source, [1, 2]) == []


async def test_an_empty_list_goes_straight_to_the_join(source: StoreSource) -> None:
    assert await run(spread(all_of(), collect("state.got")), source, []) == {"got": []}


async def test_an_empty_list_without_a_join_ends_the_branch(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("ends")
    graph.node("begin", assign({"output.began": True}))
    graph.node("work", same, input={"value": "branch.item"})
    graph.edge("begin", "work", foreach="input")
    assert await run(graph, source, []) == {"began": True}


async def test_what_is_no_list_cannot_be_gone_through(source: StoreSource) -> None:
    error = await failure(spread(all_of(), collect("state.got")), source, {"not": "a list"})
    assert "edge begin -> work, foreach: 'input' is to be gone through, but it is no list" in str(error)


def largest(values: list[int]) -> int:
    return max(values)


@pytest.mark.parametrize(
    ("merge", "items", "expected"),
    [
        (append("state.got"), [1, 2], [1, 2]),
        (append("state.got"), [[1], [2, 3]], [1, 2, 3]),
        (append("state.got"), [[1], 2], [[1], 2]),
        (collect("state.got"), [[1], [2, 3]], [[1], [2, 3]]),
        (merge_object("state.got"), [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
        (keyed("state.got"), ["x", "y"], {"0": "x", "1": "y"}),
        (last_wins("state.got"), ["x", "y"], "y"),
        (last_wins("state.got"), [], {}),
        (reduce_with(largest, "state.got"), [1, 7, 3], 7),
        (append("state.got", source="nodes.work.a + 1"), [{"a": 1}, {"a": 2}], [2, 3]),
    ],
)
async def test_what_branches_bring_is_merged(merge: Any, items: list[Any], expected: Any, source: StoreSource) -> None:
    assert await run(spread(all_of(), merge), source, items) == {"got": expected}


async def test_a_merge_that_cannot_be_done_fails_where_it_stands(source: StoreSource) -> None:
    error = await failure(spread(all_of(), merge_object("state.got")), source, [{"a": 1}, 2])
    assert isinstance(error, JoinFailed)
    assert "merge_object needs an object, but the output of branch 1 is 2" in str(error)


async def test_a_reducer_that_raises_fails_the_join(source: StoreSource) -> None:
    error = await failure(spread(all_of(), reduce_with(largest, "state.got")), source, [])
    assert isinstance(error, JoinFailed)
    assert "its reducer raised ValueError" in str(error)


# ---------------------------------------------------------------------------------------------------------------------
# Any, and m of n


def race(join: Any, *merges: Any) -> Graph[Any, Any]:
    """Branches that take as many seconds as their items say, and then meet."""
    graph: Graph[Any, Any] = Graph("race")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("meet", same, input={"value": "state.got"}, output={"state.first": "nodes.meet"})
    graph.node("rest", timer(100))
    graph.edge("begin", "nap", foreach="input")
    graph.edge("nap", "work")
    graph.edge("work", "meet", join=join, merge=merges or append("state.got"))
    graph.edge("meet", "rest")
    graph.output({"first": "state.first", "all": "state.got"})
    return graph


async def test_any_goes_on_once_and_cancels_the_rest(source: StoreSource) -> None:
    graph = race(any_of())
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph([30, 10, 20]))
        assert await run.result() == {"first": [10], "all": [10]}
        history = await env.engine.handle(run.id).history()
        assert [entry.name for entry in history.journal].count("meet") == 1
        assert [entry.name for entry in history.journal].count("work") == 1


async def test_any_lets_the_rest_finish(source: StoreSource) -> None:
    graph = race(any_of(on_early="let_finish"))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph([30, 10, 20]))
        assert await run.result() == {"first": [10], "all": [10]}
        history = await env.engine.handle(run.id).history()
        assert [entry.name for entry in history.journal].count("work") == 3
        assert [entry.name for entry in history.journal].count("meet") == 1


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (append("state.got"), [10, 20, 30]),
        (collect("state.got"), [10, 20, 30]),
        (keyed("state.got"), {"0": 30, "1": 10, "2": 20}),
        (last_wins("state.got"), 30),
    ],
)
async def test_any_merges_the_rest_as_they_come(merge: Any, expected: Any, source: StoreSource) -> None:
    result = await run(race(any_of(on_early="late_merge"), merge), source, [30, 10, 20])
    assert result["all"] == expected


async def test_m_of_n_goes_on_with_m(source: StoreSource) -> None:
    assert await run(race(m_of(2)), source, [30, 10, 20]) == {"first": [10, 20], "all": [10, 20]}


async def test_m_of_n_fails_as_soon_as_m_cannot_be_reached(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("hopeless")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("nap", timer(1_000_000))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "nap")
    graph.edge("nap", "meet", join=m_of(2))
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph(["bad", "bad", "good"]))
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, JoinFailed)
        assert "it needs 2 of 3 branches, of which 0 arrived and 1 can" in str(failed.value)


async def test_more_than_there_are_branches_can_never_arrive(source: StoreSource) -> None:
    assert "it needs 5 of 2 branches" in str(await failure(race(m_of(5)), source, [1, 2]))


# ---------------------------------------------------------------------------------------------------------------------
# Branches that fail


async def test_the_error_of_a_branch_is_its_output(source: StoreSource) -> None:
    graph = spread(all_of(), collect("state.got"), needs=refuse, on_error="branch_error")
    error = {"type": "ValueError", "message": "bad is refused", "node": "work", "index": 1, "item": "bad"}
    assert await run(graph, source, ["a", "bad", "c"]) == {"got": ["a", {"error": error}, "c"]}


async def test_all_branches_failed_is_a_failure_and_no_empty_merge(source: StoreSource) -> None:
    error = await failure(
        spread(all_of(), collect("state.got"), needs=refuse, on_error="branch_error"), source, ["bad", "bad"]
    )
    assert isinstance(error, JoinFailed)
    assert isinstance(error.__cause__, ValueError)


async def test_any_takes_the_first_that_succeeds(source: StoreSource) -> None:
    graph = spread(any_of(), collect("state.got"), needs=refuse, on_error="branch_error")
    assert await run(graph, source, ["bad", "good"]) == {"got": ["good"]}


async def test_a_failed_branch_fails_the_run_unless_told_otherwise(source: StoreSource) -> None:
    error = await failure(spread(all_of(), collect("state.got"), needs=refuse), source, ["a", "bad"])
    assert isinstance(error, ValueError)


async def test_a_failed_join_is_the_failure_of_the_node_it_leads_to(source: StoreSource) -> None:
    graph = spread(m_of(3), collect("state.got"))
    graph.node("plan_b", assign({"state.got": "error.type"}))
    graph.edge("meet", "plan_b", on_error=True)
    assert await run(graph, source, [1, 2]) == {"got": "JoinFailed"}


# ---------------------------------------------------------------------------------------------------------------------
# Timeouts


async def test_a_join_fails_when_the_rest_does_not_come_in_time(source: StoreSource) -> None:
    error = await failure(race(all_of(timeout=15)), source, [30, 10, 20])
    assert "1 of 3 branches did not arrive within 15 s of the first" in str(error)


async def test_a_join_proceeds_with_what_is_there(source: StoreSource) -> None:
    graph = race(all_of(timeout=15, on_timeout="proceed"))
    assert await run(graph, source, [30, 10, 20]) == {"first": [10, 20], "all": [10, 20]}


async def test_a_join_that_is_complete_forgets_its_timeout(source: StoreSource) -> None:
    graph = race(all_of(timeout=50))
    async with Environment([graph], source) as env:
        began = env.clock.now()
        await env.engine.run(graph([30, 10, 20]))
        assert env.clock.now() - began == 130_000_000


# ---------------------------------------------------------------------------------------------------------------------
# Splits


def split(join: Any, *merges: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("split")
    graph.node("begin", assign({}))
    graph.node("left", same, input={"value": "'l'"}, output={"state.left": "nodes.left"})
    graph.node("right", same, input={"value": "'r'"}, output={"state.right": "nodes.right"})
    graph.node("meet", assign({}))
    graph.edge("begin", "left")
    graph.edge("begin", "right")
    graph.edge(["left", "right"], "meet", join=join, merge=merges)
    graph.output({"nodes": "nodes.left + nodes.right", "state": "state.left + state.right"})
    return graph


async def test_results_and_state_of_a_splits_branches_are_there_after_its_join(source: StoreSource) -> None:
    assert await run(split(all_of()), source) == {"nodes": "lr", "state": "lr"}


async def test_results_of_a_split_that_never_meets_are_there_at_the_end(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("apart")
    graph.node("begin", assign({}))
    graph.node("left", same, input={"value": "'l'"})
    graph.node("right", same, input={"value": "'r'"})
    graph.edge("begin", "left")
    graph.edge("begin", "right")
    graph.output("nodes.left + nodes.right")
    assert await run(graph, source) == "lr"


async def test_edges_and_lists_that_fire_together_are_one_fork(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("together")
    graph.node("begin", assign({}))
    graph.node("many", same, input={"value": "[branch.index, branch.total, branch.item]"})
    graph.node("one", same, input={"value": "[branch.index, branch.total]"})
    graph.node("meet", assign({}))
    graph.edge("begin", "many", foreach="['a', 'b']")
    graph.edge("begin", "one")
    graph.edge(["many", "one"], "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")
    assert await run(graph, source) == [[0, 3, "a"], [1, 3, "b"], [2, 3]]


async def test_a_number_of_branches(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("spawned")
    graph.node("begin", assign({}))
    graph.node("work", same, input={"value": "branch.index"})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=4)
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")
    assert await run(graph, source) == [0, 1, 2, 3]


async def test_a_token_of_no_branch_passes_straight_through_a_join(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("sometimes")
    graph.node("begin", assign({}))
    graph.node("left", same, input={"value": "'l'"})
    graph.node("right", same, input={"value": "'r'"})
    graph.node("meet", assign({"output.done": True}))
    graph.edge("begin", "left")
    graph.edge("begin", "right", when="input")
    graph.edge(["left", "right"], "meet", join=all_of())
    assert await run(graph, source, False) == {"done": True}
    assert await run(graph, source, True) == {"done": True}


async def test_branches_keep_their_state_to_themselves(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("apart")
    graph.node("begin", assign({"state.seen": "'nothing'"}))
    graph.node("mark", assign({"state.seen": "string(branch.item)"}))
    graph.node("nap", timer("10 - branch.item"))
    graph.node("work", same, input={"value": "state.seen"})
    graph.node("meet", assign({}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "nap")
    graph.edge("nap", "work")
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.output({"got": "state.got", "seen": "state.seen"})
    assert await run(graph, source, [1, 2, 3]) == {"got": ["1", "2", "3"], "seen": "nothing"}


# ---------------------------------------------------------------------------------------------------------------------
# Cancelling


async def test_an_edge_cancels_the_rest_of_its_fork(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("rest")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="input")
    graph.edge("nap", "work", when="branch.item == 20", cancel="*")
    graph.edge("nap", "work", priority=1)
    graph.edge("work", "meet", join=all_of("begin"), merge=collect("state.got"))
    graph.output("state.got")
    assert await run(graph, source, [30, 10, 20, 40]) == [10, 20]


async def test_an_edge_cancels_what_stands_at_other_nodes(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("region")
    graph.node("begin", assign({}))
    graph.node("watch", timer(1_000_000))
    graph.node("alarm", assign({"output.alarm": True}))
    graph.node("work", same, input={"value": 1})
    graph.node("done", assign({"output.done": True}))
    graph.edge("begin", "watch")
    graph.edge("begin", "work")
    graph.edge("watch", "alarm")
    graph.edge("work", "done", cancel="watch")
    assert await run(graph, source) == {"done": True}


async def test_many_runs_of_nested_forks_at_once(source: StoreSource) -> None:
    graph = spread(all_of(), collect("state.got"))
    async with Environment([graph], source) as env:
        results = await asyncio.gather(*[env.engine.run(graph(list(range(size)))) for size in range(20)])
        assert results == [{"got": list(range(size))} for size in range(20)]


def unequal(**forks: Any) -> Graph[Any, Any]:
    """One join over `short`, in the fork at `begin`, and `long`, in the fork at `part` inside of that."""
    graph: Graph[Any, Any] = Graph("unequal")
    for name in ("begin", "short", "part", "long"):
        graph.node(name, assign({}))
    graph.node("meet", assign({"state.met": "has(state.met) ? state.met + 1 : 1"}))
    graph.node("end", assign({"output.met": "state.met"}))
    graph.edge("begin", "short")
    graph.edge("begin", "part")
    graph.edge("part", "long", spawn=2)
    graph.edge("short", "meet", join=all_of(forks.get("short")))
    graph.edge("long", "meet", join=all_of(forks.get("long")))
    graph.edge("meet", "end")
    return graph


@pytest.mark.parametrize("forks", [{}, {"short": "begin"}, {"long": "part"}])
def test_a_join_over_forks_of_different_depth_asks_for_the_fork(forks: dict[str, str]) -> None:
    with pytest.raises(InvalidDefinition) as wrong:
        unequal(**forks).build()
    [problem] = wrong.value.problems
    assert problem.startswith("graph 'unequal', join at 'meet': its edges close forks of different depth")
    assert "from 'short' the fork at 'begin'; from 'long' the fork at 'part'" in problem
    assert "fork='begin'" in problem


async def test_a_join_over_forks_of_different_depth_goes_on_once_if_the_fork_is_named(source: StoreSource) -> None:
    assert await run(unequal(short="begin", long="begin"), source) == {"met": 1}


@pytest.mark.parametrize("join", [any_of(timeout=1), any_of(timeout=1, on_timeout="proceed"), m_of(1, timeout=1)])
def test_a_timeout_that_can_never_pass_is_refused(join: Any) -> None:
    graph = spread(join, collect("state.got"))
    with pytest.raises(InvalidDefinition, match=r"edge work -> .*, join.timeout: it counts from the first arrival"):
        graph.build()
