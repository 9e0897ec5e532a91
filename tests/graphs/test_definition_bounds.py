"""Definitions in YAML and JSON that are too large or too deep, or whose aliases would make them so."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import workflow
from perdure.errors import InvalidDefinition
from perdure.graph import Graph, assign

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LAUGHS, r"with its aliases written out it has more than 100,000 parts \(line 5\)"),
        ("graph: &g [*g]\n", r"an alias stands for something that it is in itself \(line 1\)"),
        ("a: &a {b: {c: *a}}\n", r"an alias stands for something that it is in itself"),
        ("graph: g\nnodes:\n  a: " + "[" * 5_000 + "]" * 5_000, r"it nests deeper than 100 \(line 3\)"),
        ("\n".join(" " * depth + "a:" for depth in range(500)), r"it nests deeper than 100 \(line 100\)"),
        ('{"graph": ' + "[" * 100_000, "it nests deeper than 100"),
        ('{"graph": ' + "[" * 500 + "]" * 500 + "}", "it nests deeper than 100"),
        ("x" * 1_000_001, "it has 1,000,001 characters, and a definition has at most 1,000,000"),
        ("graph: g\nnodes: {a: {kind: timer, seconds: " + "9" * 5_000 + "}}", "this is not YAML"),
        ("graph: 2001-99-99\n", "this is not YAML"),
        ('{"graph": ' + "9" * 5_000 + "}", "this is not JSON"),
        ("? [1]\n: 2\n", "found unhashable key"),
    ],
)
def test_a_text_that_is_too_much_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why) as refused:
        Graph.parse(text)
    assert str(refused.value).startswith("this graph: ")


@pytest.mark.parametrize("written", ["1:30", "-1:30", "1:30.5", "1:" * 100_000 + "1"])
def test_what_looks_like_a_number_in_base_60_is_a_text(written: str) -> None:
    """Such a number takes time that grows with the square of its digits, and nobody means one."""
    text = "graph: g\nnodes:\n  a: {kind: set, description: " + written + ", values: {state.x: '1'}}"
    assert Graph.parse(text).definition.nodes["a"].description == written


@pytest.mark.parametrize("tag", ["int", "float"])
def test_a_number_in_base_60_is_refused_also_if_it_says_that_it_is_one(tag: str) -> None:
    with pytest.raises(InvalidDefinition, match=r"this graph: '1:30' is no number \(line 2\)"):
        Graph.parse(f"graph: g\nversion: !!{tag} 1:30\n")


@pytest.mark.parametrize(("written", "value"), [("90", 90), ("-7", -7), ("1_000", 1000), ("0x10", 16), ("1.5", 1.5)])
def test_other_numbers_are_numbers(written: str, value: float) -> None:
    text = "graph: g\nnodes:\n  a: {kind: set, values: {state.x: " + written + "}}"
    assert Graph.parse(text).definition.nodes["a"].values == {"state.x": value}


def test_aliases_may_be_used() -> None:
    text = """
graph: g
nodes:
  a: {kind: set, values: &start {state.x: "1"}}
  b: {kind: set, values: *start}
edges: [{from: a, to: b}]
"""
    assert Graph.parse(text).definition.nodes["b"].values == {"state.x": "1"}


def test_a_large_definition_takes_no_time_with_the_square_of_its_size() -> None:
    """Ten thousand keys, each of which was once compared with all that came before it."""
    text = "graph: g\nnodes:\n  a:\n    kind: set\n    values:\n" + "".join(
        f"      state.x{n}: '1'\n" for n in range(10_000)
    )
    assert len(Graph.parse(text).definition.nodes["a"].values) == 10_000


@pytest.mark.parametrize("depth", [120, 100_000])
def test_what_nests_too_deeply_in_python_is_refused_too(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    graph: Graph[Any, Any] = Graph("deep")
    graph.node("a", assign({"state.x": deep}))
    with pytest.raises(InvalidDefinition, match="graph 'deep': it nests"):
        graph.build()


def test_what_has_itself_inside_is_refused() -> None:
    ring: list[Any] = []
    ring.append(ring)
    graph: Graph[Any, Any] = Graph("ring")
    graph.node("a", assign({"state.x": ring}))
    with pytest.raises(InvalidDefinition, match="something in it has itself inside"):
        graph.build()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"graph": "g", "description": "\\ud800", "nodes": {"a": {"kind": "set", "values": {"state.x": "1"}}}}',
         r"graph 'g', description: '\\ud800' has half a character"),
        ('{"graph": "g", "nodes": {"a": {"kind": "set", "values": {"state.x": {"\\udfff": "1"}}}}}',
         r"graph 'g', node 'a', values\.state\.x: '\\udfff' has half a character"),
        ("graph: g\nnodes:\n  a: {kind: set, values: {state.x: .nan}}",
         r"graph 'g', node 'a', values\.state\.x: JSON has no nan \(line 3\)"),
        ("graph: g\nnodes:\n  a: {kind: set, values: {state.x: [1, -.inf]}}",
         r"graph 'g', node 'a', values\.state\.x\[1\]: JSON has no -inf \(line 3\)"),
        ("graph: g\nnodes:\n  a: {kind: set, values: {state.x: 0x" + "f" * 5_000 + "}}",
         r"graph 'g', node 'a', values\.state\.x: the number has more than 4,000 digits \(line 3\)"),
    ],
)  # fmt: skip
def test_what_no_store_can_keep_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        Graph.parse(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("output: {on: 1}", r"^graph 'g', output: the key True is no text: quote it \(line 4\)$"),
        ("output: {1: 1}", r"^graph 'g', output: the key 1 is no text: quote it \(line 4\)$"),
        ("output: {a: {null: 1}}", r"^graph 'g', output\.a: the key None is no text"),
        ("input_schema: {properties: {no: {}}}", r"^graph 'g', input_schema\.properties: the key False is no text"),
    ],
)
def test_a_key_that_yaml_does_not_read_as_a_text_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidDefinition, match=why):
        Graph.parse(f"graph: g\nnodes:\n  a: {{kind: set, values: {{}}}}\n{text}\n")


@pytest.mark.parametrize("key", [True, 1, None])
def test_keys_in_python_are_texts_too(key: Any) -> None:
    graph: Graph[Any, Any] = Graph("g")
    graph.node("a", assign({"state.x": {key: 1}}))
    with pytest.raises(InvalidDefinition, match=f"^graph 'g', node 'a', values.state.x: the key {key} is no text"):
        graph.build()


@pytest.mark.parametrize("version", ["a\0", "\ud800", "v" * 501])
def test_a_version_is_a_text_that_every_store_can_keep(version: str) -> None:
    with pytest.raises(InvalidDefinition, match="the version of workflow 'g'"):
        Graph("g", version=version)

    async def work() -> None: ...

    with pytest.raises(InvalidDefinition, match="the version of workflow 'work'"):
        workflow(name="work", version=version)(work)
