"""Expressions: what parses, what they may name, and how they say that they failed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from perdure.errors import ExpressionFailed, InvalidDefinition
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.mappings import ValueMap


class Given:
    """A context of plain values, which knows what was looked up in it."""

    def __init__(self, **roots: Any) -> None:
        self._roots = roots
        self.asked: list[str] = []

    def root(self, name: str) -> Any:
        self.asked.append(name)
        return self._roots.get(name, {})


CONTEXT = Given(
    input={"topic": "tides", "n": 3},
    state={"x": 2, "l": [1, 2], "o": {"deep": {"er": "yes"}}, "none": None, "big": 2**80},
    nodes={"a": {"b": [{"z": True}, {"z": False}]}},
)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("state.x", 2),
        (" state . x ", 2),
        ("state.o.deep.er", "yes"),
        ("state.none", None),
        ("state.big", 2**80),
        ("state.x + 1 == 3 && has(nodes.a.b)", True),
        ("has(state.nope)", False),
        ("state['x']", 2),
        ("'x' in state", True),
        ("nodes.a.b.filter(q, q.z).size()", 1),
        ("nodes.a.b.map(q, q.z)", [True, False]),
        ("state.l.all(i, i > 0) && state.l.exists(i, i == 2)", True),
        ("input.topic.startsWith('ti') ? 'yes' : 'no'", "yes"),
        ("'state.x' + string(state.x) // state.nope", "state.x2"),
        ('"""state.nope""" + r"\\d"', "state.nope\\d"),
        ("{'a': state.x, 'b': [1, 2.5, null]}", {"a": 2, "b": [1, 2.5, None]}),
        ("state.o.deep", {"er": "yes"}),
        ("state.o.deep.er.size()", 3),
        ("-state.x", -2),
        ("true", True),
        ("math.greatest(state.l) + state.l.size()", 4),
        ("input.topic.upperAscii()", "TIDES"),
        ("timestamp('2030-01-01T00:00:00Z') > timestamp('2020-01-01T00:00:00Z')", True),
        ("duration('90s')", 90.0),
        ("branch", {}),
    ],
)
def test_what_expressions_are(source: str, value: Any) -> None:
    assert Expression(source, "here").evaluate(CONTEXT) == value


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("state.nope", "there is no 'nope' in state"),
        ("state.x.y", "there is no 'y' in state.x"),
        ("state.nope + 1", "there is no 'nope'"),
        ("state.x + 'a'", "No such overload"),
        ("1 / 0", "division by zero"),
        ("b'bytes'", "has no JSON form"),
    ],
)
def test_a_failure_quotes_the_expression_and_says_where_it_stands(source: str, why: str) -> None:
    with pytest.raises(ExpressionFailed) as failed:
        Expression(source, "graph 'g', node 'n', input.x").evaluate(CONTEXT)
    assert str(failed.value).startswith(f"graph 'g', node 'n', input.x: {source!r} failed: ")
    assert why in str(failed.value)
    assert (failed.value.expression, failed.value.place) == (source, "graph 'g', node 'n', input.x")


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 +", "does not parse"),
        ("state[", "does not parse"),
        ("", "does not parse"),
        ("foo", "unknown name 'foo'; there are input, state, output, nodes, branch, error"),
        ("foo.bar + 1", "unknown name 'foo'"),
        ("state.l.map(q, z)", "unknown name 'z'"),
        ("now()", "unknown function 'now'"),
        ("state.x.frobnicate()", "unknown function 'frobnicate'"),
    ],
)
def test_what_is_wrong_is_said_when_the_graph_is_built(source: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        Expression(source, "graph 'g', edge a -> b, when")
    assert str(refused.value).startswith("graph 'g', edge a -> b, when: ")
    assert why in str(refused.value)


def test_only_what_an_expression_names_is_converted() -> None:
    class Huge(dict[str, Any]):
        """Would take long to convert: whoever goes through it all is caught."""

        def items(self) -> Any:
            raise AssertionError("all of it was asked for")

        __iter__ = keys = values = items

    given = Given(state=Huge(x=1), nodes=Huge(a={"b": 2}), input=Huge())
    assert Expression("state.x + nodes.a.b == 3", "here").evaluate(given) is True
    assert given.asked == ["state", "nodes"]


def test_a_mapping_has_expressions_and_plain_values_at_any_depth() -> None:
    mapping = ValueMap({"a": "state.x", "b": [1, "input.topic", {"c": "state.l"}], "d": None, "e": True}, "here")
    assert mapping.evaluate(CONTEXT) == {"a": 2, "b": [1, "tides", {"c": [1, 2]}], "d": None, "e": True}


def test_the_place_of_an_expression_in_a_mapping_is_its_path() -> None:
    with pytest.raises(InvalidDefinition, match=r"node 'n', input\.a\[1\]\.b: 'foo' uses the unknown name"):
        ValueMap({"a": [1, {"b": "foo"}]}, "node 'n', input")


def test_expressions_need_no_library() -> None:
    script = (
        "import sys\n"
        "from perdure.graph import Graph, all_of, append, assign\n"
        "graph = Graph('plain')\n"
        "graph.node('a', assign({'state.x': 'input'}))\n"
        "graph.node('b', assign({'state.y': 'branch.item'}))\n"
        "graph.node('c', assign({}))\n"
        "graph.edge('a', 'b', foreach='state.x.filter(i, i.matches(\"a+\")) + [1]')\n"
        "graph.edge('b', 'c', join=all_of(), merge=append('state.got'))\n"
        "graph.build()\n"
        "assert not {'cel', 'yaml', 'httpx', 'minijinja'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=60)
