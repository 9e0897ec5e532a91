"""Forms from schemas, and values from forms."""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

import msgspec
import pytest

from perdure.dashboard.forms import Field, field_of, value_of
from perdure.dashboard.page import Form, Wrong
from perdure.values.schemas import misfit, schema_of


class Line(msgspec.Struct):
    sku: str
    count: int = 1


class Answer(msgspec.Struct):
    ok: bool
    grade: Literal["good", "bad"]
    remark: str = ""
    price: float | None = None
    when: date | None = None
    first: Line | None = None
    lines: list[Line] = []


def kinds(field: Field) -> dict[str, str]:
    return {one.name.removeprefix("value."): one.kind for one in field.fields}


def filled(**texts: str) -> Form:
    return Form({f"value.{name.replace('__', '.')}": [text] for name, text in texts.items()})


def test_each_field_has_a_kind() -> None:
    assert kinds(field_of(schema_of(Answer))) == {
        "ok": "boolean", "grade": "choice", "remark": "text", "price": "number", "when": "date", "first": "group",
        "lines": "json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        ({"ok": "true", "grade": '"good"'}, {"ok": True, "grade": "good"}),
        (
            {"ok": "false", "grade": '"bad"', "remark": " so ", "price": "1.5", "when": "2026-11-16"},
            {"ok": False, "grade": "bad", "remark": " so ", "price": 1.5, "when": "2026-11-16"},
        ),
        (
            {"ok": "true", "grade": '"bad"', "first__sku": "s", "first__count": "2", "lines": '[{"sku": "t"}]'},
            {"ok": True, "grade": "bad", "first": {"sku": "s", "count": 2}, "lines": [{"sku": "t"}]},
        ),
        (
            {"ok": "true", "grade": '"bad"', "first__sku": "", "first__count": " "},
            {"ok": True, "grade": "bad"},
        ),
    ],
)
def test_what_was_filled_in_fits_the_schema(texts: dict[str, str], value: Any) -> None:
    schema = schema_of(Answer)
    found = value_of(field_of(schema), filled(**texts))
    assert found == value
    assert misfit(found, schema) is None


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"grade": '"good"'}, "Ok: this field is required"),
        ({"ok": "true", "grade": "good"}, "Grade: this is not JSON"),
        ({"ok": "true", "grade": '"good"', "price": "cheap"}, "Price: 'cheap' is not a number"),
        ({"ok": "true", "grade": '"good"', "lines": "[,]"}, "Lines: this is not JSON"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(texts: dict[str, str], told: str) -> None:
    with pytest.raises(Wrong, match=told):
        value_of(field_of(schema_of(Answer)), filled(**texts))


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({}, '{"any": [1]}', {"any": [1]}),
        ({"type": "string"}, "plain", "plain"),
        ({"type": "integer"}, "7", 7),
        ({"type": ["number", "null"]}, "", None),
        ({"const": 3}, "3", 3),
        ({"$ref": "#/$defs/Loop", "$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}, "1", 1),
    ],
)
def test_a_schema_need_not_be_an_object(schema: dict[str, Any], text: str, value: Any) -> None:
    assert value_of(field_of(schema), Form({"value": [text]})) == value


def test_a_schema_that_contains_itself_ends_in_json() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    field = field_of(tree)
    while field.kind == "group":
        field = field.fields[0]
    assert field.kind == "json"


def test_a_form_shows_what_was_sent_or_the_default() -> None:
    remark = field_of({"type": "object", "properties": {"r": {"type": "string", "default": "d"}}}).fields[0]
    assert (remark.given(None), remark.given(Form({"value.r": ["mine"]}))) == ("d", "mine")
