"""JSON Schemas: make the schema of a Python type, and check whether a value fits a schema.

This module knows the keywords that msgspec and pydantic use for types, and the keywords that people use for forms. It
refuses a schema with any other keyword. Otherwise a value would be checked only in part.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from perdure.errors import InvalidArguments
from perdure.values.arguments import shown
from perdure.values.patterns import PatternFailed, SchemaPatterns, Search, automaton

Found = tuple[str, str]  # the path, and the problem there

_DEPTH_MAX: Final = 100
_STEPS_MAX: Final = 2_000_000
_STEPS_PER_CHOICE: Final = 10
_ANNOTATIONS: Final = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "contentMediaType", "default", "definitions", "deprecated",
        "description", "discriminator", "examples", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
_FORMATS: Final[Mapping[str, Any]] = {
    "date": datetime.date,
    "date-time": datetime.datetime,
    "decimal": decimal.Decimal,
    "duration": datetime.timedelta,
    "time": datetime.time,
    "uuid": uuid.UUID,
}


def schema_of(wanted: Any) -> dict[str, Any]:
    """Return the schema of a type. If a schema is passed, return it unchanged. Raises InvalidArguments if the type has
    no schema, or if the schema has an unknown keyword.
    """
    if wanted is None:
        return {}
    if isinstance(wanted, Mapping):
        schema = dict(wanted)
    elif (write := getattr(wanted, "model_json_schema", None)) is not None:  # The type is a pydantic model.
        schema = write()
    else:
        try:
            schema = msgspec.json.schema(wanted)
        except (TypeError, RuntimeError, ValueError) as error:
            raise InvalidArguments(f"{shown(wanted)} has no JSON Schema: {_message(error)}") from error
    for where, what in _unknown(schema, schema, SchemaPatterns(), "$"):
        raise InvalidArguments(f"the schema cannot be used: at {where} {what}")
    return schema


def _message(error: Exception) -> str:
    """Return msgspec's message. If msgspec could not even show the type, return a message of our own."""
    return str(error) if isinstance(error, TypeError) else "it is no type"


def misfit(value: Any, schema: Mapping[str, Any], steps_max: int = _STEPS_MAX) -> Found | None:
    """Return the place and the reason if a JSON value does not fit a schema. Return None if the value fits.

    The number of steps is bounded, whatever the schema and the value are. A value that needs more than two million
    steps does not fit. With a smaller `steps_max`, raises TooManySteps if the value needs more steps than that.
    """
    try:
        return next(_misfits(value, schema, _Check(schema, steps_max), "$", 0), None)
    except TooManySteps:
        if steps_max < _STEPS_MAX:
            raise
        return "$", f"to check it takes more than {_STEPS_MAX:,} steps; make it smaller, or its schema simpler"
    # The schema was stored by an earlier version of Perdure, which allowed other patterns.
    except PatternFailed as error:
        return "$", f"its schema has a pattern that cannot be used: {error}"


# ---------------------------------------------------------------------------------------------------------------------
# Schemas


def _unknown(schema: Any, root: Mapping[str, Any], patterns: SchemaPatterns, at: str) -> Iterator[Found]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        yield at, f"a schema is an object, not {schema!r:.40}"
        return
    for word, given in schema.items():
        if not isinstance(word, str):
            yield at, f"a word of a schema is a text, not {shown(word)}"
            return
        where = f"{at}.{word}"
        if word in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(given, list) and given:
            for index, one in enumerate(given):
                yield from _unknown(one, root, patterns, f"{where}[{index}]")
        elif word in ("properties", "patternProperties", "$defs", "definitions") and isinstance(given, Mapping):
            for name, one in given.items():
                yield from _unknown(one, root, patterns, f"{where}.{name}")
                if word == "patternProperties":
                    yield from _bad_pattern(name, patterns, where)
        elif word in ("items", "additionalProperties", "propertyNames", "not"):
            yield from _unknown(given, root, patterns, where)
        elif word == "$ref":
            if not isinstance(given, str) or _target(given, root) is None:
                yield where, f"{given!r:.80} leads nowhere; only parts of the same schema can be referred to"
        elif word == "pattern":
            yield from _bad_pattern(given, patterns, where)
        elif word == "type":
            names = given if isinstance(given, list) else [given]
            if any(name not in _TYPES for name in names):
                yield where, f"there is no type {given!r:.40}, only {', '.join(_TYPES)}"
        elif not _is_known(word, given):
            yield where, f"{word!r} is not known here, or not with {given!r:.40}"


def _is_known(word: str, given: Any) -> bool:
    if word in _ANNOTATIONS or word.startswith("x-"):
        return True
    if word in ("format", "contentEncoding"):
        return isinstance(given, str)
    if word == "const":
        return True
    if word == "enum":
        return isinstance(given, list)
    if word == "required":
        return isinstance(given, list) and all(isinstance(name, str) for name in given)
    if word == "uniqueItems":
        return isinstance(given, bool)
    return word in _LIMITS and _is_number(given) and (word != "multipleOf" or given > 0)


def _bad_pattern(pattern: Any, patterns: SchemaPatterns, where: str) -> Iterator[Found]:
    if not isinstance(pattern, str):
        yield where, f"a pattern is a text, not {shown(pattern)}"
        return
    try:
        patterns.add(pattern)
    except PatternFailed as error:
        yield where, f"{pattern!r:.80} is no pattern in RE2's syntax: {error}"


def _target(reference: str, root: Any) -> Any:
    """Return the schema that a reference such as #/$defs/Address points to."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Values


class _Check:
    """One check of a value, with the steps that remain, and the patterns that it has used so far."""

    __slots__ = ("left", "root", "searches")

    def __init__(self, root: Mapping[str, Any], steps_max: int) -> None:
        self.left = steps_max
        self.root = root
        self.searches: dict[str, Search] = {}

    def spend(self, steps: int) -> None:
        """Subtract steps from the budget, before they are done. Raises TooManySteps."""
        self.left -= steps
        if self.left < 0:
            raise TooManySteps

    def spend_choice(self, depth: int, choices: int = 1) -> None:
        """Spend steps for each choice, because nested choices check the same value again and again."""
        self.spend(choices * (_STEPS_PER_CHOICE + depth))

    def matches(self, pattern: str, text: str) -> bool:
        """Whether a part of a text matches. Raises PatternFailed, TooManySteps."""
        search = self.searches.get(pattern)
        if search is None:
            search = self.searches[pattern] = Search(automaton(pattern))
        return search.is_in(text, self)


class TooManySteps(Exception):
    """A check takes more steps than allowed. Neither `not` nor a choice catches it."""


def _misfits(value: Any, schema: Any, check: _Check, at: str, depth: int) -> Iterator[Found]:
    if schema is True:
        return
    if schema is False:
        yield at, "nothing may be here"
        return
    if depth > _DEPTH_MAX:
        yield at, "it is nested too deep"
        return
    depth += 1
    check.spend(1)
    if "$ref" in schema:
        check.spend_choice(depth)
        yield from _misfits(value, _target(schema["$ref"], check.root), check, at, depth)
    yield from _misfits_of_value(value, schema, check, at)
    if isinstance(value, dict):
        yield from _misfits_of_object(value, schema, check, at, depth)
    elif isinstance(value, list):
        yield from _misfits_of_array(value, schema, check, at, depth)
    for part in schema.get("allOf", ()):
        check.spend_choice(depth)
        yield from _misfits(value, part, check, at, depth)
    yield from _misfits_of_choice(value, schema, check, at, depth)


def _misfits_of_choice(value: Any, schema: Mapping[str, Any], check: _Check, at: str, depth: int) -> Iterator[Found]:
    for word in ("anyOf", "oneOf"):
        if word in schema:
            check.spend_choice(depth, len(schema[word]))
            found = [next(_misfits(value, part, check, at, depth), None) for part in schema[word]]
            fitting = found.count(None)
            if not fitting:
                # The choice that matched furthest gives the most useful message.
                where, what = max((one for one in found if one is not None), key=lambda one: len(one[0]))
                yield (where, what) if where != at else (at, f"none of {len(found)} choices fits; the last: {what}")
            elif word == "oneOf" and fitting > 1:
                yield at, f"{fitting} of the choices fit, and only one may"
    if "not" in schema:
        check.spend_choice(depth)
    if "not" in schema and next(_misfits(value, schema["not"], check, at, depth), None) is None:
        yield at, f"{shown(value)} is what it must not be"


def _misfits_of_value(value: Any, schema: Mapping[str, Any], check: _Check, at: str) -> Iterator[Found]:
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_TYPES[name](value) for name in names):
            yield at, f"{shown(value)} is not of type {' or '.join(names)}"
            return
    if "const" in schema and not _is_same(value, schema["const"], check):
        yield at, f"{shown(value)} is not {shown(schema['const'])}"
    if "enum" in schema and not any(_is_same(value, one, check) for one in schema["enum"]):
        yield at, f"{shown(value)} is none of {shown(schema['enum'])}"
    for word, (is_meant, fits) in _LIMITS.items():
        if word in schema and is_meant(value) and not fits(value, schema[word]):
            yield at, f"{shown(value)} does not keep to {word} {schema[word]}"
    if isinstance(value, str):
        if "pattern" in schema and not check.matches(schema["pattern"], value):
            yield at, f"{shown(value)} does not match {schema['pattern']!r:.80}"
        wanted = _FORMATS.get(schema.get("format", ""))
        if schema.get("contentEncoding") == "base64":
            wanted = bytes
        if wanted is not None:
            try:
                msgspec.convert(value, wanted)
            except msgspec.ValidationError as error:
                yield at, f"{shown(value)} is no {schema.get('format', 'base64')}: {error}"


def _misfits_of_object(
    value: dict[str, Any], schema: Mapping[str, Any], check: _Check, at: str, depth: int
) -> Iterator[Found]:
    check.spend(len(schema.get("required", ())))
    for name in schema.get("required", ()):
        if name not in value:
            yield at, f"{name!r} is missing"
    properties: Mapping[str, Any] = schema.get("properties", {})
    patterns: Mapping[str, Any] = schema.get("patternProperties", {})
    for name, one in value.items():
        where = f"{at}.{name}"
        if "propertyNames" in schema:
            yield from ((where, what) for _, what in _misfits(name, schema["propertyNames"], check, where, depth))
        check.spend(len(patterns))
        parts = [properties[name]] if name in properties else []
        parts += [part for pattern, part in patterns.items() if check.matches(pattern, name)]
        if not parts and schema.get("additionalProperties") is False:
            yield where, "there is no such field"
        for part in parts or [schema.get("additionalProperties", True)]:
            yield from _misfits(one, part, check, where, depth)


def _misfits_of_array(
    value: list[Any], schema: Mapping[str, Any], check: _Check, at: str, depth: int
) -> Iterator[Found]:
    first: list[Any] = schema.get("prefixItems", [])
    rest = schema.get("items", True)
    for index, one in enumerate(value):
        yield from _misfits(one, first[index] if index < len(first) else rest, check, f"{at}[{index}]", depth)
    if schema.get("uniqueItems"):
        try:
            is_unique = len({_identity(one, check) for one in value}) == len(value)
        except RecursionError:
            yield at, "it is nested too deep"
        else:
            if not is_unique:
                yield at, "an item is there twice"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_multiple(value: Any, limit: Any) -> bool:
    if isinstance(value, int) and isinstance(limit, int):
        return value % limit == 0
    if not (_is_finite(value) and _is_finite(limit)):
        return False
    return _fraction(value) % _fraction(limit) == 0


def _is_finite(value: Any) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _fraction(value: Any) -> fractions.Fraction:
    """Return the exact value of a number as it is written, so that 0.3 is three times 0.1. Decimal is not used, because
    it would need as many digits as the quotient.
    """
    return fractions.Fraction(value if isinstance(value, int) else repr(value))


def _is_same(one: Any, other: Any, check: _Check) -> bool:
    """Whether two values are equal as JSON. In JSON, true does not equal 1. Each comparison spends steps. Raises
    TooManySteps.
    """
    check.spend(1)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_is_same(*pair, check) for pair in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name], check) for name in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _identity(value: Any, check: _Check) -> str:
    """Return a text that is equal for two values if, and only if, the values are equal as JSON. A text is used because
    a sender can make hashes of numbers collide, but not hashes of texts. Raises TooManySteps.
    """
    check.spend(1)
    if isinstance(value, list):
        return f"[{','.join(_identity(one, check) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name!r}:{_identity(value[name], check)}' for name in sorted(value))}}}"
    if _is_number(value) and (isinstance(value, int) or value.is_integer()):
        return hex(int(value))
    return repr(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "array": _is_list,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "null": lambda value: value is None,
    "number": _is_number,
    "object": _is_object,
    "string": _is_text,
}

# For each keyword: a test whether the keyword applies to a value, and a test whether the value satisfies it.
_LIMITS: Final[Mapping[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool]]]] = {
    "minimum": (_is_number, lambda value, limit: value >= limit),
    "maximum": (_is_number, lambda value, limit: value <= limit),
    "exclusiveMinimum": (_is_number, lambda value, limit: value > limit),
    "exclusiveMaximum": (_is_number, lambda value, limit: value < limit),
    "multipleOf": (_is_number, _is_multiple),
    "minLength": (_is_text, lambda value, limit: len(value) >= limit),
    "maxLength": (_is_text, lambda value, limit: len(value) <= limit),
    "minItems": (_is_list, lambda value, limit: len(value) >= limit),
    "maxItems": (_is_list, lambda value, limit: len(value) <= limit),
    "minProperties": (_is_object, lambda value, limit: len(value) >= limit),
    "maxProperties": (_is_object, lambda value, limit: len(value) <= limit),
}

__all__ = ["TooManySteps", "misfit", "schema_of"]
