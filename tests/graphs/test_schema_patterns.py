"""Patterns in the JSON Schemas of definitions: what they take, and that no text makes them go back."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Engine
from perdure.errors import InvalidDefinition, UnstorableValue
from perdure.graph import Graph
from perdure.models.functions.values import Reader
from perdure.models.graphs.schemas import type_of

TEXT = """
graph: schema_patterns.asks
input_schema: {type: object, properties: {a: {type: string, pattern: "^(a+)+$", maxLength: 100}}}
nodes:
  a: {kind: set, values: {output.a: input.a}}
"""


async def test_an_input_that_makes_a_pattern_go_back_is_refused_at_once() -> None:
    """Python's `re` would take longer than anybody lives."""
    graph = Graph.parse(TEXT)
    async with Engine("memory://", workflows=[graph]) as engine:
        assert await engine.run(graph({"a": "aaa"})) == {"a": "aaa"}
        with pytest.raises(Exception, match=r"matching regex '\^\(a\+\)\+\$'"):
            await engine.run(graph({"a": "a" * 60 + "!"}))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "pattern": "b$"}, '"ab"', ['"a"', "1", '"b\\n"']),
        ({"type": "string", "pattern": "a", "minLength": 2, "maxLength": 3}, '"aa"', ['"a"', '"aaaa"', '"bb"']),
        ({"type": "array", "items": {"type": "string", "pattern": "a"}}, '["a"]', ['["b"]', '["a", 1]']),
        ({"anyOf": [{"type": "string", "pattern": "a"}, {"type": "null"}]}, "null", ['"b"', "1"]),
    ],
)
def test_what_a_pattern_takes(schema: dict[str, Any], good: str, bad: list[str]) -> None:
    reader = Reader(type_of(schema, "here"), "here")
    reader.read(good, "it")
    for text in bad:
        with pytest.raises(UnstorableValue):
            reader.read(text, "it")


@pytest.mark.parametrize("pattern", ["(?=a)b", "(", 1])
def test_a_pattern_that_is_none_is_refused(pattern: Any) -> None:
    with pytest.raises(InvalidDefinition, match="is no pattern in RE2's syntax"):
        type_of({"type": "string", "pattern": pattern}, "here")
