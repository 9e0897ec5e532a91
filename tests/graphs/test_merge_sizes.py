"""Merged values are bounded: a merge that puts a value into itself doubles it with every lap of a loop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.errors import LimitExceeded, RunFailed
from perdure.graph import (
    Graph,
    GraphLimits,
    all_of,
    any_of,
    append,
    assign,
    collect,
    keyed,
    last_wins,
    merge_object,
    reduce_with,
    timer,
)
from perdure.models.graphs import fingerprint, sizes
from perdure.models.graphs.rules_versions import MERGES_RULES
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

SMALL = GraphLimits(merged_bytes=2_000)


def both(values: list[Any]) -> list[Any]:
    return values


def round_trip(merge: Any, first: Any, *, laps: int = 14, limits: GraphLimits = SMALL) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("round", limits=limits)
    graph.node("begin", assign({"state.x": first, "state.lap": "0"}))
    graph.node("apart", assign({"state.lap": "state.lap + 1"}))
    graph.node("branch_off", assign({}))
    graph.node("meet", assign({}))
    graph.node("after", assign({"output.laps": "state.lap"}))
    graph.edge("begin", "apart")
    graph.edge("apart", "branch_off", spawn=2)
    graph.edge("branch_off", "meet", join=all_of(), merge=merge)
    graph.edge("meet", "apart", limit=laps)
    graph.edge("meet", "after", priority=1)
    return graph


async def refused(graph: Graph[Any, Any], source: StoreSource) -> LimitExceeded:
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
        assert isinstance(failed.value.__cause__, LimitExceeded)
        return failed.value.__cause__


@pytest.mark.parametrize(
    ("merge", "first"),
    [
        (append("state.x", source="state.x"), [1]),
        (collect("state.x", source="state.x"), [1]),
        (keyed("state.x", source="state.x"), [1]),
        (merge_object("state.x", source="{'a' + string(branch.index): state.x}"), {"b": 1}),
        (reduce_with(both, "state.x", source="state.x"), [1]),
    ],
    ids=lambda one: getattr(getattr(one, "spec", one), "strategy", ""),
)
async def test_what_doubles_with_every_lap_fails_the_run(merge: Any, first: Any, source: StoreSource) -> None:
    error = await refused(round_trip(merge, first), source)
    assert str(error) == (
        "graph 'round', edge branch_off -> meet, merge: there would be a merged value at state.x of more than 2,000 "
        "bytes, and the graph's limit of merged_bytes is 2,000; raise it with "
        "Graph(…, limits=GraphLimits(merged_bytes=…)), or with limits: {merged_bytes: …} in a text"
    )


@pytest.mark.parametrize("merge", [append, collect, keyed, merge_object, last_wins])
async def test_late_branches_are_bounded_too(merge: Any, source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("late", limits=SMALL)
    graph.node("begin", assign({"state.text": "'0123456789' + '0123456789' + '0123456789' + '0123456789'"}))
    graph.node("nap", timer("branch.index + 1"))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", spawn=100)
    many = "[1, 2, 3].map(one, state.text)" if merge is not merge_object else "{string(branch.index): state.text}"
    if merge is last_wins:
        many = "branch.index < 50 ? ['a'] : [1, 2, 3, 4, 5, 6, 7, 8, 9].map(a, [1, 2, 3, 4, 5, 6].map(b, state.text))"
    graph.edge(
        "nap", "meet", join=any_of(on_early="late_merge"), merge=merge("state.got", source=many)
    )  # fmt: skip
    error = await refused(graph, source)
    assert "at state.got of more than 2,000 bytes" in str(error)


async def test_fields_that_are_written_again_do_not_add_up(source: StoreSource) -> None:
    merge = merge_object("state.x", source="{'same': '0123456789'}")
    graph = round_trip(merge, {"more": 1}, laps=300)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"laps": 301}


async def test_a_raised_limit_lets_the_run_be_retried(source: StoreSource) -> None:
    merge = append("state.x", source="state.x")
    graph, larger = round_trip(merge, [1], laps=9), round_trip(merge, [1], laps=9, limits=GraphLimits())
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(graph(), id="r")
        clock = env.clock
    async with Environment([larger], source, clock=clock) as env:
        await env.engine.handle("r").retry()
        assert await env.engine.handle("r").result() == {"laps": 10}


async def test_a_run_that_began_before_there_was_a_limit_has_none(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph: Graph[Any, Any] = Graph("old", limits=GraphLimits(merged_bytes=50))
    graph.node("begin", assign({}))
    graph.node("nap", timer(60))
    graph.node("meet", assign({"output.got": "state.got.size()"}))
    graph.edge("begin", "nap", spawn=20)
    graph.edge("nap", "meet", join=all_of(), merge=append("state.got", source="'0123456789'"))
    with monkeypatch.context() as patched:
        patched.setattr(fingerprint, "RULES", MERGES_RULES - 1)
        async with Environment([graph], source, autojump_s=None) as env:
            await env.engine.start(graph(), id="old")
            clock = env.clock
    again = Graph.parse(graph.dump())
    async with Environment([again], source, clock=clock) as env:
        assert await env.engine.handle("old").result() == {"got": 20}
        with pytest.raises(RunFailed, match="merged_bytes is 50"):
            await env.engine.run(again())


async def test_what_a_loop_adds_is_measured_once(source: StoreSource, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    encode = msgspec.json.encode

    def counted(value: Any) -> bytes:
        text = encode(value)
        measured.append(len(text))
        return text

    graph = round_trip(append("state.x", source="'0123456789'"), [], laps=200, limits=GraphLimits())
    async with Environment([graph], source) as env:
        monkeypatch.setattr(sizes, "to_json", counted)
        assert await env.engine.run(graph()) == {"laps": 201}
    assert sum(measured) < 201 * 3 * 12 + 100


def test_what_many_branches_bring_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(value: Any) -> bytes:
        nonlocal count
        count += 1
        return msgspec.json.encode(value)

    monkeypatch.setattr(sizes, "to_json", counted)
    shared = {"text": "x" * 100}
    assert sizes.Sizes(2_000_000, MERGES_RULES).of([shared] * 10_000, "here", "state.x") > 1_000_000
    assert count == 1
