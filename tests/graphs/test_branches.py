"""Branches: what each of them writes is there after its join, and how each of them failed is told."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Retry, step
from perdure.errors import JoinFailed, RunFailed
from perdure.graph import END, Graph, all_of, any_of, append, artifact, assign, collect, keyed, m_of, timer
from perdure.models.graphs.rules_versions import FORKS_RULES
from perdure.testing import Environment
from perdure.testing.clock import VirtualClock
from perdure.testing.environment import StoreSource


@step(retry=Retry.never())
async def refuse(value: Any) -> Any:
    raise ValueError(f"{value} is refused")


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    return value


async def run(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> Any:
    async with Environment([graph], source) as env:
        result = await env.engine.run(graph(input))
        await env.check()
        return result


# Writes.


def split(left: dict[str, Any], right: dict[str, Any], before: dict[str, Any] | None = None) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("split")
    graph.node("begin", assign(before or {}))
    graph.node("left", assign(left))
    graph.node("right", assign(right))
    graph.node("meet", assign({}))
    graph.edge("begin", "left")
    graph.edge("begin", "right")
    graph.edge(["left", "right"], "meet", join=all_of())
    graph.output({"output": "output", "state": "state"})
    return graph


async def test_parallel_branches_write_into_the_same_object(source: StoreSource) -> None:
    graph = split({"output.report.title": "'tides'"}, {"output.report.body": "'they come'"})
    assert (await run(graph, source))["output"] == {"report": {"title": "tides", "body": "they come"}}


async def test_what_was_there_before_stays_and_deeper_paths_are_merged_too(source: StoreSource) -> None:
    graph = split(
        {"state.report.parts.a.size": "1", "state.report.author": "'me'"},
        {"state.report.parts.b.size": "2", "state.report.parts.a.kind": "'x'"},
        {"state.report": {"old": True, "author": "'nobody'"}},
    )
    assert (await run(graph, source))["state"] == {
        "report": {"old": True, "author": "me", "parts": {"a": {"size": 1, "kind": "x"}, "b": {"size": 2}}}
    }


async def test_of_equal_paths_the_later_branch_counts(source: StoreSource) -> None:
    graph = split({"state.a.x": "1", "state.b": {"x": 1}}, {"state.a.x": "2", "state.b.y": "2"}, {"state.b.z": "0"})
    assert (await run(graph, source))["state"] == {"a": {"x": 2}, "b": {"x": 1, "y": 2}}


async def test_a_whole_object_of_a_later_branch_replaces_what_an_earlier_one_wrote_into_it(source: StoreSource) -> None:
    graph = split({"state.b.y": "2"}, {"state.b": {"x": 1}}, {"state.b.z": "0"})
    assert (await run(graph, source))["state"] == {"b": {"x": 1}}


async def test_what_a_branch_overwrites_after_it_wrote_inside_is_whole(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("twice")
    graph.node("begin", assign({"state.o.old": "0"}))
    graph.node("inside", assign({"state.o.a": "1"}))
    graph.node("whole", assign({"state.o": {"b": 2}}))
    graph.node("again", assign({"state.o.c": "3"}))
    graph.node("other", assign({"state.p.q": "4"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "inside")
    graph.edge("inside", "whole")
    graph.edge("whole", "again")
    graph.edge("begin", "other")
    graph.edge(["again", "other"], "meet", join=all_of())
    graph.output("state")
    assert await run(graph, source) == {"o": {"b": 2, "c": 3}, "p": {"q": 4}}


async def test_nodes_outputs_and_merges_inside_of_branches_are_merged_by_path_too(source: StoreSource) -> None:
    """A node's `output` writes in one branch, the merge of an inner join in the other; both go through two joins."""
    graph: Graph[Any, Any] = Graph("deep")
    graph.node("begin", assign({"state.report.kind": "'draft'"}))
    graph.node("title", same, input={"value": "'tides'"}, output={"state.report.title": "nodes.title"})
    graph.node("list", assign({}))
    graph.node("item", assign({"state.ignored": "branch.item"}))
    graph.node("listed", assign({}))
    graph.node("meet", assign({"output.report": "state.report"}))
    graph.edge("begin", "title")
    graph.edge("begin", "list")
    graph.edge("list", "item", foreach="[1, 2]")
    graph.edge("item", "listed", join=all_of("list"), merge=collect("state.report.items", source="branch.item"))
    graph.edge(["title", "listed"], "meet", join=all_of("begin"))
    assert await run(graph, source) == {"report": {"kind": "draft", "title": "tides", "items": [1, 2]}}


async def test_branches_that_only_end_leave_what_they_wrote_by_path(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("ending")
    graph.node("begin", assign({}))
    graph.node("left", assign({"output.report.title": "'a'"}))
    graph.node("right", assign({"output.report.body": "'b'"}))
    graph.edge("begin", "left")
    graph.edge("begin", "right")
    assert await run(graph, source) == {"report": {"title": "a", "body": "b"}}


# Failures.


def failing(join: Any, items: str = "['a', 'b']") -> Graph[Any, Any]:
    """In each branch one token fails, or all go well, and another one arrives a little later or sooner."""
    graph: Graph[Any, Any] = Graph("failing")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("bad", refuse, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("good", timer("branch.item == 'early' ? 0.0 : 60.0"))
    graph.node("meet", assign({}))
    graph.edge("begin", "part", foreach=items)
    graph.edge("part", "good")
    graph.edge("part", "bad", when="branch.item != 'fine'")
    graph.edge("bad", END)
    graph.edge("good", "meet", join=join, merge=keyed("state.got"))
    graph.output("state.got")
    return graph


async def test_a_failed_branch_has_failed_though_another_token_of_it_arrives(source: StoreSource) -> None:
    got = await run(failing(all_of("begin"), "['late', 'early', 'fine']"), source)
    assert set(got) == {"0", "1", "2"}
    for index, item in enumerate(["late", "early"]):
        assert got[str(index)]["error"] == {
            "type": "ValueError",
            "message": f"{item} is refused",
            "node": "bad",
            "index": index,
            "item": item,
        }
    assert "error" not in got["2"]


async def test_if_every_branch_has_failed_so_has_the_join(source: StoreSource) -> None:
    async with Environment([graph := failing(all_of("begin"))], source) as env:
        handle = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await handle.result()
    cause = failed.value.__cause__
    assert isinstance(cause, JoinFailed)
    assert "all 2 branches that were to arrive have failed" in str(cause)
    assert "branch 0 of the fork at 'begin', item 'a', at node 'bad': ValueError: a is refused" in str(cause)
    assert "branch 1 of the fork at 'begin', item 'b', at node 'bad': ValueError: b is refused" in str(cause)
    assert [(one["index"], one["item"], one["node"]) for one in cause.branches] == [(0, "a", "bad"), (1, "b", "bad")]


@pytest.mark.parametrize("join", [any_of("begin"), m_of(2, "begin")])
async def test_a_failed_branch_does_not_count_as_one_that_arrived(join: Any, source: StoreSource) -> None:
    async with Environment([graph := failing(join)], source) as env:
        handle = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert isinstance(failed.value.__cause__, JoinFailed)
        await env.check()


async def test_enough_others_are_enough(source: StoreSource) -> None:
    got = await run(failing(m_of(2, "begin"), "['fine', 'a', 'fine']"), source)
    assert set(got) == {"0", "2"}


async def test_error_edges_see_which_item_failed(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("routed")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"})
    graph.node("mend", assign({"state.mended": {"index": "error.index", "item": "error.item"}}))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="['a', 'b']")
    graph.edge("work", "mend", on_error=True)
    graph.edge(["mend"], "meet", join=all_of(), merge=append("state.all", source="state.mended"))
    graph.output("state.all")
    assert await run(graph, source) == [{"index": 0, "item": "a"}, {"index": 1, "item": "b"}]


async def test_a_run_that_fails_in_a_branch_says_which(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("failed")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="['x' + 'y']")
    graph.edge("work", "meet", join=all_of())
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        where = "branch 0 of the fork at 'begin', item 'xy', at node 'work'"
        assert type(failed.value.__cause__) is ValueError
        assert str(failed.value).endswith(f"ValueError: xy is refused ({where})")
        assert failed.value.failure.where == where
        history = await env.engine.handle(handle.id).history()
        entry = next(one for one in history.journal if one.name == "work")
        assert entry.failure is not None
        assert entry.failure.where == where


async def test_an_expression_that_fails_in_a_branch_says_which(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("expression")
    graph.node("begin", assign({}))
    graph.node("work", assign({}))
    graph.node("next", assign({}))
    graph.edge("begin", "work", foreach="[{'n': 1}, {'m': 2}]")
    graph.edge("work", "next", when="branch.item.n == 1")
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph())
        with pytest.raises(RunFailed, match=r"\(branch 1 of the fork at 'begin', item {'m': 2}, at node 'work'\)"):
            await handle.result()


async def test_long_items_are_cut_in_messages(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("long")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "'it'"})
    graph.edge("begin", "work", foreach="input")
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph(["x" * 10_000]))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert len(str(failed.value)) < 500


# What branches see.


def overtaken(join: Any) -> Graph[Any, Any]:
    """The slow branch reads the context after the token behind the join has written to it."""
    graph: Graph[Any, Any] = Graph("overtaken")
    graph.node("begin", assign({"state.x": "'before'"}))
    graph.node("quick", same, input={"value": "'quick'"})
    graph.node("nap", timer(10))
    graph.node("slow", same, input={"value": "state.x + (has(state.seen) ? ' and all' : '')"})
    graph.node("change", assign({"state.x": "'after'", "state.seen": "true"}))
    graph.node("wait", timer(60))
    graph.node("tell", assign({"output.seen": "state.l", "output.x": "state.x"}))
    graph.edge("begin", "quick")
    graph.edge("begin", "nap")
    graph.edge("nap", "slow")
    graph.edge(["quick", "slow"], "change", join=join, merge=append("state.l"))
    graph.edge("change", "wait")
    graph.edge("wait", "tell")
    return graph


async def test_a_late_branch_does_not_see_what_is_written_behind_its_join(source: StoreSource) -> None:
    graph = overtaken(any_of(on_early="late_merge"))
    assert await run(graph, source) == {"seen": ["quick", "before"], "x": "after"}


async def test_branches_do_not_see_what_is_merged_after_their_fork(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("later")
    graph.node("begin", assign({"state.l": "[]"}))
    graph.node("quick", same, input={"value": "'quick'"})
    graph.node("slow", timer(10))
    graph.node("late", same, input={"value": "'late'"})
    graph.node("fork", assign({"state.x": "1"}))
    graph.node("nap", timer(60))
    graph.node("look", same, input={"value": "size(state.l)"})
    graph.node("tell", assign({"output.l": "state.l", "output.seen": "state.seen"}))
    graph.edge("begin", "quick")
    graph.edge("begin", "slow")
    graph.edge("slow", "late")
    graph.edge(["quick", "late"], "fork", join=any_of("begin", on_early="late_merge"), merge=append("state.l"))
    graph.edge("fork", "nap", spawn=2)
    graph.edge("nap", "look")
    graph.edge("look", "tell", join=all_of("fork"), merge=collect("state.seen"))
    assert await run(graph, source) == {"l": ["quick", "late"], "seen": [1, 1]}


async def test_artifacts_are_seen_in_branches_that_were_forked_before(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("shared")
    graph.node("begin", assign({"state.x": "1"}))
    graph.node("stage", artifact("page", "'text'"))
    graph.node("nap", timer(10))
    graph.node("look", assign({"output.has": "has(artifacts.page)"}))
    graph.edge("begin", "stage")
    graph.edge("begin", "nap")
    graph.edge("nap", "look")
    assert await run(graph, source) == {"has": True}


async def test_a_run_that_began_by_earlier_rules_shares_its_context_as_before(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal follows from what its branches saw."""
    clock = VirtualClock()
    graph = overtaken(any_of(on_early="late_merge"))
    with monkeypatch.context() as patched:
        patched.setattr("perdure.models.graphs.fingerprint.RULES", FORKS_RULES - 1)
        async with Environment([graph], source, clock=clock, autojump_s=None) as env:
            await env.engine.start(graph(), id="r")
            await env.quiet()
    again = overtaken(any_of(on_early="late_merge"))
    async with Environment([again], source, clock=clock) as env:
        assert await env.engine.handle("r").result() == {"seen": ["quick", "after and all"], "x": "after"}
