"""How graphs are defined: the builder and texts say the same, and what is wrong is said with its place."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Engine, NamedEvent, Retry, step, workflow
from perdure.errors import DuplicateWorkflow, InvalidArguments, InvalidDefinition, NotInWorkflow
from perdure.graph import (
    END,
    Graph,
    GraphLimits,
    all_of,
    any_of,
    append,
    assign,
    child,
    collect,
    http,
    m_of,
    reduce_with,
    terminate,
    timer,
    wait,
)
from perdure.models.functions.define import decorated_workflows
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class Question(msgspec.Struct):
    topic: str


class Report(msgspec.Struct):
    text: str


@step
async def make_plan(topic: str) -> dict[str, list[str]]:
    return {"queries": [f"{topic} {number}" for number in range(3)]}


def find(query: str) -> str:
    return query.upper()


async def compose(notes: list[str]) -> Report:
    return Report(text=", ".join(notes))


def longest(notes: list[str]) -> str:
    return max(notes, key=len)


@workflow
async def helper(topic: str) -> str:
    return topic


def research() -> Graph[Question, Report]:
    graph = Graph("research", input=Question, output=Report, version="2", description="Finds things out.")
    plan = graph.node("plan", make_plan)
    search = graph.node("search", find, input={"query": "branch.item"})
    write = graph.node("write", compose, input={"notes": "state.notes"})
    graph.edge(plan, search, foreach="nodes.plan.queries")
    graph.edge(search, write, join=all_of(), merge=append("state.notes"))
    graph.output({"text": "nodes.write.text"})
    return graph


RESEARCH = f"""
graph: research
version: "2"
description: Finds things out.
input_schema: {__name__}:Question
output_schema: {__name__}:Report
nodes:
  plan: {{kind: function, function: "{__name__}:make_plan"}}
  search:
    kind: function
    function: {__name__}:find
    input: {{query: branch.item}}
  write:
    kind: function
    function: {__name__}:compose
    input: {{notes: state.notes}}
edges:
  - {{from: plan, to: search, foreach: nodes.plan.queries}}
  - from: search
    to: write
    join: {{}}
    merge: {{strategy: append, target: state.notes}}
output: {{text: nodes.write.text}}
"""


def everything() -> Graph[Any, Any]:
    """One of each."""
    graph: Graph[Any, Any] = Graph("everything", timeout=3600, limits=GraphLimits(branches=10), start="begin")
    graph.node("begin", assign({"state.n": "1 + 1", "state.list": [1, "input", None]}))
    graph.node("work", find, input={"query": "'x'"}, retry=Retry(attempts=2), timeout=10, on_error="branch_error")
    graph.node("nap", timer(5))
    graph.node("until", timer(until="'2030-01-01T00:00:00Z'"))
    graph.node("hear", wait("told", where={"to": "input"}), timeout=60, otherwise="end")
    graph.node("sub", child(helper, on_failure="catch"), input={"topic": "'t'"})
    graph.node("far", child("elsewhere", version="3"), input={"a": 1})
    graph.node("web", http("'http://localhost'", method="POST", headers={"x": "'y'"}, body={"a": "state.n"}))
    graph.node("stop", terminate("failed", "error.message"))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=3, when="state.n > 1", priority=1)
    graph.edge(
        "work",
        "nap",
        join=m_of(2, on_early="late_merge", timeout=60, on_timeout="proceed"),
        merge=[append("state.a"), collect("state.b", source="branch.output")],
    )
    graph.edge("work", "stop", on_error=True)
    for name in ("until", "hear", "sub"):
        graph.edge("nap", name)
    graph.edge(["until", "hear", "sub"], "meet", join=any_of("nap"), merge=reduce_with(longest, "state.c"))
    graph.edge("meet", "begin", limit=3, cancel=["work", "*"])
    graph.edge("meet", "far", priority=1)
    graph.edge("far", "web")
    graph.edge("web", END)
    return graph


def test_builder_and_yaml_give_the_same_graph() -> None:
    assert Graph.parse(RESEARCH, objects=[find, compose]).dump("json") == research().dump("json")


@pytest.mark.parametrize("make", [research, everything])
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_dumped_graph_is_read_back_the_same(make: Any, form: Any) -> None:
    graph: Graph[Any, Any] = make()
    again = Graph.parse(graph.dump(form), objects=[find, compose, longest])
    assert again.dump(form) == graph.dump(form)
    assert again.definition == Graph.parse(again.dump("json"), objects=[find, compose, longest]).definition
    assert again.fingerprint == graph.fingerprint
    assert (again.name, again.version) == (graph.name, graph.version)


async def test_a_graph_from_a_file_runs(tmp_path: Path, source: StoreSource) -> None:
    path = tmp_path / "research.yaml"
    path.write_text(RESEARCH)
    graph = Graph.load(path, objects=[find, compose])
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph(Question(topic="t")))
        assert await handle.result() == Report(text="T 0, T 1, T 2")
        view = await env.engine.runs.get(handle.id)
        assert view is not None
        assert view.workflow_version == "2"


def test_functions_can_be_handed_in_by_name() -> None:
    text = '{"graph": "g", "nodes": {"a": {"kind": "function", "function": "find", "input": {"query": "input"}}}}'
    assert Graph.parse(text, objects={"find": find}).name == "g"
    with pytest.raises(InvalidDefinition, match="graph 'g', node 'a', function: there is no 'find'"):
        Graph.parse(text)


def test_the_schema_knows_every_kind_and_field() -> None:
    schema = Graph.json_schema()
    text = json.dumps(schema)
    for word in (
        "function",
        "set",
        "terminate",
        "timer",
        "wait",
        "workflow",
        "http",
        "foreach",
        "on_early",
        "late_merge",
    ):
        assert f'"{word}"' in text
    assert schema["$ref"] == "#/$defs/Graph"


# ---------------------------------------------------------------------------------------------------------------------
# Schemas


SCHEMA = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "minLength": 1},
        "depth": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
        "who": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
    },
    "required": ["topic"],
    "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}},
}


async def test_an_input_is_checked_against_its_schema_and_keeps_what_it_has(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("checked", input=SCHEMA)
    graph.node("work", assign({"output.got": "input"}))
    given = {"topic": "t", "depth": 2, "tags": ["a"], "who": {"name": "ada"}, "more": 1}
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(given)) == {"got": given}
        bad: list[Any] = [
            {},
            {"topic": ""},
            {"topic": "t", "depth": 9},
            {"topic": "t", "tags": ["c"]},
            [],
            {"topic": 1},
        ]
        for refused in bad:
            with pytest.raises(InvalidArguments):
                await env.engine.start(graph(refused))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strange"}, "the type 'strange' is not known"),
        ({"type": "string", "contentEncoding": "base64"}, "'contentEncoding' is not supported here"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}}}, "there is no '#/$defs/B'"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused(schema: Any, why: str) -> None:
    graph: Graph[Any, Any] = Graph("refused", input=schema)
    graph.node("work", assign({}))
    with pytest.raises(InvalidDefinition) as refused:
        graph.build()
    assert "graph 'refused', input_schema" in str(refused.value)
    assert why in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# What is wrong


def wrong(*edges: tuple[Any, ...], **nodes: Any) -> list[str]:
    """The problems of a graph with these nodes and edges."""
    graph: Graph[Any, Any] = Graph("g")
    for name, given in nodes.items():
        options = dict(given) if isinstance(given, dict) else {}
        graph.node(name, options.pop("does", assign({})), **options)
    for source, target, *more in edges:
        graph.edge(source, target, **(more[0] if more else {}))
    with pytest.raises(InvalidDefinition) as refused:
        graph.build()
    return list(refused.value.problems)


def test_a_graph_without_nodes() -> None:
    assert wrong() == ["graph 'g': it has no nodes"]


def test_nodes_that_no_way_leads_to() -> None:
    assert wrong(("a", "b"), a=1, b=1, c=1, d=1) == [
        "graph 'g', node 'c': no way leads to it from 'a'",
        "graph 'g', node 'd': no way leads to it from 'a'",
    ]


def test_names_that_nobody_has() -> None:
    assert wrong(("a", "x"), ("y", "a"), ("a", "a", {"limit": 1, "cancel": "z"}), a=1) == [
        "graph 'g', edge a -> x, to: there is no node 'x'",
        "graph 'g', edge y -> a, from: there is no node 'y'",
        "graph 'g', edge a -> a, cancel: there is no node 'z'",
    ]


def test_two_nodes_of_one_name() -> None:
    graph: Graph[Any, Any] = Graph("g")
    graph.node("a", assign({}))
    with pytest.raises(InvalidDefinition, match="graph 'g', node 'a': there are two of this name"):
        graph.node("a", assign({}))


@pytest.mark.parametrize(
    "text",
    [
        "graph: g\nnodes:\n  a: {kind: set}\n  a: {kind: set}\n",
        '{"graph": "g", "nodes": {"a": {"kind": "set"}, "a": {"kind": "set"}}}',
    ],
)
def test_two_nodes_of_one_name_in_a_text(text: str) -> None:
    with pytest.raises(InvalidDefinition, match="'a' is there twice"):
        Graph.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("graph: g\nnodes: {a: {kind: strange}}", "Invalid value 'strange' - at `$.nodes[...].kind`"),
        ("graph: g\nnodes: {a: {kind: set, colour: red}}", "unknown field `colour` - at `$.nodes[...]`"),
        ("graph: g\nnodes: {a: {kind: timer, seconds: -1}}", "$.nodes[...].seconds"),
        ("graph: g\nnodes: {'not a name': {kind: set}}", "matching regex"),
        ("graph: g", "missing required field `nodes`"),
        ("graph: [", "this is not YAML"),
        ("{", "this is not JSON"),
        ("- a list", "Expected `object`, got `array`"),
    ],
)
def test_a_text_that_does_not_fit_the_schema(text: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        Graph.parse(text)
    assert why in str(refused.value)


def test_a_builder_is_held_to_the_same_schema() -> None:
    [problem] = wrong(("a", "b", {"join": all_of(), "merge": append("notes")}), a=1, b=1)
    assert problem.startswith("graph 'g', edge a -> b, merge.target: Expected `str` matching regex")
    assert "$.edges[0].merge" in problem


def test_loops_without_a_limit() -> None:
    [problem] = wrong(("a", "b"), ("b", "c", {"when": "true"}), ("c", "a"), a=1, b=1, c=1)
    assert problem.startswith("graph 'g', loop a -> b -> c -> a: no edge on it has a limit")


def test_joins_that_no_fork_reaches() -> None:
    assert wrong(("a", "b", {"join": all_of()}), a=1, b=1) == [
        "graph 'g', edge a -> b, join: no fork reaches it, so nothing comes apart that could meet here"
    ]
    [problem] = wrong(
        ("a", "b", {"spawn": 2}),
        ("b", "c", {"join": all_of("b")}),
        ("c", "d", {"join": all_of("a")}),
        a=1,
        b=1,
        c=1,
        d=1,
    )
    assert "edge b -> c, join: the fork at 'b' does not reach it" in problem


def test_joins_that_could_close_one_fork_or_another() -> None:
    edges: list[tuple[Any, Any, dict[str, Any]]] = [
        ("a", "b", {"spawn": 2}),
        ("b", "c", {"when": "branch.index == 0"}),
        ("b", "d", {"when": "branch.index == 1"}),
        (["c", "d"], "e", {"join": all_of()}),
    ]
    problems = wrong(*edges, a=1, b=1, c=1, d=1, e=1)
    assert "edge c -> e, join: it can close the fork at 'a' or 'b'; say which with fork='a'" in problems[0]
    graph: Graph[Any, Any] = Graph("g")
    for name in "abcde":
        graph.node(name, assign({}))
    for source, target, options in edges:
        if "join" in options:
            options["join"] = all_of("a")
        graph.edge(source, target, **options)
    graph.build()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"foreach": "input", "spawn": 2}, "foreach: it has spawn too"),
        ({"spawn": 2, "join": all_of()}, "join: branches cannot meet and come apart on the same edge"),
        ({"merge": append("state.x")}, "merge: there is no join at which to merge"),
        ({"join": all_of("z")}, "join.fork: there is no node 'z'"),
        ({"join": all_of(on_timeout="proceed")}, "join.on_timeout: it has no timeout"),
        (
            {"join": any_of(on_early="late_merge"), "merge": reduce_with(longest, "state.x")},
            "merge: a reducer has all outputs at once",
        ),
    ],
)
def test_edges_that_make_no_sense(options: dict[str, Any], why: str) -> None:
    problems = wrong(("a", "b", options), a=1, b=1)
    assert any(problem.startswith("graph 'g', edge a -> b, ") and why in problem for problem in problems), problems


def test_an_edge_that_is_there_twice() -> None:
    assert wrong(("a", "b"), ("a", "b"), a=1, b=1) == ["graph 'g', edge a -> b: it is there twice"]


def test_edges_into_one_join_must_agree() -> None:
    [problem] = wrong(
        ("a", "b"), ("a", "c"), ("b", "d", {"join": all_of()}), ("c", "d", {"join": any_of()}), a=1, b=1, c=1, d=1
    )
    assert problem.startswith("graph 'g', edge c -> d, join: other edges into 'd' close the fork at 'a' in another way")


def test_an_error_of_a_branch_that_no_join_takes() -> None:
    [problem] = wrong(a={"on_error": "branch_error"})
    assert problem == "graph 'g', node 'a', on_error: it is in no branch whose join would take its error"


def test_every_bad_expression_is_named_with_its_place() -> None:
    problems = wrong(
        ("a", "b", {"when": "1 +"}),
        ("a", "c", {"foreach": "foo.bar"}),
        ("c", "d", {"join": all_of(), "merge": append("state.x", source="frob()")}),
        a={"does": find, "input": {"query": "nodes.zzz"}, "output": {"state.y": "nope"}},
        b={"does": timer("bar")},
        c=1,
        d=1,
    )
    assert [problem.partition(": ")[0] for problem in problems] == [
        "graph 'g', edge a -> b, when",
        "graph 'g', edge a -> c, foreach",
        "graph 'g', edge c -> d, merge, source",
        "graph 'g', node 'a', output.state.y",
        "graph 'g', node 'b', seconds",
        "graph 'g', node 'a', input.query",
    ]
    assert "uses the result of a node 'zzz', and there is none" in problems[-1]


def test_parameters_that_get_no_value() -> None:
    graph = Graph("g", input=Question)
    graph.node("a", find)
    with pytest.raises(InvalidDefinition, match="nothing is mapped to 'query', and the graph's input has topic"):
        graph.build()
    assert wrong(a={"does": find, "input": {"qeury": "input"}}) == [
        "graph 'g', node 'a', input: the function has no parameter 'qeury'; it has query"
    ]


def test_what_is_no_function_cannot_be_a_node() -> None:
    graph: Graph[Any, Any] = Graph("g")
    with pytest.raises(InvalidDefinition, match="a node runs a step, a function, a workflow or a kind, not 7"):
        graph.node("a", 7)


def test_a_policy_with_functions_belongs_to_the_step() -> None:
    graph: Graph[Any, Any] = Graph("g")
    with pytest.raises(InvalidDefinition, match="give the step the policy"):
        graph.node("a", find, retry=Retry(recoverable=lambda _: True))


# ---------------------------------------------------------------------------------------------------------------------
# Being a workflow


def test_a_graph_in_use_can_no_longer_be_changed() -> None:
    graph = research()
    graph(Question(topic="t")).close()
    with pytest.raises(InvalidDefinition, match="is in use, and can no longer be changed"):
        graph.node("more", assign({}))


async def test_an_engine_takes_graphs_as_it_takes_workflows() -> None:
    graph = research()
    async with Engine("memory://", workflows=[graph]) as engine:
        assert await engine.run(graph(Question(topic="t"))) == Report(text="T 0, T 1, T 2")
        named = await engine.start("research", input={"input": {"topic": "u"}})
        assert await named.result() == Report(text="U 0, U 1, U 2")


async def test_an_engine_refuses_a_graph_that_is_wrong() -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("a", assign({"state.x": "foo"}))
    with pytest.raises(InvalidDefinition, match="unknown name 'foo'"):
        await Engine("memory://", workflows=[graph]).open()


async def test_versions_run_side_by_side_and_a_run_keeps_to_its_own(source: StoreSource) -> None:
    def version(number: int) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("versioned", version=str(number))
        graph.node("wait", wait("go"))
        graph.node("end", assign({"output.version": number}))
        graph.edge("wait", "end")
        return graph

    old, new = version(1), version(2)
    async with Environment([old], source) as env:
        await env.engine.start(old(), id="old")
    async with Environment([old, new], source) as env:
        await env.engine.start(new(), id="new")
        for name in ("old", "new"):
            await env.engine.send(NamedEvent("go"), to=name)
        assert await env.engine.handle("old").result() == {"version": 1}
        assert await env.engine.handle("new").result() == {"version": 2}


async def test_two_graphs_of_one_name_are_too_many() -> None:
    one, two = research(), research()
    with pytest.raises(DuplicateWorkflow, match=r"test_definitions\.py"):
        await Engine("memory://", workflows=[one, two]).open()


async def test_a_graph_is_run_by_an_engine_only() -> None:
    with pytest.raises(NotInWorkflow, match="graph 'research' is run by an engine"):
        await research()(Question(topic="t"))


def test_a_graph_that_nobody_has_is_gone() -> None:
    gc.collect()
    graph = research()
    assert graph in decorated_workflows()
    gone = weakref.ref(graph)
    gc.disable()
    try:
        del graph
        assert gone() is None
    finally:
        gc.enable()
