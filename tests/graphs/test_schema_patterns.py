"""Patterns in the JSON Schemas of definitions: what they take, and that no text makes them go back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine
from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.graph import Graph
from perdure.models.graphs.schemas import type_of
from perdure.values import patterns
from perdure.values.json import Reader
from perdure.values.pattern_syntax import Chars, parse
from perdure.values.patterns import STATES_MAX, Pattern, PatternFailed, Search, Searches, automaton, is_among
from perdure.values.schemas import schema_of

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


class Counted(Pattern):
    """Counts the parts that it has compiled."""

    __slots__ = ("count",)

    def _emit(self, part: Any, after: int) -> int:
        self.count = getattr(self, "count", 0) + 1
        assert self.count <= 10 * STATES_MAX, "a pattern is compiled for longer than its states are many"
        return super()._emit(part, after)


@pytest.mark.parametrize(
    "source",
    [
        "(((){1000}){1000}){1000}",
        "((((|a{0}){1000}){1000}){1000}){1000}",
        "(" + "()" * 480 + "a){900}",
        "(" + "a{0}" * 200 + "b){900}",
        "(" + "(?i)" * 200 + "b){900}",
        "(a" + "{1}" * 320 + "){900}",
        "((b|()){1000}){1000}",
    ],
    ids=lambda source: source[:30],
)
def test_what_stands_for_nothing_is_not_compiled_again_and_again(source: str) -> None:
    """Parts without a state of their own were free, and a thousand times a thousand times a thousand of them hung."""
    try:
        Counted(source)
    except PatternFailed as error:
        assert "too large" in str(error)  # noqa: PT017 - it may also be compiled


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [("(){3}a{1}b{0}(c{1}|()){2}$", "acc", "b"), ("^(|a)(){9}b$", "ab", "c"), ("^()$", "", "a")],
)
def test_parts_that_stand_for_nothing_match_nothing(source: str, good: str, bad: str) -> None:
    for text, is_match in ((good, True), (bad, False)):
        assert Search(Pattern(source)).is_in(text, Searches(1_000)) is is_match


def test_categories_are_looked_up_at_once_however_many_there_are() -> None:
    many = parse("[" + "\\pL\\p{Lu}\\PN" * 60 + "]")
    assert isinstance(many, Chars)
    assert len(many.categories) <= 30
    for char, is_in in (("a", True), ("-", True), ("7", False), ("Ⅷ", False)):
        assert is_among(char, many) is is_in


def test_the_texts_of_one_value_share_a_budget() -> None:
    """A pattern that needs many states for each text would have a budget for each, and a list of texts all of them."""
    reader = Reader(type_of({"type": "array", "items": {"type": "string", "pattern": "a{900}b"}}, "it"), "it")
    texts = [f"{'a' * number}c" for number in range(100, 200)]
    with pytest.raises(UnstorableValue, match="takes too many steps"):
        reader.read(json.dumps([f"{'a' * 300}{number}" for number in range(1_000)]), "it")
    reader = Reader(type_of({"type": "array", "items": {"type": "string", "pattern": "^a*c$"}}, "it"), "it")
    assert reader.read(json.dumps(texts * 1_000), "it") == texts * 1_000  # Characters are free.


def test_the_patterns_of_one_schema_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compiled without a break, and a record that a graph reads may have thousands of them."""
    compiled: list[str] = []

    def counted(source: str) -> Pattern:
        compiled.append(source)
        return automaton(source)

    monkeypatch.setattr(patterns, "automaton", counted)

    def schema(number: int, states: int) -> dict[str, Any]:
        texts = {f"p{n}": {"type": "string", "pattern": f"(a?){{{states}}}{n}"} for n in range(number)}
        return {"type": "object", "properties": texts}

    ways: list[tuple[Callable[[dict[str, Any]], Any], type[Exception]]] = [
        (schema_of, InvalidArguments),
        (lambda given: type_of(given, "it"), InvalidDefinition),
    ]
    for check, error in ways:
        compiled.clear()
        with pytest.raises(error, match="at most 20,000 states together"):
            check(schema(5_000, 400))
        assert len(compiled) < 60
        check(schema(400, 10))
        check({"type": "array", "items": schema(1, 400), "$defs": schema(1, 400)["properties"]})
    compiled.clear()
    same = {f"p{n}": {"type": "string", "pattern": "(a?){400}"} for n in range(1_000)}
    schema_of({"type": "object", "properties": same})  # A pattern counts once.
    assert compiled == ["(a?){400}"]
