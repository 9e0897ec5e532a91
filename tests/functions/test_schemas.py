"""Whether a value fits a JSON Schema, and where it does not."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import math
import random
import threading
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Engine, task, workflow
from perdure.api import tasks
from perdure.errors import InvalidAnswer, InvalidArguments
from perdure.values.arguments import shown
from perdure.values.schemas import TooManySteps, misfit, schema_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: Annotated[int, msgspec.Meta(gt=0, le=10)]


class Node(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=5, pattern="^[a-z]*$")]
    children: list[Node] = []


class Form(msgspec.Struct, forbid_unknown_fields=True):
    when: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    shape: Circle | Square
    colour: Colour = Colour.RED
    pair: tuple[int, str] | None = None
    counts: dict[str, int] = {}
    id: uuid.UUID | None = None
    price: decimal.Decimal | None = None
    day: datetime.date | None = None
    raw: bytes | None = None
    word: Literal["yes", "no", 1] | None = None
    items: Annotated[list[int], msgspec.Meta(max_length=2)] = []


GOOD: dict[str, Any] = {"when": "2026-01-02T03:04:05Z", "shape": {"type": "Circle", "radius": 1.5}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"shape": {"type": "Square", "side": 3}},
        {"colour": "blue", "pair": [1, "a"], "counts": {"a": 1}},
        {"id": "00000000-0000-0000-0000-000000000001", "price": "1.5", "day": "2026-01-02", "raw": "AAE="},
        {"word": 1, "items": [1, 2]},
        {"pair": None, "id": None},
    ],
)
def test_what_the_type_takes_fits_its_schema(more: dict[str, Any]) -> None:
    value = GOOD | more
    msgspec.convert(value, Form, strict=True)
    assert misfit(value, schema_of(Form)) is None


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"when": "yesterday"}, "$.when"),
        ({"when": 5}, "$.when"),
        ({"shape": {"type": "Circle", "radius": "big"}}, "$.shape.radius"),
        ({"shape": {"type": "Square", "side": 11}}, "$.shape.side"),
        ({"shape": {"type": "Star"}}, "$.shape"),
        ({"colour": "green"}, "$.colour"),
        ({"pair": [1]}, "$.pair"),
        ({"pair": [1, 2]}, "$.pair[1]"),
        ({"counts": {"a": "b"}}, "$.counts.a"),
        ({"id": "no"}, "$.id"),
        ({"price": "much"}, "$.price"),
        ({"day": "2026-13-01"}, "$.day"),
        ({"raw": "?"}, "$.raw"),
        ({"word": True}, "$.word"),
        ({"items": [1, 2, 3]}, "$.items"),
        ({"items": [True]}, "$.items[0]"),
        ({"other": 1}, "$.other"),
    ],
)
def test_what_the_type_does_not_take_is_told_with_its_path(more: dict[str, Any], path: str) -> None:
    found = misfit(GOOD | more, schema_of(Form))
    assert found is not None
    assert found[0].startswith(path)


def test_a_missing_field_and_a_wrong_type_are_told() -> None:
    assert misfit({"shape": GOOD["shape"]}, schema_of(Form)) == ("$", "'when' is missing")
    assert misfit([], schema_of(Form)) == ("$", "[] is not of type object")


def test_schemas_that_refer_to_themselves_are_followed_as_deep_as_the_value_goes() -> None:
    schema = schema_of(Node)
    assert misfit({"name": "a", "children": [{"name": "b"}]}, schema) is None
    found = misfit({"name": "a", "children": [{"name": "b", "children": [{"name": "TOO"}]}]}, schema)
    assert found is not None
    assert found[0] == "$.children[0].children[0].name"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["string", "null"]}, [None, "a"], [1]),
        ({"const": 1}, [1, 1.0], [True, 2]),
        ({"enum": [{"a": 1}, [True]]}, [{"a": 1}, [True]], [{"a": True}, [1]]),
        ({"type": "integer", "multipleOf": 5}, [0, 10, 10.0], [3, 1.5]),
        ({"multipleOf": 0.1}, [0.3, 1, "text"], [0.25]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2], [1, 3]),
        ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
        ({"multipleOf": 0.01}, [1e300, 0.07, -0.07, 10**400], [1e-300, 0.001, math.inf]),
        ({"multipleOf": 1e-300}, [1e300], [1e-301]),
        ({"uniqueItems": True}, [[1, True]], [[1, 1.0]]),
        (
            {"uniqueItems": True},
            [[[1], [True], {"a": 1}, {"a": 2}, "a", None]],
            [[{"a": [1], "b": 2}, {"b": 2, "a": [1.0]}]],
        ),
        ({"uniqueItems": True}, [[["a", []], ["a", {}], {"a": "b"}, ["a", "b"]], []], [[[], []], [None, None]]),
        ({"minItems": 1, "items": False, "prefixItems": [{"type": "string"}]}, [["a"]], [[], [1], ["a", 1]]),
        ({"oneOf": [{"minimum": 1}, {"minimum": 5}]}, [3], [0, 6]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [2], [0, 4]),
        ({"not": {"type": "null"}}, [1], [None]),
        ({"patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": False}, [{"n_a": 1}], [{"b": 1}]),
        ({"additionalProperties": {"type": "string"}}, [{"a": "b"}], [{"a": 1}]),
        ({"propertyNames": {"maxLength": 1}}, [{"a": 1}], [{"ab": 1}]),
        ({"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"}, [None], [1]),
        ({"x-widget": "slider", "title": "t", "default": 1, "format": "email"}, [1, "a"], []),
    ],
)
def test_every_word_means_what_it_says(schema: dict[str, Any], good: list[Any], bad: list[Any]) -> None:
    checked = schema_of(schema)
    assert [misfit(value, checked) for value in good] == [None] * len(good)
    assert None not in [misfit(value, checked) for value in bad]


def test_each_item_is_compared_with_few_others() -> None:
    """Once all were compared with each other: 10,000 items made 50,000,000 comparisons."""
    items = [Counted(number) for number in range(2_000)]
    Counted.comparisons = 0
    assert misfit(items, {"uniqueItems": True}) is None
    assert Counted.comparisons < 10 * len(items)


class Counted(int):
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "schema",
    [
        {"if": {}},
        {"type": "text"},
        {"properties": {"a": {"dependentRequired": {}}}},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/none"},
        {"pattern": "("},
        {"minimum": "1"},
        {"multipleOf": 0},
        {"anyOf": []},
        {"anyOf": {}},
        {"items": 1},
        {"required": "a"},
        {"enum": 1},
    ],
)
def test_a_schema_that_says_more_than_is_known_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=r"the schema cannot be used: at \$"):
        schema_of(schema)


def test_what_has_no_schema_is_refused() -> None:
    with pytest.raises(InvalidArguments, match="has no JSON Schema"):
        schema_of(object())


def test_a_schema_that_goes_in_circles_ends() -> None:
    assert misfit(1, schema_of({"$ref": "#"})) == ("$", "it is nested too deep")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=JSON)
def test_any_value_fits_no_schema_at_all_and_is_never_an_accident(value: Any) -> None:
    assert misfit(value, schema_of(None)) is None
    found = misfit(value, schema_of(Form))
    assert found is None or found[0].startswith("$")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 5_000 + "!"),
        (r"^([a-zA-Z0-9_.\-])+@(([a-zA-Z0-9\-])+\.)+([a-zA-Z0-9]{2,4})+$", "a@a." + "aa" * 5_000 + "!"),
        ("(a|a)*b", "a" * 5_000),
        (r"\s+$", " " * 100_000 + "!"),
    ],
)
def test_no_pattern_goes_back(pattern: str, text: str) -> None:
    """A search that tries one way after the other would not end before the sun does, or take minutes."""
    found = misfit(text, schema_of({"pattern": pattern}))
    assert found is not None
    assert "does not match" in found[1]
    names = schema_of({"patternProperties": {pattern: False}})
    assert misfit({text: 1}, names) is None


TOO_MUCH = ("$", "to check it takes more than 2,000,000 steps; make it smaller, or its schema simpler")


def test_a_check_takes_a_bounded_number_of_steps() -> None:
    many_states = {"pattern": "^(a|b)*a(a|b){150}$"}
    text = "".join(random.Random(7).choices("ab", k=50_000))
    assert misfit(text, schema_of(many_states)) == TOO_MUCH
    assert misfit(text, schema_of({"not": many_states})) == TOO_MUCH
    assert misfit([text[:1_000]] * 5_000, schema_of({"items": {"pattern": "^[ab]*$"}})) == TOO_MUCH


def test_choices_that_refer_to_themselves_end() -> None:
    both = [{"$ref": "#"}, {"$ref": "#"}]
    assert misfit(1, schema_of({"oneOf": both})) == TOO_MUCH


def test_a_large_value_is_checked() -> None:
    schema = schema_of({"items": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]+$"}]}})
    assert misfit(["abcdefgh"] * 30_000, schema) is None


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "(?<!a)b", "a" * 1_001])
def test_a_pattern_that_needs_to_go_back_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArguments, match="is no pattern in RE2's syntax"):
        schema_of({"properties": {"a": {"pattern": pattern}}})


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ([5] * 20_000, {"items": {"enum": [*range(10, 210), 5]}}),
        ([[1, 2]] * 20_000, {"items": {"enum": [*([1, number] for number in range(3, 203)), [1, 2]]}}),
        ([[1] * 1_000] * 3_000, {"items": {"const": [1] * 1_000}}),
        ([{"a": 1}] * 20_000, {"items": {"required": ["a"] * 200}}),
        ([[1] * 1_000] * 3_000, {"uniqueItems": True}),
        ([{"a": 1}] * 20_000, {"items": {"patternProperties": {f"b{number}": {} for number in range(200)}}}),
    ],
    ids=["enum", "lists", "const", "required", "unique", "patterns"],
)
def test_every_word_of_a_schema_is_paid_for(value: Any, schema: dict[str, Any]) -> None:
    found = misfit(value, schema)
    assert found is not None
    assert "takes more than 2,000,000 steps" in found[1]
    with pytest.raises(TooManySteps):
        misfit(value, schema, 10_000)


async def test_a_large_answer_is_checked_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop it would keep everybody else waiting for seconds."""
    checked_in: list[bool] = []

    def watched(value: Any, schema: Any, *steps: int) -> Any:
        checked_in.append(threading.current_thread() is threading.main_thread())
        return misfit(value, schema, *steps)

    monkeypatch.setattr(tasks, "misfit", watched)
    async with Engine("memory://", workflows=[asks_for_numbers]) as engine:
        run = await engine.start(asks_for_numbers())
        while not (found := await engine.tasks.list()):
            await asyncio.sleep(0)
        with pytest.raises(InvalidAnswer, match=r"\$\[19999\]"):
            await engine.tasks.answer(found[0].id, [1] * 19_999 + ["x"])
        assert checked_in == [True, False]
        await engine.tasks.answer(found[0].id, [1, 2])
        assert checked_in == [True, False, True]
        assert await run.result() == 3


@workflow(name="schemas.asks_for_numbers")
async def asks_for_numbers() -> int:
    numbers: list[int] = await task(queue="q", schema=list[int])
    return sum(numbers)


def test_a_message_shows_the_beginning_of_a_value_and_nothing_else_is_written() -> None:
    class Loud:
        written = 0

        def __repr__(self) -> str:
            Loud.written += 1
            return "loud"

    value: Any
    for value in ([Loud()] * 10_000, tuple([Loud()] * 10_000), {number: Loud() for number in range(10_000)}):
        Loud.written = 0
        assert len(shown(value)) == 81
        assert Loud.written < 50
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == f"{'[' * 20}…{']' * 20}"
    for value in ([], [1], (1,), (1, "a"), {"a": [None]}, {1}, frozenset({1}), "a'b", b"x", set(), frozenset(), 5, {}):
        assert shown(value) == repr(value)
    assert shown("x" * 10**7) == repr("x" * 100)[:80] + "…"
