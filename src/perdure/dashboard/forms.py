"""Forms that are made from JSON Schemas, and the values of forms that were filled in.

Texts, numbers, choices, booleans and nested objects of a schema become fields. Every other part becomes a field for
JSON. This module does not check whether the value fits the schema. That check is made when the answer is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from perdure.dashboard.page import Form, Wrong
from perdure.http.bodies import VALUES_MAX, has_too_many_values

Kind = Literal["text", "long", "number", "integer", "boolean", "choice", "date", "datetime", "group", "json"]
ROOT: Final = "value"
_DEPTH_MAX: Final = 5
_DATES: Final[Mapping[str, Kind]] = {"date": "date"}


class Field(Struct, frozen=True, kw_only=True):
    """A field of a form. A `group` has fields of its own."""

    name: str
    label: str
    kind: Kind
    is_required: bool
    is_asked_for: bool  # whether the browser refuses to send the form without this field
    may_be_null: bool = False
    hint: str = ""
    default: Any = None
    has_default: bool = False
    choices: Sequence[Any] = ()
    schema: Mapping[str, Any] = {}
    fields: Sequence[Field] = ()

    def given(self, form: Form | None) -> str:
        """Return the text that the field shows. It is the text that was sent before, or the default."""
        if form is not None:
            return form.text(self.name)
        if not self.has_default or self.default is None:
            return ""
        if self.kind in ("json", "choice"):
            return msgspec.json.encode(self.default).decode()
        return str(self.default).lower() if isinstance(self.default, bool) else str(self.default)

    def options(self) -> list[tuple[str, str]]:
        """Return the value and the text of each choice."""
        return [(msgspec.json.encode(one).decode(), str(one)) for one in self.choices]


def field_of(schema: Mapping[str, Any]) -> Field:
    """Return the field, or the group of fields, for a whole schema."""
    return _field(ROOT, "Answer", schema, schema, True, True, 0)


def _field(
    name: str, label: str, schema: Any, root: Mapping[str, Any], is_required: bool, is_asked: bool, depth: int
) -> Field:
    found, may_be_null = _plain(schema, root)
    common: dict[str, Any] = {
        "name": name,
        "label": found.get("title") if isinstance(found.get("title"), str) and depth == 0 else label,
        "is_required": is_required,
        "is_asked_for": is_asked and is_required and not may_be_null,
        "may_be_null": may_be_null,
        "hint": str(found.get("description", "")),
        "default": schema.get("default") if isinstance(schema, Mapping) else None,
        "has_default": isinstance(schema, Mapping) and "default" in schema,
        "schema": found,
    }
    kind = _kind(found, depth)
    if kind == "choice":
        return Field(kind=kind, choices=found["enum"] if "enum" in found else [found["const"]], **common)
    if kind == "group":
        needed = found.get("required", ())
        properties: Mapping[str, Any] = found["properties"]
        fields = [
            _field(f"{name}.{one}", _label(one), inner, root, one in needed, common["is_asked_for"], depth + 1)
            for one, inner in properties.items()
        ]
        return Field(kind=kind, fields=fields, **common)
    return Field(kind=kind, **common)


def _plain(schema: Any, root: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return a schema with its references resolved. Also return whether it allows null in addition to one other
    type.
    """
    may_be_null = False
    for _ in range(20):
        if not isinstance(schema, Mapping):
            return {}, may_be_null
        if isinstance(schema.get("$ref"), str):
            schema = _referred(schema["$ref"], root)
            continue
        options = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(options, list):
            rest = [one for one in options if one != {"type": "null"}]
            if len(rest) == 1 and len(options) == 2:
                may_be_null, schema = True, rest[0]
                continue
        kinds = schema.get("type")
        if isinstance(kinds, list) and len(kinds) == 2 and "null" in kinds:
            may_be_null = True
            schema = {**schema, "type": next(one for one in kinds if one != "null")}
        return schema, may_be_null
    return {}, may_be_null


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _kind(schema: Mapping[str, Any], depth: int) -> Kind:
    if "enum" in schema or "const" in schema:
        return "choice"
    match schema.get("type"):
        case "string":
            if schema.get("format") in _DATES:
                return _DATES[schema["format"]]
            return "long" if schema.get("maxLength", 0) > 200 or schema.get("contentMediaType") else "text"
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "boolean":
            return "boolean"
        case "object" if isinstance(schema.get("properties"), Mapping) and depth < _DEPTH_MAX:
            return "group"
        case _:
            return "json"


def _label(name: str) -> str:
    return name.replace("_", " ").strip().capitalize() or name


# ---------------------------------------------------------------------------------------------------------------------
# Values of forms that were filled in

_LEFT_OUT: Final = msgspec.UNSET


def value_of(field: Field, form: Form) -> Any:
    """Return the value of a form. Raises Wrong, with the label of the field, if a text is not a number or not JSON, or
    if a required field is empty.
    """
    found = _value(field, form)
    return None if found is _LEFT_OUT else found


def _value(field: Field, form: Form) -> Any:
    if field.kind == "group":
        if not field.is_required and not any(text.strip() for text in _texts(field, form)):
            return _LEFT_OUT
        found = {one.name.removeprefix(f"{field.name}."): _value(one, form) for one in field.fields}
        return {name: value for name, value in found.items() if value is not _LEFT_OUT}
    text = form.text(field.name)
    if field.kind not in ("text", "long"):
        text = text.strip()
    if not text:
        return _nothing(field)
    match field.kind:
        case "integer" | "number":
            return _number(field, text)
        case "boolean":
            return text == "true"
        case "choice" | "json":
            return json_of(text, f"{field.label}: this")
        case _:
            return text


def json_of(text: str, what: str) -> Any:
    """Return a JSON value that somebody has typed, or None if the field is empty. Raises Wrong."""
    if not text.strip():
        return None
    try:
        body = text.encode()
        if has_too_many_values(body):
            raise Wrong(f"{what} has more than {VALUES_MAX:,} values; a list or an object counts as five")
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Wrong(f"{what} is not JSON: {error}") from error


def _texts(field: Field, form: Form) -> list[str]:
    """Return all texts that were typed into the fields of a group."""
    return [
        text for one in field.fields for text in (_texts(one, form) if one.kind == "group" else form.texts(one.name))
    ]


def _nothing(field: Field) -> Any:
    if field.kind in ("text", "long") and field.is_required and not field.may_be_null:
        return ""
    if not field.is_required:
        return _LEFT_OUT
    if field.may_be_null:
        return None
    raise Wrong(f"{field.label}: this field is required")


def _number(field: Field, text: str) -> int | float:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        raise Wrong(f"{field.label}: {text!r:.40} is not a number") from None


__all__ = ["Field", "field_of", "json_of", "value_of"]
