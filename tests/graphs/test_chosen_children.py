"""Children whose workflow is chosen by an expression: its name, its version, and what happens if nobody has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import ExpressionFailed, InvalidArguments, InvalidDefinition, RunFailed, UnknownWorkflow
from perdure.graph import Graph, all_of, assign, child, collect
from perdure.ports import Store
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource


@workflow
async def shout(text: str) -> str:
    return text.upper()


@workflow(name="greet", version="1")
async def greet_one(text: str) -> str:
    return f"hi {text}"


@workflow(name="greet", version="2")
async def greet_two(text: str) -> str:
    return f"hello {text}"


@step
async def twice(text: str) -> str:
    return text * 2


def doubling() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("doubling")
    graph.node("double", twice, input={"text": "input.text"})
    graph.output({"text": "nodes.double"})
    return graph


def choosing(**more: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("choosing")
    graph.node("call", child(name_from="input.flow", **more), input={"text": "input.text"})
    graph.node("wrong", assign({"output.error": "error"}))
    graph.edge("call", "wrong", on_error=True)
    graph.node("done", assign({"output.got": "nodes.call"}))
    graph.edge("call", "done")
    return graph


async def test_an_expression_names_the_child(source: StoreSource) -> None:
    graph = choosing()
    async with Environment([graph, shout, greet_one], source) as env:
        assert await env.engine.run(graph({"flow": "shout", "text": "ahoy"})) == {"got": "AHOY"}
        assert await env.engine.run(graph({"flow": "greet", "text": "sea"})) == {"got": "hi sea"}


async def test_an_expression_gives_the_version(source: StoreSource) -> None:
    graph = choosing(version_from="has(input.version) ? input.version : ''")
    async with Environment([graph, greet_one, greet_two], source) as env:
        got = [await env.engine.run(graph({"flow": "greet", "text": "x", "version": v})) for v in ("1", "2")]
        assert got == [{"got": "hi x"}, {"got": "hello x"}]
        wrong = await env.engine.run(graph({"flow": "greet", "text": "x", "version": "9"}))
        assert wrong["error"]["type"] == "UnknownWorkflow"
        assert (
            "no engine that is alive has version '9' of workflow 'greet', only: '1', '2'" in wrong["error"]["message"]
        )


async def test_a_name_that_is_fixed_with_a_version_that_is_not(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("versions")
    graph.node("call", child("greet", version_from="input"), input={"text": "'x'"}, output={"output.got": "nodes.call"})
    async with Environment([graph, greet_one, greet_two], source) as env:
        assert [await env.engine.run(graph(v)) for v in ("2", "1")] == [{"got": "hello x"}, {"got": "hi x"}]


async def test_a_chosen_child_may_be_a_graph(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("outer")
    graph.node("call", child(name_from="input.flow"), input={"input": {"text": "input.text"}})
    graph.output({"got": "nodes.call.text"})
    inner = doubling()
    async with Environment([graph, inner], source) as env:
        run = await env.engine.start(graph({"flow": "doubling", "text": "ab"}))
        assert await run.result() == {"got": "abab"}
        tree = await env.engine.handle(run.id).tree()
        assert [(below.run.workflow, below.run.model) for below in tree.children] == [("doubling", "graph")]


async def test_a_wrong_name_is_an_error_that_can_be_routed(source: StoreSource) -> None:
    graph = choosing()
    async with Environment([graph, shout], source) as env:
        got = await env.engine.run(graph({"flow": "whisper", "text": "x"}))
        assert got["error"]["type"] == "UnknownWorkflow"
        assert got["error"]["node"] == "call"
        why = "graph 'choosing', node 'call': no engine that is alive has a workflow 'whisper', only: choosing, shout"
        assert got["error"]["message"] == why


async def test_a_wrong_name_that_nobody_routes_fails_the_run_at_once(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("strict")
    graph.node("call", child(name_from="input"))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph("nobody"))
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, UnknownWorkflow)
        assert [(e.kind, e.name, e.attempts) for e in (await env.engine.handle(run.id).history()).journal] == [
            ("step", "workflow nobody", 1)
        ]


@pytest.mark.parametrize("given", [None, 7, "", ["shout"]])
async def test_what_is_no_name_at_all_is_said_with_its_place(source: StoreSource, given: Any) -> None:
    graph: Graph[Any, Any] = Graph("strict")
    graph.node("call", child(name_from="input"))
    async with Environment([graph, shout], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph(given))
        assert isinstance(failed.value.__cause__, ExpressionFailed)
        assert "graph 'strict', node 'call', name_from: 'input' is no name" in str(failed.value.__cause__)


@pytest.mark.parametrize("given", [{"txt": "'a'"}, {}, {"text": "7"}])
async def test_a_child_whose_arguments_do_not_fit_fails_its_node(source: StoreSource, given: dict[str, Any]) -> None:
    graph: Graph[Any, Any] = Graph("misfit")
    graph.node("call", child(name_from="input"), input=given)
    graph.node("sorry", assign({"output.error": "error.type", "output.message": "error.message"}))
    graph.edge("call", "sorry", on_error=True)
    async with Environment([graph, shout], source) as env:
        result = await env.engine.run(graph("shout"))
        assert result["error"] == "ChildFailed"
        assert "the input of workflow 'shout'" in result["message"]
        await env.check()


async def test_an_operation_is_no_child(source: StoreSource) -> None:
    orders = Topic("orders", dict)
    place = Operation("place", orders)

    @place.step
    async def one(scope: Scope, order: dict[str, Any]) -> None: ...

    graph: Graph[Any, Any] = Graph("strict")
    graph.node("call", child(name_from="input"))
    async with Environment([graph, place], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph("place"))
        assert isinstance(failed.value.__cause__, InvalidArguments)
        assert "'place' is an operation" in str(failed.value.__cause__)


async def test_a_run_keeps_to_the_version_that_it_found(source: StoreSource) -> None:
    """The second child is started after another version has come: it is of the same one, and asked for once."""
    graph: Graph[Any, Any] = Graph("steady")
    graph.node("begin", assign({}))
    graph.node("call", child(name_from="'greet'"), input={"text": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "call", foreach="['a', 'b', 'c']")
    graph.edge("call", "meet", join=all_of(), merge=collect("output.got"))
    async with Environment([graph, greet_two], source) as env:
        run = await env.engine.start(graph())
        assert await run.result() == {"got": ["hello a", "hello b", "hello c"]}
        names = [entry.name for entry in (await env.engine.handle(run.id).history()).journal if entry.kind == "step"]
        assert names == ["workflow greet"]


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("long")
    graph.node("call", child(name_from="input"), input={"text": "'x'"}, output={"output.got": "nodes.call"})
    names: list[str] = []

    async def scenario(env: Environment) -> Any:
        got = await (await env.engine.start(graph("greet"), id="r")).result()
        names[:] = [entry.name for entry in (await env.engine.handle("r").history()).journal]
        return got

    report = await run_with_crashes(scenario, workflows=[graph, greet_one], store=fresh)
    assert report.result == {"got": "hi x"}
    assert names == ["workflow greet", "greet"]


async def test_another_engine_may_be_the_one_that_has_it(make_store: Callable[[], Store]) -> None:
    graph = choosing()
    far = Engine(make_store(), workflows=[shout], poll_s=0.05)
    async with far, Engine(make_store(), workflows=[graph], poll_s=0.05) as engine:
        assert await engine.run(graph({"flow": "shout", "text": "far"})) == {"got": "FAR"}


def test_texts_pictures_and_fingerprints_have_it() -> None:
    graph = choosing(version_from="input.version")
    assert Graph.parse(graph.dump()).fingerprint == graph.fingerprint
    assert "name_from: input.flow" in graph.dump()
    assert graph.fingerprint != choosing().fingerprint
    assert "workflow input.flow" in graph.to_mermaid()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("", "node 'call', workflow: a child has either workflow, or name_from"),
        ("workflow: shout, name_from: input", "node 'call', workflow: a child has either workflow, or name_from"),
        ("name_from: inpt", "node 'call', name_from: 'inpt' uses the unknown name 'inpt'"),
        ("name_from: input, version: '1', version_from: input", "node 'call', version_from: it has a version too"),
        ("workflow: 'tests.x:y', version_from: input", "version_from: 'tests.x:y' is a workflow in code"),
    ],
)
def test_what_is_wrong_is_found_when_the_graph_is_built(fields: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse("graph: bad\nnodes:\n  call: {kind: workflow%s}\n" % (f", {fields}" if fields else ""))
    assert why in str(wrong.value)
