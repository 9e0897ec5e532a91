"""What the names in a definition stand for, and what they cannot be made to do."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import step, workflow
from perdure.errors import InvalidDefinition, RunFailed
from perdure.graph import Graph, action, all_of, assign, reduce_with
from perdure.models.graphs.kinds.mcp import _call as mcp_step
from perdure.models.graphs.stored_definitions import StoredDefinition
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class Order(msgspec.Struct):
    sku: str


class Closed(Exception):
    pass


@step
async def pack(sku: str) -> str:
    return f"packed {sku}"


@workflow
async def send(sku: str) -> str:
    return f"sent {sku}"


def plain(sku: str) -> str:
    return f"plain {sku}"


def longest(values: list[str]) -> str:
    return max(values, key=len)


named_graph: Graph[Any, Any] = Graph("graph-named-in-a-definition")
named_graph.node("only", assign({"output.is_done": "true"}))

HERE = __name__


def text_of(**node: Any) -> str:
    return msgspec.json.encode({"graph": "g", "nodes": {"a": {"kind": "function", **node}}}).decode()


async def test_a_definition_names_steps_workflows_types_and_exceptions_that_are_imported(source: StoreSource) -> None:
    text = f"""
graph: g
input_schema: {HERE}:Order
nodes:
  pack: {{kind: function, function: "{HERE}:pack", retry: {{give_up_on: ["{HERE}:Closed"]}}}}
  send: {{kind: workflow, workflow: "{HERE}:send"}}
edges: [{{from: pack, to: send}}]
output: {{packed: nodes.pack, sent: nodes.send}}
"""
    graph = Graph.parse(text)
    async with Environment([graph, send], source) as env:
        assert await env.engine.run(graph(Order(sku="s"))) == {"packed": "packed s", "sent": "sent s"}


@pytest.mark.parametrize(
    "reference",
    [
        f"{HERE}:plain",
        "os:system",
        "subprocess:run",
        "builtins:exec",
        "builtins:eval",
        "sys:exit",
        f"{HERE}:Order.__init__",
    ],
)
def test_a_definition_calls_no_function_that_nobody_registered(reference: str) -> None:
    with pytest.raises(InvalidDefinition, match=r"node 'a', function: .* or hand it in"):
        Graph.parse(text_of(function=reference, input={"sku": "input"}))
    merging = f"""
graph: g
nodes: {{a: {{kind: set}}, b: {{kind: set}}, c: {{kind: set}}}}
edges:
  - {{from: a, to: b, spawn: 2}}
  - {{from: b, to: c, join: {{}}, merge: {{strategy: reduce, target: state.x, reducer: "{reference}"}}}}
"""
    with pytest.raises(InvalidDefinition, match=r"merge\.reducer: .* or hand it in"):
        Graph.parse(merging)


def started(*parts: str) -> dict[str, Any]:
    """The arguments with which the step of mcp nodes starts a program."""
    quoted = [f"'{part}'" for part in parts]
    nothing: dict[str, Any] = {"arguments": {}, "url": None, "bearer": None, "secret_env": {}}
    return {"tool": "'x'", "command": quoted, "timeout_s": "3.0", **nothing}


OWN_STEPS = [
    "perdure.models.graphs.kinds.mcp:_call",
    "perdure.models.graphs.kinds.http:_request",
    "perdure.models.graphs.stored_definitions:_anything",
    f"{HERE}:borrowed",
]
borrowed = mcp_step


@pytest.mark.parametrize("reference", OWN_STEPS)
def test_a_definition_names_no_step_of_perdures_own(reference: str) -> None:
    with pytest.raises(InvalidDefinition, match=r"node 'a', function: .* Perdure's own, .* or hand it in"):
        Graph.parse(text_of(function=reference, input=started("true")))


def test_a_step_of_perdures_own_can_be_handed_in() -> None:
    graph = Graph.parse(text_of(function="call", input=started("true")), objects={"call": mcp_step})
    assert graph.name == "g"


@pytest.mark.parametrize("reference", OWN_STEPS)
async def test_a_record_starts_no_program_through_a_step_of_perdures_own(
    reference: str, source: StoreSource, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    graph: Graph[Any, Any] = Graph("acting-on-records")
    graph.node("go", action("reaching"))
    body = {"kind": "function", "function": reference, "input": started("sh", "-c", f"touch {mark}")}
    async with Environment([graph], source) as env:
        await env.engine.records.put("action", "reaching", {**body, "retry": {"attempts": 1}})
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
    assert not mark.exists()
    assert isinstance(failed.value.__cause__, InvalidDefinition)
    assert "Perdure's own" in str(failed.value.__cause__)


async def test_a_graph_in_a_module_is_named_like_any_other_workflow(source: StoreSource) -> None:
    outer = Graph.parse(
        f'{{"graph": "outer", "nodes": {{"a": {{"kind": "workflow", "workflow": "{HERE}:named_graph"}}}}}}'
    )
    async with Environment([outer, named_graph], source) as env:
        await env.engine.run(outer())


def test_nothing_is_imported_for_a_definition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "booby_trap.py").write_text("from perdure import step\n@step\nasync def go() -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    wanted = (
        r"nothing is imported for a definition: import booby_trap first \(on the command line: --module booby_trap\)"
    )
    for text in (
        text_of(function="booby_trap:go"),
        text_of(function="booby_trap:go", retry={"retry_on": ["booby_trap:Error"]}),
        '{"graph": "g", "input_schema": "booby_trap:Input", "nodes": {"a": {"kind": "set"}}}',
        '{"graph": "g", "nodes": {"a": {"kind": "workflow", "workflow": "booby_trap:flow"}}}',
        '{"graph": "g", "nodes": {"a": {"kind": "human", "schema": "booby_trap:Form"}}}',
    ):
        with pytest.raises(InvalidDefinition, match=wanted):
            Graph.parse(text)
    assert "booby_trap" not in sys.modules


def test_looking_a_name_up_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy_module")
    asked: list[str] = []
    monkeypatch.setattr(lazy, "__getattr__", asked.append, raising=False)
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    with pytest.raises(InvalidDefinition, match="there is no 'lazy_module:go'"):
        Graph.parse(text_of(function="lazy_module:go"))
    assert asked == []


@pytest.mark.parametrize("name", ["plain", f"{HERE}:plain"])
def test_functions_are_handed_in_as_a_list(name: str) -> None:
    graph = Graph.parse(text_of(function=name, input={"sku": "input"}), objects=[plain, longest, Order, Closed, pack])
    assert graph.fingerprint == built_with(plain).fingerprint


def built_with(function: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("g")
    graph.node("a", function, input={"sku": "input"})
    return graph


def test_objects_that_cannot_be_told_apart_are_refused() -> None:
    def other() -> None: ...

    other.__qualname__ = "plain"
    with pytest.raises(InvalidDefinition, match="two of the objects are called 'plain'; hand them in as a dict"):
        Graph.parse(text_of(function="plain"), objects=[plain, other])
    with pytest.raises(InvalidDefinition, match="has no name; hand it in as a dict"):
        Graph.parse(text_of(function="plain"), objects=[3])


def test_a_definition_that_is_read_back_calls_only_reducers_of_graphs_that_were_built_here() -> None:
    def graph_of(reducer: Any) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("merging")
        for name in "abc":
            graph.node(name, assign({}))
        graph.edge("a", "b", spawn=2)
        graph.edge("b", "c", join=all_of(), merge=reduce_with(reducer, "state.x"))
        return graph

    kept = graph_of(longest).kept()
    assert reducer_of(Graph.read_back(kept)) is longest
    text = msgspec.json.encode(kept.definition).decode().replace(f"{HERE}:longest", "subprocess:run")
    read = Graph.read_back(StoredDefinition(definition=msgspec.json.decode(text)))
    assert reducer_of(read)(["touch", "owned"]) == ["touch", "owned"]


def reducer_of(graph: Graph[Any, Any]) -> Any:
    (joins,) = graph._draft.built().joins.values()
    return joins[0].merges[0].reducer
