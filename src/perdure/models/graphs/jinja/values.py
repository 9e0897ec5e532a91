"""Values of templates: their texts, comparisons, arithmetic and parts.

Values have JSON's own types, are tuples, or are created by the template: namespaces, loops, macros. Each function
spends the steps for its work before it does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from perdure.models.graphs.jinja.budget import Frame, RenderingFailed, Undefined
from perdure.models.graphs.text_search import search_chars
from perdure.values.arguments import shown

_INTEGER_MAX: Final = 2**127
_ITEMS_MAX: Final = 10**15
MISSING: Final[Any] = object()


class Function:
    """A function that a template can call: a macro, a recursive loop, or a built-in function."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[[Frame, list[Any], dict[str, Any]], Any]) -> None:
        self.name = name
        self.call = call


class Fields:
    """An object that is not a JSON value. It is a namespace, whose fields can be set, or `loop`."""

    __slots__ = ("call", "fields", "name")

    def __init__(self, name: str, fields: Any, call: Function | None = None) -> None:
        self.name = name
        self.fields = fields
        self.call = call


def need(value: Any) -> Any:
    """Return the value. Raises RenderingFailed if it is missing."""
    if isinstance(value, Undefined):
        raise value.failure()
    return value


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "bool"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "sequence"
        case _:
            return "map" if isinstance(value, Mapping) else "object"


def text_of(frame: Frame, value: Any) -> str:
    """Return the text of a value. Raises RenderingFailed, TooMuch."""
    if isinstance(value, str):
        return value
    need(value)
    if isinstance(value, float):
        text = repr(value)
        if "e" in text:
            text = format(Decimal(text), "f")
            return text if "." in text else f"{text}.0"
        return text
    if isinstance(value, list | tuple | Mapping):
        frame.spend_text(frame.spend_value(value))
        return str(dict(value)) if isinstance(value, Mapping) and type(value) is not dict else str(value)
    if isinstance(value, Function | Fields):
        return f"<{value.name}>"
    return str(value)


def truth(value: Any) -> bool:
    return bool(need(value))


def attribute(value: Any, name: str) -> Any:
    """Return the field of a value by its name, or MISSING."""
    if isinstance(value, Mapping):
        return value.get(name, MISSING)
    if isinstance(value, Fields):
        return value.fields.get(name, MISSING)
    return MISSING


def item(value: Any, key: Any) -> Any:
    """Return the part of a value by its key, or MISSING."""
    need(key)
    if isinstance(value, list | tuple | str):
        if isinstance(key, int) and not isinstance(key, bool) and -len(value) <= key < len(value):
            return value[key]
        return MISSING
    if isinstance(value, Mapping) and isinstance(key, str | int | float | bool | None):
        return value.get(key, MISSING)
    return attribute(value, key) if isinstance(key, str) else MISSING


def cut(frame: Frame, value: Any, parts: list[Any]) -> Any:
    begin, end, step = (None if part is None else _index(part) for part in parts)
    if step == 0:
        raise RenderingFailed("a slice cannot go on by 0")
    if isinstance(need(value), str):
        frame.spend_text(len(value))
        return value[begin:end:step]
    if isinstance(value, list | tuple):
        frame.spend(len(value))
        return list(value[begin:end:step])
    raise RenderingFailed(f"a {kind_of(value)} cannot be cut")


def _index(value: Any) -> int:
    if isinstance(need(value), int):
        return int(value)
    raise RenderingFailed(f"the bounds of a slice are whole numbers, not {shown(value)}")


def items_in(frame: Frame, value: Any) -> list[Any]:
    """Return the items of a value. Raises RenderingFailed."""
    need(value)
    if isinstance(value, list | tuple | str | Mapping):
        frame.spend(len(value))
        return list(value)
    if value is None:
        return []
    raise RenderingFailed(f"a {kind_of(value)} is nothing to go through")


# Operators.


def concatenated(frame: Frame, values: list[Any]) -> str:
    texts = [text_of(frame, value) for value in values]
    frame.spend_text(sum(map(len, texts)))
    return "".join(texts)


def equal(frame: Frame, left: Any, right: Any) -> bool:
    need(left)
    need(right)
    if isinstance(left, list | tuple | Mapping) or (isinstance(left, str) and isinstance(right, str)):
        frame.spend_value(left)
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            return list(left) == list(right)
    return bool(left == right)


def is_in(frame: Frame, left: Any, right: Any) -> bool:
    need(left)
    need(right)
    if isinstance(right, str):
        part = text_of(frame, left)
        frame.spend_text(search_chars(right, part))
        return part in right
    if isinstance(right, Mapping):
        return item(right, left) is not MISSING
    if isinstance(right, list | tuple):
        frame.spend_value(right, 2)
        return any(equal(frame, left, one) for one in right)
    raise RenderingFailed(f"nothing is in a {kind_of(right)}")


_RANKS: Final = {"none": 0, "bool": 1, "number": 2, "string": 3, "sequence": 4, "map": 5, "object": 6}


def is_less(frame: Frame, left: Any, right: Any) -> bool:
    kinds = kind_of(need(left)), kind_of(need(right))
    ranks = _RANKS[kinds[0]], _RANKS[kinds[1]]
    if ranks[0] != ranks[1]:
        return ranks[0] < ranks[1]
    if kinds[0] == "string":
        frame.spend_text(min(len(left), len(right)))
        return bool(left < right)
    if kinds[0] == "sequence":
        for one, other in zip(left, right, strict=False):
            frame.spend(1)
            if not equal(frame, one, other):
                return is_less(frame, one, other)
        return len(left) < len(right)
    return ranks[0] in (1, 2) and bool(left < right)


def calculated(frame: Frame, operator: str, left: Any, right: Any) -> Any:
    """Return the result of an arithmetic operator. Raises RenderingFailed, TooMuch."""
    kinds = kind_of(need(left)), kind_of(need(right))
    if operator == "+" and kinds == ("string", "string"):
        return concatenated(frame, [left, right])
    if operator == "+" and kinds == ("sequence", "sequence"):
        frame.spend(len(left) + len(right))
        return [*left, *right]
    if operator == "*" and kinds[1] in ("number", "bool") and kinds[0] in ("string", "sequence"):
        return repeated(frame, left, right)
    if operator == "*" and kinds[0] in ("number", "bool") and kinds[1] in ("string", "sequence"):
        return repeated(frame, right, left)
    if not {*kinds} <= {"number", "bool"}:
        raise RenderingFailed(f"{operator} is nothing that can be done with a {kinds[0]} and a {kinds[1]}")
    try:
        return _bounded(_number(operator, left, right))
    except (ZeroDivisionError, OverflowError):
        raise RenderingFailed(f"{shown(left)} {operator} {shown(right)} cannot be calculated") from None


def _number(operator: str, left: Any, right: Any) -> Any:
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case "//":
            return left // right
        case "%":
            return left % right
        case _:
            if isinstance(left, int) and isinstance(right, int) and right > 0 and left.bit_length() * right > 1_000:
                raise OverflowError
            result = left**right
            if isinstance(result, complex):
                raise OverflowError
            return result


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and not -_INTEGER_MAX <= value < _INTEGER_MAX:
        raise OverflowError
    return value


def negated(value: Any) -> Any:
    if kind_of(need(value)) != "number":
        raise RenderingFailed(f"a {kind_of(value)} has no sign")
    return -value


def repeated(frame: Frame, value: Any, times: Any) -> Any:
    if isinstance(times, float) and times.is_integer():
        times = int(times)
    if not isinstance(times, int) or times > _ITEMS_MAX:
        raise RenderingFailed(f"nothing can be repeated {shown(times)} times")
    length = len(value) * max(0, times)
    if isinstance(value, str):
        frame.spend_text(length)
        return value * times
    frame.spend(length)
    return list(value) * times
