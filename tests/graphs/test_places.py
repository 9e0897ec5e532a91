"""Whatever is wrong with a definition, the error says where: graph, node or edge, field, and line."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from perdure.errors import InvalidArguments, InvalidDefinition
from perdure.graph import Graph, GraphLimits, all_of, assign
from perdure.models.graphs.kinds import KINDS

BEFORE = """graph: shop
nodes:
  a: {kind: set}
  b: {kind: set}
"""


def problems(text: str, **options: Any) -> list[str]:
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse(text, **options)
    found = list(wrong.value.problems)
    for problem in found:
        assert problem in str(wrong.value)
    return found


WRONG_NODES = [
    ("{kind: strange}", ", kind: Invalid value 'strange'"),
    ("{values: {}}", ": Object missing required field `kind`"),
    ("{kind: set, colour: red}", ", colour: Object contains unknown field `colour`"),
    ("{kind: set, values: {state.x: 1, x.y: 2}}", ", values.x.y: Expected `str` matching"),
    ("{kind: set, output: {state.x: '1', other: '2'}}", ", output.other: Expected `str` matching"),
    ("{kind: set, on_error: what}", ", on_error: Invalid enum value 'what'"),
    ("{kind: function}", ": Object missing required field `function`"),
    ("{kind: function, function: 'x:y', retry: {attempts: 0}}", ", retry.attempts: Expected `int` >= 1"),
    ("{kind: workflow, workflow: 1}", ", workflow: Expected"),
    ("{kind: timer, seconds: -1}", ", seconds: Expected `float` > 0.0"),
    ("{kind: wait, event: 5}", ", event: Expected `str`, got `int`"),
    ("{kind: http, url: \"'x'\", method: LOOK}", ", method: Invalid enum value 'LOOK'"),
    ("{kind: llm, prompt: 5}", ", prompt: Expected"),
    ("{kind: human, queue: 5}", ", queue: Expected `str`, got `int`"),
    ("{kind: remote, queue: q, timeout: 0}", ", timeout: Expected `float` > 0.0"),
    ("{kind: artifact, name: 5}", ", name: Expected `str`, got `int`"),
    ("{kind: action, action: 5}", ", action: Expected"),
    ("{kind: terminate, status: maybe}", ", status: Invalid enum value 'maybe'"),
    ("[]", ": Expected `object`, got `array`"),
]


@pytest.mark.parametrize(("node", "expected"), WRONG_NODES)
def test_a_node_that_does_not_fit_is_named(node: str, expected: str) -> None:
    [problem] = problems(BEFORE + f"  wrong: {node}\nedges: []\n")
    assert problem.startswith(f"graph 'shop', node 'wrong'{expected}")
    assert problem.endswith("(line 5)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  wrong: {kind: strange}\n", "; kinds are action, artifact, "),
        ("  wrong: {kind: set, set: {}}\n", "; a node of this kind has values, description, input, "),
        ("  wrong: {kind: timer, sec: 5}\n", "; a node of this kind has seconds, until, description, "),
        ("edges:\n  - {from: a, to: b, if: x}\n", "; an edge has from, to, when, "),
    ],
)
def test_a_wrong_name_is_said_with_those_that_there_are(text: str, expected: str) -> None:
    [problem] = problems(BEFORE + text)
    assert expected in problem


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_node_says_where_it_does_not_fit(kind: str) -> None:
    [problem] = problems(BEFORE + f"  wrong:\n    kind: {kind}\n    timeout: never\n    description: x\n")
    assert problem.startswith("graph 'shop', node 'wrong'")
    assert problem.endswith(("(line 7)", "(line 5)"))  # A field that is missing is said of the whole node.


WRONG_EDGES = [
    ("{from: a, to: b, limit: 0}", "edge a -> b, limit: Expected `int` >= 1"),
    ("{from: a, to: b, limit: often}", "edge a -> b, limit: Invalid enum value 'often'"),
    ("{from: [a], to: b, spawn: 0}", "edge a -> b, spawn: Expected `int` >= 1"),
    ("{from: a, to: b, priority: high}", "edge a -> b, priority: Expected `int`, got `str`"),
    ("{from: a, to: b, cancel: x}", "edge a -> b, cancel: Expected `array`, got `str`"),
    ("{from: a, to: b, foreach: 5}", "edge a -> b, foreach: Expected"),
    ("{from: a, to: b, join: {need: most}}", "edge a -> b, join.need: Invalid enum value 'most'"),
    ("{from: a, to: b, join: {forks: a}}", "edge a -> b, join.forks: Object contains unknown field `forks`"),
    ("{from: a, to: b, merge: {strategy: zip, target: state.x}}", "edge a -> b, merge.strategy: Invalid enum value"),
    ("{from: a, to: b, merge: [{strategy: append, target: x}]}", "edge a -> b, merge[0].target: Expected `str`"),
    ("{from: a, to: b, colour: red}", "edge a -> b, colour: Object contains unknown field `colour`"),
    ("{from: a}", "edges[1]: Object missing required field `to`"),
    ("{from: 5, to: b}", "edges[1], from: Expected `str | array`, got `int`"),
    ("5", "edges[1]: Expected `object`, got `int`"),
]


@pytest.mark.parametrize(("edge", "expected"), WRONG_EDGES)
def test_an_edge_that_does_not_fit_is_named(edge: str, expected: str) -> None:
    [problem] = problems(BEFORE + f"edges:\n  - {{from: b, to: END}}\n  - {edge}\n")
    assert problem.startswith(f"graph 'shop', {expected}")
    assert problem.endswith("(line 7)")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("limits: {tokens: 0}", "limits.tokens: Expected `int` >= 1"),
        ("exclusive: [{nodes: []}]", "exclusive[0].nodes: Expected `array` of length >= 1"),
        ("timeout: 0", "timeout: Expected `float` > 0.0"),
        ("start: 5", "start: Expected"),
        ("version: 5", "version: Expected `str`, got `int`"),
        ("input_schema: 5", "input_schema: Expected"),
        ("input_schema: {type: what}", "input_schema: the type 'what' is not known"),
        ("colour: red", "colour: Object contains unknown field `colour`"),
        ("edges: {}", "edges: Expected `array`, got `object`"),
        ("start: nowhere", "start: there is no node 'nowhere'"),
        ("output: {x: '1 +'}", "output.x: '1 +' does not parse"),
    ],
)
def test_the_rest_of_a_graph_says_where_it_does_not_fit(field: str, expected: str) -> None:
    edges = "" if field.startswith("edges") else "edges: [{from: a, to: b}]\n"
    found = problems(BEFORE + field + "\n" + edges)
    problem = next(one for one in found if one.startswith(f"graph 'shop', {expected}"))
    assert problem.endswith("(line 5)")


def test_all_that_does_not_fit_is_said_at_once() -> None:
    found = problems(BEFORE + "  c: {kind: odd}\n  d: {kind: set, on_error: odd}\nedges:\n  - {from: a}\nstart: 5\n")
    assert [problem.partition(":")[0] for problem in found] == [
        "graph 'shop', start",
        "graph 'shop', node 'c', kind",
        "graph 'shop', node 'd', on_error",
        "graph 'shop', edges[0]",
    ]
    assert [problem.rpartition("(")[2] for problem in found] == ["line 9)", "line 5)", "line 6)", "line 8)"]


def test_what_is_found_later_has_its_line_too() -> None:
    text = (
        BEFORE
        + """  c:
    kind: set
    values:
      state.x: nothing.there
edges:
  - {from: a, to: b}
  - from: b
    to: c
    when: "1 +"
  - {from: c, to: b, join: {need: all}}
"""
    )
    found = problems(text)
    assert any(problem.startswith("graph 'shop', loop b -> c -> b") for problem in found)
    found = problems(text.replace('"1 +"', '"1 +"\n    limit: 2'))
    lines = {problem.partition(": ")[0]: problem.rpartition("(")[2] for problem in found}
    assert lines == {
        "graph 'shop', edge b -> c, when": "line 13)",
        "graph 'shop', node 'c', values.state.x": "line 8)",
        "graph 'shop', edge c -> b, join": "line 15)",
    }


def test_a_graph_that_is_built_in_python_says_the_same_without_lines() -> None:
    graph: Graph[Any, Any] = Graph("shop")
    graph.node("a", assign({"state.x": "1", "wrong": "2"}))
    graph.edge("a", "END", join=all_of(timeout=0))
    with pytest.raises(InvalidDefinition) as wrong:
        graph.build()
    assert [problem.partition(": ")[0] for problem in wrong.value.problems] == [
        "graph 'shop', node 'a', values.wrong",
        "graph 'shop', edge a -> END, join.timeout",
    ]
    with pytest.raises(InvalidArguments, match="tokens is more than 0"):
        GraphLimits(tokens=0)


# Dates.


@pytest.mark.parametrize("value", ["2026-11-17", "2026-11-17T08:00:00Z", "2026-11-17 08:00:00"])
@pytest.mark.parametrize(
    ("text", "place"),
    [
        (BEFORE + "  c: {kind: set, values: {state.due: DATE}}\n", "graph 'shop', node 'c', values.state.due"),
        (BEFORE + "output: {due: DATE}\n", "graph 'shop', output.due"),
        (BEFORE + "edges: [{from: a, to: b, when: DATE}]\n", "graph 'shop', edge a -> b, when"),
        (BEFORE + "version: DATE\n", "graph 'shop', version"),
    ],
)
def test_a_date_that_is_not_quoted_is_refused(text: str, place: str, value: str) -> None:
    [problem] = problems(text.replace("DATE", value))
    assert problem.startswith(f"{place}: {value} is a date in YAML, and no text: quote it")
    assert problem.endswith("(line 5)")


@pytest.mark.parametrize("expression", ["2026-11-17", "input.due < 2026-11-17", "[2026-01-05]"])
def test_a_date_in_an_expression_is_no_arithmetic(expression: str) -> None:
    graph: Graph[Any, Any] = Graph("due")
    graph.node("a", assign({"state.late": expression}))
    with pytest.raises(InvalidDefinition, match=r"graph 'due', node 'a', values.state.late: 20.* is arithmetic.*quote"):
        graph.build()


def test_a_date_object_in_a_mapping_is_no_arithmetic() -> None:
    graph: Graph[Any, Any] = Graph("due")
    graph.node("a", assign({"state.due": date(2026, 11, 17)}))
    with pytest.raises(InvalidDefinition, match=r"graph 'due', node 'a', values.state.due: 2026-11-17 .*quote it"):
        graph.build()


@pytest.mark.parametrize(
    "expression",
    ["'2026-11-17'", '"due 2026-11-17"', "timestamp('2026-11-17T00:00:00Z')", "2026 - 11 - 17", "x2026-11-17"],
)
def test_texts_timestamps_and_real_arithmetic_are_fine(expression: str) -> None:
    graph: Graph[Any, Any] = Graph("due")
    graph.node("a", assign({"state.due": expression.replace("x", "input.x")}))
    graph.build()
