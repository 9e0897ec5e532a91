"""Nodes that emit metrics: items of the run's stream, each once, whatever happens to the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Retry, step
from perdure.errors import ExpressionFailed, InvalidDefinition, RunFailed
from perdure.graph import Graph, all_of, assign, metric
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    return value


def counting() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("counting")
    graph.node("begin", same, input={"value": [3, 1, 2]})
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("note", metric("pages", "nodes.work * 10", unit="1", attributes={"index": "branch.index"}))
    graph.node("meet", assign({}))
    graph.node("total", metric("runs"))
    graph.edge("begin", "work", foreach="nodes.begin")
    graph.edge("work", "note")
    graph.edge("note", "meet", join=all_of())
    graph.edge("meet", "total")
    return graph


async def items(env: Environment, run_id: str, stream: str = "metrics") -> list[Any]:
    return [item.value async for item in env.engine.handle(run_id).stream(stream, follow=False)]


async def test_metrics_are_items_of_the_runs_stream(source: StoreSource) -> None:
    graph = counting()
    async with Environment([graph], source) as env:
        await env.engine.run(graph(), id="r")
        found = await items(env, "r")
        pages = sorted((one["attributes"]["index"], one["value"]) for one in found[:-1])
        assert pages == [(0, 30), (1, 10), (2, 20)]
        assert {(one["name"], one["unit"], one["node"]) for one in found[:-1]} == {("pages", "1", "note")}
        assert found[-1] == {"name": "runs", "value": 1, "unit": "", "attributes": {}, "node": "total"}


async def test_each_is_emitted_once_whenever_the_process_dies(fresh: Callable[[], StoreSource]) -> None:
    graph = counting()

    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(graph(), id="r")).result()
        found = await items(env, "r")
        return sorted(one["value"] for one in found)

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == [1, 10, 20, 30]


async def test_it_costs_no_commit(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("cheap")
    graph.node("go", same, input={"value": 7})
    graph.node("note", metric("sevens", "nodes.go", stream="figures"))
    graph.edge("go", "note")
    ledger = Ledger()
    async with Environment([graph], source, watch=ledger.watch) as env:
        before = len(ledger.batches)
        await env.engine.run(graph(), id="r")
        await env.settle()
        assert len(ledger.batches) - before == 2
        assert [one["value"] for one in await items(env, "r", "figures")] == [7]


@pytest.mark.parametrize("value", [True, "seven", None, [1]])
async def test_what_is_no_number_is_an_error(source: StoreSource, value: Any) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("note", metric("x", "input"))
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph(value))
        assert isinstance(failed.value.__cause__, ExpressionFailed)
        assert "graph 'wrong', node 'note', value: a metric is a number" in str(failed.value.__cause__)


@pytest.mark.parametrize("value", ["1.0 / 0.0", "0.0 / 0.0"])
async def test_infinity_is_no_metric(source: StoreSource, value: str) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("note", metric("x", value))
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph({}))
        assert "graph 'wrong', node 'note', value: a metric is a number, not" in str(failed.value.__cause__)
        assert await items(env, failed.value.run_id) == []


def test_texts_and_pictures_have_it() -> None:
    graph = counting()
    assert Graph.parse(graph.dump()).fingerprint == graph.fingerprint
    assert "metric pages" in graph.to_mermaid()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("name: ''", "Expected `str` of length >= 1"),
        ("name: x, value: inpt", "node 'note', value: 'inpt' uses the unknown name"),
        ("name: x, attributes: {a: inpt}", "node 'note', attributes.a: 'inpt' uses the unknown name"),
        ("name: x, timeout: 3", "node 'note', timeout: a metric node has none"),
    ],
)
def test_what_is_wrong_is_found_when_the_graph_is_built(fields: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse("graph: bad\nnodes:\n  note: {kind: metric, " + fields + "}\n")
    assert why in str(wrong.value)
