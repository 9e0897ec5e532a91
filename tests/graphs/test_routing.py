"""Which edges a token takes: tiers, conditions, loops with limits, errors, ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest

from perdure import Retry, RunHandle, step
from perdure.errors import (
    ExpressionFailed,
    GraphTimedOut,
    LimitExceeded,
    NoMatchingEdge,
    RunFailed,
    StepTimedOut,
    Terminated,
)
from perdure.graph import END, TERMINATE, Graph, GraphLimits, all_of, assign, collect, terminate, timer, wait
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource


@step
async def same(value: Any) -> Any:
    return value


@step(retry=Retry.never())
async def fail(message: str) -> None:
    raise LookupError(message)


async def run(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> Any:
    async with Environment([graph], source) as env:
        return await env.engine.run(graph(input))


async def failure(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> BaseException:
    async with Environment([graph], source) as env:
        handle: RunHandle[Any] = await env.engine.start(graph(input))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert failed.value.__cause__ is not None
        return failed.value.__cause__


def marked(graph: Graph[Any, Any], *names: str) -> None:
    for name in names:
        graph.node(name, assign({f"output.{name}": True}))


async def test_the_first_tier_with_a_match_fires_and_all_its_matches_do(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("tiers")
    graph.node("begin", assign({}))
    marked(graph, "none", "one", "two", "later")
    graph.edge("begin", "none", priority=1, when="input.size > 100")
    graph.edge("begin", "one", priority=2, when="input.size > 1")
    graph.edge("begin", "two", priority=2, when="input.size > 2")
    graph.edge("begin", "later", priority=3)
    assert await run(graph, source, {"size": 3}) == {"one": True, "two": True}
    assert await run(graph, source, {"size": 2}) == {"one": True}
    assert await run(graph, source, {"size": 0}) == {"later": True}


async def test_later_tiers_are_not_even_evaluated(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("lazy")
    graph.node("begin", assign({}))
    marked(graph, "first", "second")
    graph.edge("begin", "first", when="true")
    graph.edge("begin", "second", priority=1, when="input.missing")
    assert await run(graph, source, {}) == {"first": True}


async def test_no_matching_edge_is_an_error_that_shows_the_values(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("stuck")
    graph.node("begin", same, input={"value": "input.size"})
    marked(graph, "big", "small")
    graph.edge("begin", "big", when="nodes.begin > 10")
    graph.edge("begin", "small", when="nodes.begin < 5")
    error = await failure(graph, source, {"size": 7})
    assert isinstance(error, NoMatchingEdge)
    assert "graph 'stuck', node 'begin': no edge matches" in str(error)
    assert "to 'big' when 'nodes.begin > 10' (nodes.begin is 7)" in str(error)


async def test_otherwise_the_token_ends(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("ends")
    graph.node("begin", assign({"output.began": True}), otherwise="end")
    marked(graph, "never")
    graph.edge("begin", "never", when="false")
    assert await run(graph, source) == {"began": True}


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("input.missing == 1", "there is no 'missing'"),
        ("input.missing", "there is no 'missing' in input"),
        ("input.size", "a condition must be true or false, not 3"),
        ("input.size > 'x'", "No such overload"),
        ("input.size / 0 == 1", "division by zero"),
    ],
)
async def test_a_condition_that_fails_is_an_error_and_never_false(when: str, why: str, source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("begin", assign({}))
    marked(graph, "next")
    graph.edge("begin", "next", when=when)
    error = await failure(graph, source, {"size": 3})
    assert isinstance(error, ExpressionFailed)
    assert f"graph 'wrong', edge begin -> next, when: {when!r} failed" in str(error)
    assert why in str(error)


async def test_a_loop_ends_at_its_limit_and_a_fallback_takes_over(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("loop")
    graph.node("count", assign({"state.count": "has(state.count) ? state.count + 1 : 1"}))
    graph.node("done", assign({"output.count": "state.count"}))
    graph.edge("count", "count", when="true", limit=5)
    graph.edge("count", "done", priority=1)
    assert await run(graph, source) == {"count": 6}


async def test_at_the_limit_the_condition_is_not_even_evaluated(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("limit")
    graph.node("work", same, input={"value": "has(state.laps) ? 'no number' : 1"})
    graph.node("again", assign({"state.laps": True}))
    marked(graph, "done")
    graph.edge("work", "again", when="nodes.work > 0", limit=1)
    graph.edge("again", "work")
    graph.edge("work", "done", priority=1)
    assert await run(graph, source) == {"done": True}


async def test_a_limit_without_a_fallback_says_so(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("limit")
    graph.node("work", same, input={"value": 1})
    graph.edge("work", "work", limit=2)
    assert "to 'work' the limit of 2 is reached" in str(await failure(graph, source))


async def test_a_loop_in_which_nothing_waits_is_ended(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("endless")
    graph.node("spin", assign({}))
    graph.edge("spin", "spin", limit="unlimited")
    assert isinstance(await failure(graph, source), LimitExceeded)


async def test_every_branch_has_its_own_count_of_laps(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("counts")
    graph.node("begin", assign({}))
    graph.node("lap", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "lap", spawn=3)
    graph.edge("lap", "lap", limit=2)
    graph.edge("lap", "meet", priority=1, join=all_of(), merge=collect("state.got", source="state.laps"))
    graph.output("state.got")
    assert await run(graph, source) == [3, 3, 3]


# ---------------------------------------------------------------------------------------------------------------------
# Errors


async def test_an_error_is_routed_and_can_be_read(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("routed")
    graph.node("work", fail, input={"message": "'no such thing'"})
    graph.node("other", same, input={"value": "'wrong way'"})
    graph.node("rescue", same, input={"value": "error.type + ': ' + error.message + ' in ' + error.node"})
    graph.edge("work", "other")
    graph.edge("work", "other", on_error=True, when="error.type == 'ValueError'")
    graph.edge("work", "rescue", on_error=True, when="error.type == 'LookupError'")
    graph.output("nodes.rescue")
    assert await run(graph, source) == "LookupError: no such thing in work"


async def test_an_error_that_no_edge_takes_fails_the_run(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("unrouted")
    graph.node("work", fail, input={"message": "'no such thing'"})
    graph.node("rescue", assign({}))
    graph.edge("work", "rescue", on_error=True, when="error.type == 'ValueError'")
    error = await failure(graph, source)
    assert isinstance(error, LookupError)


async def test_arguments_that_do_not_fit_are_the_nodes_failure(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("arguments")
    graph.node("work", fail, input={"message": 7})
    graph.node("rescue", same, input={"value": "error.message"})
    graph.edge("work", "rescue", on_error=True)
    graph.output("nodes.rescue")
    assert "does not fit its parameters" in await run(graph, source)


async def test_a_failed_run_is_retried_from_the_node_that_failed(source: StoreSource) -> None:
    tried: list[str] = []

    @step(retry=Retry.never())
    async def fragile() -> str:
        tried.append("fragile")
        if len(tried) == 2:
            raise OSError("not now")
        return "fine"

    @step
    async def before() -> str:
        tried.append("before")
        return "b"

    graph: Graph[Any, Any] = Graph("retried")
    graph.node("before", before)
    graph.node("work", fragile)
    graph.edge("before", "work")
    graph.output("nodes.before + nodes.work")
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph())
        with pytest.raises(RunFailed):
            await handle.result()
        await env.engine.handle(handle.id).retry()
        assert await handle.result() == "bfine"
        assert tried == ["before", "fragile", "fragile"]


# ---------------------------------------------------------------------------------------------------------------------
# Ends and timeouts


async def test_terminate_ends_everything(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("stop")
    graph.node("begin", assign({}))
    graph.node("wait", wait("never"))
    graph.node("work", same, input={"value": 1}, output={"output.got": "nodes.work"})
    graph.edge("begin", "wait")
    graph.edge("begin", "work")
    graph.edge("work", TERMINATE)
    assert await run(graph, source) == {"got": 1}


async def test_a_terminate_node_can_fail_the_run(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("stop")
    graph.node("begin", assign({}))
    graph.node("stop", terminate("failed", "'too big: ' + string(input)"))
    graph.edge("begin", "stop")
    error = await failure(graph, source, 12)
    assert isinstance(error, Terminated)
    assert str(error) == "graph 'stop', node 'stop': too big: 12"


async def test_an_edge_to_the_end_ends_only_its_token(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("end")
    graph.node("begin", assign({}))
    marked(graph, "one", "two", "after")
    graph.edge("begin", "one")
    graph.edge("begin", "two")
    graph.edge("one", END)
    graph.edge("two", "after")
    assert await run(graph, source) == {"one": True, "two": True, "after": True}


async def test_a_run_that_takes_too_long_fails(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("slow", timeout=timedelta(minutes=1))
    graph.node("wait", wait("never"))
    error = await failure(graph, source)
    assert isinstance(error, GraphTimedOut)
    assert str(error) == "graph 'slow' took longer than its timeout of 60 s"


async def test_a_node_that_takes_too_long_fails(source: StoreSource) -> None:
    @step
    async def dawdle() -> None:
        from perdure import resource

        await resource(VirtualClock).sleep(100)

    graph: Graph[Any, Any] = Graph("slow")
    graph.node("work", dawdle, timeout=5)
    assert isinstance(await failure(graph, source), StepTimedOut)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (GraphLimits(branches=3), "there would be 4 branches, and the graph's limit of branches is 3"),
        (GraphLimits(tokens=4), "there would be 5 tokens, and the graph's limit of tokens is 4"),
        (GraphLimits(nesting=1), "there would be 2 forks inside each other"),
    ],
)
async def test_bounds_hold(limits: GraphLimits, why: str, source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("bounded", limits=limits)
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("nap", timer(1))
    graph.edge("begin", "part", spawn=2 if limits.branches > 3 else 4)
    graph.edge("part", "nap", spawn=4)
    error = await failure(graph, source)
    assert isinstance(error, LimitExceeded)
    assert why in str(error)


@pytest.mark.parametrize("on_error", ["fail_run", "branch_error"])
async def test_a_node_whose_output_cannot_be_evaluated_has_failed(
    on_error: Literal["fail_run", "branch_error"], source: StoreSource
) -> None:
    graph: Graph[Any, Any] = Graph("unwritten")
    graph.node("begin", assign({"state.l": "[]"}))
    output = {"state.x": "1", "state.y": "branch.item == 2 ? state.missing : 1"}
    graph.node("work", assign({"state.z": "branch.item"}), output=output, on_error=on_error)
    graph.node("meet", assign({"output.l": "state.l"}))
    graph.edge("begin", "work", foreach="[1, 2]")
    ways = ["work"]
    if on_error == "fail_run":
        graph.node("sorry", assign({"state.z": "error.type", "state.x": "has(state.x)"}))
        graph.edge("work", "sorry", on_error=True)
        ways = ["work", "sorry"]
    graph.edge(ways, "meet", join=all_of(), merge=collect("state.l", "[state.z, state.x]"))
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph())
        one, other = (await handle.result())["l"]
        assert one == [1, 1]
        if on_error == "fail_run":
            assert other == ["ExpressionFailed", False]
        else:
            assert other["error"]["type"] == "ExpressionFailed"
            assert other["error"]["index"] == 1
        assert "state.missing" in str((await handle.graph_events()).events)
        assert (await handle.tokens()).nodes["work"].failed == 1
        await env.check()
