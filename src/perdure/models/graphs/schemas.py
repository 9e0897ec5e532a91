"""JSON Schemas as types, for the input and the output of definitions in YAML or JSON. msgspec checks values against
these types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.errors import InvalidDefinition
from perdure.models.graphs.cel.budget import STEPS_MAX
from perdure.values.patterns import PatternFailed, SchemaPatterns, Searches, SearchFailed

_BOUNDS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
    "minItems": "min_length",
    "maxItems": "max_length",
}
_PLAIN: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "null": None,
}
_REMARKS: Final = {"title", "description", "default", "examples", "format", "$defs", "$schema", "$id", "$comment"}


def type_of(schema: Any, place: str) -> Any:
    """Return a type that accepts exactly the values that a schema accepts. Raises InvalidDefinition if no type can
    express the schema. So the type never accepts a value that the schema forbids.
    """
    if not isinstance(schema, Mapping):
        raise InvalidDefinition(f"{place}: a schema is an object, not {schema!r:.80}")
    return _Reading(schema.get("$defs", {}), place).type_of(schema, "")


def schema_of(wanted: Any, place: str) -> dict[str, Any]:
    """Return the JSON Schema of a type, with an object instead of a reference at its root. Raises InvalidDefinition."""
    own = getattr(wanted, "model_json_schema", None)  # This recognises a pydantic model without importing pydantic.
    try:
        schema: dict[str, Any] = msgspec.json.schema(wanted) if own is None else own()
    except TypeError as error:
        raise InvalidDefinition(f"{place}: {error}") from error
    reference = schema.get("$ref")
    if reference is None:
        return schema
    # Servers expect an object at the root, not a reference to an object.
    name, definitions = reference.removeprefix("#/$defs/"), schema["$defs"]
    others = definitions if reference in repr(definitions) else {k: v for k, v in definitions.items() if k != name}
    return {**definitions[name], **({"$defs": others} if others else {})}


class _Patterned(type):
    """The metaclass of types for texts that match a pattern. Their values are plain texts."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, str)


def _text_type(pattern: str, chars_min: float, chars_max: float) -> Any:
    """Return a type for texts that match a pattern. msgspec's own patterns use `re`, which can take for ever."""

    def model_validate(value: Any, searches: Searches | None = None) -> str:
        """Check a text and return it. Readers call this for types that msgspec does not know. Raises ValueError."""
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        if not chars_min <= len(value) <= chars_max:
            raise ValueError(f"Expected `str` of length between {chars_min} and {chars_max}")
        try:
            is_match = (searches or Searches(STEPS_MAX)).is_in(pattern, value)
        except SearchFailed:
            raise ValueError(f"to match it with {pattern!r:.80} takes too many steps") from None
        if not is_match:
            raise ValueError(f"Expected `str` matching regex {pattern!r:.80}")
        return value

    return _Patterned("Text", (), {"model_validate": staticmethod(model_validate), "searches": True})


class _Reading:
    def __init__(self, definitions: Mapping[str, Any], place: str) -> None:
        self._definitions = definitions
        self._place = place
        self._open: list[str] = []
        self._patterns = SchemaPatterns()

    def type_of(self, schema: Any, path: str) -> Any:
        if schema is True or schema == {}:
            return Any
        if not isinstance(schema, Mapping):
            raise self._wrong(path, f"a schema is an object, not {schema!r:.80}")
        keys = set(schema) - _REMARKS
        if "$ref" in keys:
            return self._referred(schema["$ref"], path)
        if "enum" in keys or "const" in keys:
            return Literal[tuple(schema["enum"]) if "enum" in keys else (schema["const"],)]  # pyright: ignore[reportReturnType, reportInvalidTypeForm]
        for word in ("anyOf", "oneOf"):
            if word in keys:
                return reduce(or_, [_orable(self.type_of(one, f"{path}/{word}")) for one in schema[word]])
        kind = schema.get("type")
        if isinstance(kind, list):
            return reduce(or_, [_orable(self.type_of({**schema, "type": one}, path)) for one in kind])
        bounds = {_BOUNDS[key]: schema[key] for key in keys & set(_BOUNDS)}
        known = {"type", *_BOUNDS}
        if kind == "object":
            known |= {"properties", "required", "additionalProperties"}
            found = self._object(schema, path)
        elif kind == "array":
            known |= {"items"}
            found = list[self.type_of(schema.get("items", True), f"{path}/items")]  # type: ignore[misc]
        elif isinstance(kind, str) and kind in _PLAIN:
            found = _PLAIN[kind]
        elif kind is None and not keys:
            return Any
        else:
            raise self._wrong(path, f"the type {kind!r} is not known")
        if unknown := sorted(keys - known):
            raise self._wrong(path, f"{unknown[0]!r} is not supported here")
        if found is str and "pattern" in bounds:
            return self._patterned(bounds, path)
        return Annotated[found, Meta(**bounds)] if bounds else found

    def _patterned(self, bounds: Mapping[str, Any], path: str) -> Any:
        try:
            self._patterns.add(bounds["pattern"])
            return _text_type(bounds["pattern"], bounds.get("min_length", 0), bounds.get("max_length", math.inf))
        except (PatternFailed, TypeError) as error:
            raise self._wrong(path, f"{bounds['pattern']!r:.80} is no pattern in RE2's syntax: {error}") from None

    def _object(self, schema: Mapping[str, Any], path: str) -> Any:
        properties, required = schema.get("properties", {}), set(schema.get("required", []))
        more = schema.get("additionalProperties", True)
        if not properties and not required:
            return dict[str, Any] if more is True else dict[str, self.type_of(more, f"{path}/additionalProperties")]  # type: ignore[misc]
        fields: list[Any] = []
        for number, name in enumerate([*properties, *sorted(required - set(properties))]):
            inner = self.type_of(properties.get(name, True), f"{path}/properties/{name}")
            if name in required:
                fields.append((f"field_{number}", inner, msgspec.field(name=name)))
            else:
                optional = inner if inner is Any else _orable(inner) | UnsetType
                fields.append((f"field_{number}", optional, msgspec.field(name=name, default=UNSET)))
        return msgspec.defstruct("Object", fields, kw_only=True, forbid_unknown_fields=more is False)

    def _referred(self, reference: Any, path: str) -> Any:
        name = str(reference).removeprefix("#/$defs/")
        if name not in self._definitions:
            raise self._wrong(path, f"there is no {reference!r}")
        if name in self._open:
            raise self._wrong(path, f"{reference!r} contains itself, which is not supported")
        self._open.append(name)
        found = self.type_of(self._definitions[name], reference)
        self._open.pop()
        return found

    def _wrong(self, path: str, message: str) -> InvalidDefinition:
        return InvalidDefinition(f"{self._place}{f' at {path}' if path else ''}: {message}")


def _orable(found: Any) -> Any:
    return type(None) if found is None else found
