"""Nodes at which one token at a time may stand: who waits, who is next, and what becomes of it when tokens go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import NamedEvent, Retry, step
from perdure.errors import InvalidDefinition
from perdure.graph import END, Graph, all_of, any_of, assign, collect, timer, wait
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.graphs.pattern_tasks import Trace, World, add, net, play


@step(retry=Retry.never())
async def refuse(value: int) -> int:
    if value == 1:
        raise ValueError(value)
    return value


async def test_the_items_of_a_list_are_gone_through_one_by_one_in_their_order(source: StoreSource) -> None:
    graph = net("one_by_one", "a b c", {"b": 1})
    graph.edge("a", "b", foreach="[3, 1, 2]")
    graph.edge("b", "c", join=all_of())
    graph.exclusive("b")
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "b3", "b1", "b2", "c"]
        assert world.seconds == 3


async def test_who_waits_for_its_turn_can_be_cancelled(source: StoreSource) -> None:
    graph = net("cancelled", "a b c d stop", {"b": 5, "c": 5, "d": 5, "stop": 1})
    for one in ("b", "c", "d", "stop"):
        graph.edge("a", one)
    graph.edge("stop", END, cancel=["c"])
    graph.exclusive(["b", "c", "d"])
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.trace.begun == ["a", "b", "stop", "d"]


async def test_a_token_that_is_cancelled_in_its_turn_gives_it_up(source: StoreSource) -> None:
    graph = net("given_up", "a b c stop", {"b": 5, "c": 5, "stop": 1})
    for one in ("b", "c", "stop"):
        graph.edge("a", one)
    graph.edge("stop", END, cancel=["b"])
    graph.exclusive(["b", "c"], keep=True)
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "stop", "c"]
        assert world.seconds == 6


async def test_a_join_that_has_enough_cancels_those_that_wait_for_their_turn(source: StoreSource) -> None:
    graph = net("enough", "a b c", {"b": 1})
    graph.edge("a", "b", foreach="[1, 2, 3, 4]")
    graph.edge("b", "c", join=any_of())
    graph.exclusive("b")
    assert await play(graph, source) == ["a", "b1", "c"]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_failure_ends_a_turn(keep: bool, source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("failing")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="[0, 1, 2]")
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.exclusive("work", keep=keep)
    graph.output("state.got[2]")
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == 2


async def test_a_turn_is_kept_while_its_token_waits_for_an_event(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("asking")
    graph.node("begin", assign({}))
    graph.node("ask", wait("answer", where={"to": "branch.item"}))
    add(graph, "answered")
    graph.edge("begin", "ask", foreach="['ada', 'bob']")
    graph.edge("ask", "answered")
    graph.exclusive(["ask", "answered"], keep=True)
    async with World([graph], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.engine.send(NamedEvent("answer", {"to": "bob"}), to=run.id)
        await world.env.quiet()
        assert world.ran == []
        await world.engine.send(NamedEvent("answer", {"to": "ada"}), to=run.id)
        await run.result()
        assert world.ran == ["answeredada", "answeredbob"]


async def test_two_exclusive_parts_do_not_wait_for_each_other(source: StoreSource) -> None:
    """Rows that go through both parts, in opposite directions."""
    graph = net("crossing", "a b1 b2 c1 c2 d", dict.fromkeys(("b1", "b2", "c1", "c2"), 1))
    for one, other in (("b1", "c2"), ("c1", "b2")):
        graph.edge("a", one)
        graph.edge(one, other)
        graph.edge(other, "d", join=all_of())
    graph.exclusive(["b1", "b2"], keep=True)
    graph.exclusive(["c1", "c2"], keep=True)
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert sorted(world.ran) == ["a", "b1", "b2", "c1", "c2", "d"]
        assert world.seconds == 2


@pytest.mark.parametrize("keep", [False, True])
async def test_a_crash_at_any_commit_keeps_the_turns(keep: bool, fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("crashing")
    graph.node("begin", assign({}))
    add(graph, "one", label="'one ' + string(branch.item)")
    graph.node("nap", timer(1))
    add(graph, "two", label="'two ' + string(branch.item)")
    graph.node("meet", assign({}))
    graph.edge("begin", "one", foreach="[1, 2, 3]")
    graph.edge("one", "nap")
    graph.edge("nap", "two")
    graph.edge("two", "meet", join=all_of(), merge=collect("state.got"))
    graph.exclusive(["one", "nap", "two"], keep=keep)
    graph.output("state.got")
    trace = Trace()

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh, resources={Trace: lambda: trace})
    assert report.result == ["two 1", "two 2", "two 3"]
    assert trace.at_once_max == 1


def test_what_is_wrong_with_exclusive_nodes_is_said_when_the_graph_is_built() -> None:
    graph = net("wrong", "a b")
    graph.edge("a", "b")
    graph.exclusive(["a", "x"])
    graph.exclusive(["a", "b"])
    with pytest.raises(InvalidDefinition) as wrong:
        graph.build()
    assert vars(wrong.value)["problems"] == [
        "graph 'wrong', exclusive[0]: there is no node 'x'",
        "graph 'wrong', exclusive[1]: the node 'a' is exclusive already, and can be so once",
    ]


def test_exclusive_nodes_are_part_of_the_text() -> None:
    graph = net("text", "a b")
    graph.edge("a", "b")
    graph.exclusive(["a", "b"], keep=True)
    again = Graph.parse(graph.dump())
    assert again.definition == graph.definition
    assert again.definition.exclusive[0].keep


async def test_who_waits_for_its_turn_stands_at_its_node(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("standing")
    graph.node("begin", assign({}))
    graph.node("ask", wait("never"))
    graph.edge("begin", "ask", spawn=3)
    graph.exclusive("ask")
    async with World([graph], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.env.quiet()
        assert (await run.tokens()).nodes["ask"].standing == 3
