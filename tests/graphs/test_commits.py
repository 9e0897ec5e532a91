"""What a run of a graph costs, counted at the store's door."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Retry, step
from perdure.graph import Graph, all_of, append, assign
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger


@step(retry=Retry.never())
async def plan(width: int) -> list[int]:
    return list(range(width))


@step(retry=Retry.never())
async def work(number: int) -> int:
    return number + 1


@step(retry=Retry.never())
async def add(numbers: list[int]) -> int:
    return sum(numbers)


def fan_out() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("fan_out")
    graph.node("plan", plan, input={"width": "input"})
    graph.node("work", work, input={"number": "branch.item"})
    graph.node("add", add, input={"numbers": "state.numbers"})
    graph.edge("plan", "work", foreach="nodes.plan")
    graph.edge("work", "add", join=all_of(), merge=append("state.numbers"))
    graph.output("nodes.add")
    return graph.build()


async def test_a_hundred_branches_take_a_handful_of_commits(source: StoreSource) -> None:
    graph, ledger = fan_out(), Ledger()
    async with Environment([graph], source, watch=ledger.watch) as env:
        assert await env.engine.run(graph(100)) == 5050
        await env.settle()
        assert len(ledger.batches) <= 10


@pytest.mark.parametrize("nodes", [1, 2, 10])
async def test_a_chain_commits_its_start_and_then_once_per_node(nodes: int, source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("chain")
    for number in range(nodes):
        graph.node(f"n{number}", work, input={"number": "input" if number == 0 else f"nodes.n{number - 1}"})
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    graph.output(f"nodes.n{nodes - 1}")
    ledger = Ledger()
    async with Environment([graph.build()], source, watch=ledger.watch) as env:
        ledger.batches.clear()  # The engine has kept the definition.
        assert await env.engine.run(graph(0)) == nodes
        await env.settle()
        assert len(ledger.batches) == nodes + 1


async def test_nodes_that_touch_nothing_cost_nothing(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("plain")
    graph.node("count", assign({"state.count": "has(state.count) ? state.count + 1 : 1"}))
    graph.edge("count", "count", limit=50)
    graph.node("end", assign({"output.count": "state.count"}))
    graph.edge("count", "end", priority=1)
    ledger = Ledger()
    async with Environment([graph.build()], source, watch=ledger.watch) as env:
        ledger.batches.clear()  # The engine has kept the definition.
        assert await env.engine.run(graph()) == {"count": 51}
        await env.settle()
        assert len(ledger.batches) == 2


async def test_ten_thousand_branches_in_one_run(source: StoreSource) -> None:
    graph = fan_out()
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(10_000)) == 50_005_000
