"""CEL's values and operators. A value has one of JSON's own types, or is a UInt, bytes, a time, a duration or a type.

A list or an object that an expression creates is a `MadeList` or a `MadeMap`. Values of the context are passed on
unchanged. The evaluation never copies or searches them as a whole. No operator converts its operands: `1 + 1.0` is an
error. Only comparisons accept numbers of different types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from perdure.models.graphs.cel.budget import VALUE_DEPTH_MAX, EvaluationFailed, Frame

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
MISSING: Final[Any] = object()


class UInt(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


class MadeList(list[Any]):
    """A list that an expression has created."""

    __slots__ = ()


class MadeMap(dict[Any, Any]):
    """An object that an expression has created. Its keys are texts, numbers or BoolKeys."""

    __slots__ = ()


class BoolKey:
    """True or false as a key. Python's own `True` would equal 1."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


_TRUE: Final = BoolKey(True)
_FALSE: Final = BoolKey(False)


class Type:
    """A type as a value: `type(1) == int`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_NAMES: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    MadeList: "list",
    dict: "map",
    MadeMap: "map",
    type(None): "null_type",
    datetime: "google.protobuf.Timestamp",
    timedelta: "google.protobuf.Duration",
    Type: "type",
}
TYPES: Final[Mapping[str, Type]] = {name: Type(name) for name in _NAMES.values()}
_NUMBERS: Final = frozenset({int, UInt, float})
_ORDERED: Final = frozenset({str, bytes, bool, datetime, timedelta})


def name_of(value: Any) -> str:
    """Return the name of a value's type."""
    name = _NAMES.get(type(value))
    if name is None:  # a subclass of a JSON type, from a decoder or from a user
        name = next((_NAMES[base] for base in type(value).__mro__ if base in _NAMES), type(value).__name__)
    return name


def shown(value: Any) -> str:
    """Return a value as a short text for messages. If a number takes long to write, it is not shown."""
    if isinstance(value, int) and not INT_MIN <= value <= UINT_MAX:
        return "a number of more than 64 bits"
    if isinstance(value, str | bytes):
        return repr(value[:60])
    if isinstance(value, list | dict):
        return f"a {name_of(value)}"
    return repr(int(value) if type(value) is UInt else value)[:60]


def no_overload(what: str, *values: Any) -> EvaluationFailed:
    types = " and ".join(map(name_of, values))
    hint = ""
    if len({name_of(value) for value in values}) > 1 and all(type(value) in _NUMBERS for value in values):
        hint = "; CEL converts no numbers by itself: use int(…), uint(…) or double(…)"
    return EvaluationFailed(f"No such overload: {what} of {types}{hint}")


# ---------------------------------------------------------------------------------------------------------------------
# Equality and order


def equal(frame: Frame, one: Any, other: Any, depth: int = 0) -> bool:
    """Return whether two values are equal. Numbers are compared by value, lists and objects by their contents."""
    kind, others = type(one), type(other)
    if kind in _NUMBERS:
        return others in _NUMBERS and bool(one == other)
    if kind is str or kind is bytes:
        if kind is not others or len(one) != len(other):
            return False
        frame.spend_text(len(one))
        return bool(one == other)
    if isinstance(one, list):
        if not isinstance(other, list) or len(one) != len(other):
            return False
        _go_deeper(frame, len(one), depth)
        return all(equal(frame, left, right, depth + 1) for left, right in zip(one, other, strict=True))
    if isinstance(one, dict):
        if not isinstance(other, dict) or len(one) != len(other):
            return False
        _go_deeper(frame, 2 * len(one), depth)
        return all(
            (right := other.get(key, MISSING)) is not MISSING and equal(frame, left, right, depth + 1)
            for key, left in one.items()
        )
    return kind is others and bool(one == other)


def _go_deeper(frame: Frame, count: int, depth: int) -> None:
    if depth >= VALUE_DEPTH_MAX:
        raise EvaluationFailed(f"what is compared nests deeper than {VALUE_DEPTH_MAX}")
    frame.spend(20 + 3 * count)


def is_less(frame: Frame, one: Any, other: Any, sign: str = "<") -> bool:
    """Return whether one value is less than another. Raises EvaluationFailed if the values cannot be ordered."""
    kind, others = type(one), type(other)
    if kind in _NUMBERS and others in _NUMBERS:
        return bool(one < other)
    if kind is not others or kind not in _ORDERED:
        raise no_overload(sign, one, other)
    if kind is str or kind is bytes:
        frame.spend_text(min(len(one), len(other)))
    return bool(one < other)


def is_at_most(frame: Frame, one: Any, other: Any, sign: str = "<=") -> bool:
    """Return whether one value is at most another. Raises EvaluationFailed if the values cannot be ordered."""
    kind, others = type(one), type(other)
    if kind in _NUMBERS and others in _NUMBERS:
        return bool(one <= other)
    return not is_less(frame, other, one, sign)


def contains(frame: Frame, value: Any, container: Any) -> bool:
    """Return the result of the operator `in`, which looks for a value in a list or for a key in an object."""
    if isinstance(container, list):
        kind = type(value)
        if kind is str:
            frame.spend(1 + len(container) // 4 + (1 + len(container)) * (len(value) // 256))
            return value in container
        if kind in _NUMBERS:
            frame.spend(1 + len(container) // 2)
            return any(type(one) in _NUMBERS and one == value for one in container)
        frame.spend(1 + len(container))
        return any(equal(frame, value, one) for one in container)
    if isinstance(container, dict):
        return key_of(value) in container
    raise no_overload("in", value, container)


class Members:
    """The values of a list, for quick look-ups. It has a set of the simple values, and a list of all other values."""

    __slots__ = ("_frame", "_others", "_simple")

    def __init__(self, frame: Frame, values: list[Any] = []) -> None:  # noqa: B006 - it is only iterated
        self._frame = frame
        self._simple: set[tuple[Any, Any]] = set()
        self._others: list[Any] = []
        for value in values:
            self.add(value)

    def add(self, value: Any) -> bool:
        """Add a value, and return whether it is new."""
        key = self._key(value)
        if key is None:
            if self._has(value):
                return False
            self._others.append(value)
            return True
        before = len(self._simple)
        self._simple.add(key)
        return len(self._simple) > before

    def __contains__(self, value: Any) -> bool:
        key = self._key(value)
        return self._has(value) if key is None else key in self._simple

    def _key(self, value: Any) -> tuple[Any, Any] | None:
        self._frame.spend(4)
        kind = type(value)
        if kind in _NUMBERS:
            return (float, value) if value == value else None  # Nothing is equal to NaN.
        if kind is str or kind is bytes:
            self._frame.spend_text(len(value))
        return (kind, value) if kind in _ORDERED or value is None else None

    def _has(self, value: Any) -> bool:
        self._frame.spend(1 + len(self._others))
        return any(equal(self._frame, value, one) for one in self._others)


# ---------------------------------------------------------------------------------------------------------------------
# Arithmetic


def _fit(value: int, kind: type) -> int:
    if kind is int:
        if INT_MIN <= value <= INT_MAX:
            return value
    elif 0 <= value <= UINT_MAX:
        return UInt(value)
    raise EvaluationFailed(f"an overflow: the {'int' if kind is int else 'uint'} would have more than 64 bits")


def add(frame: Frame, one: Any, other: Any) -> Any:
    kind = type(one)
    if kind is type(other):
        if kind is int or kind is UInt:
            return _fit(int(_checked(one) + _checked(other)), kind)
        if kind is float:
            return one + other
        if kind is str or kind is bytes:
            frame.spend_text(len(one) + len(other))
            return one + other
        if kind is timedelta:
            return _time(lambda: one + other)
    if isinstance(one, list) and isinstance(other, list):
        frame.spend(1 + (len(one) + len(other)) // 8)
        return MadeList([*one, *other])
    if (kind, type(other)) in ((datetime, timedelta), (timedelta, datetime)):
        return _time(lambda: one + other)
    raise no_overload("+", one, other)


def subtract(frame: Frame, one: Any, other: Any) -> Any:  # noqa: ARG001 - as all operators
    kind = type(one)
    if kind is type(other):
        if kind is int or kind is UInt:
            return _fit(int(_checked(one) - _checked(other)), kind)
        if kind is float:
            return one - other
        if kind is timedelta or kind is datetime:
            return _time(lambda: one - other)
    if kind is datetime and type(other) is timedelta:
        return _time(lambda: one - other)
    raise no_overload("-", one, other)


def multiply(frame: Frame, one: Any, other: Any) -> Any:  # noqa: ARG001 - as all operators
    kind = type(one)
    if kind is type(other):
        if kind is int or kind is UInt:
            return _fit(int(_checked(one) * _checked(other)), kind)
        if kind is float:
            return one * other
    raise no_overload("*", one, other)


def divide(frame: Frame, one: Any, other: Any) -> Any:  # noqa: ARG001 - as all operators
    kind = type(one)
    if kind is type(other):
        if kind is int or kind is UInt:
            if other == 0:
                raise EvaluationFailed("division by zero")
            whole = abs(_checked(one)) // abs(_checked(other))
            return _fit(-whole if (one < 0) is not (other < 0) else whole, kind)
        if kind is float:
            if other != 0:
                return one / other
            return one * float("inf") * (1 if str(other)[0] != "-" else -1) if one == one and one != 0 else float("nan")
    raise no_overload("/", one, other)


def remainder(frame: Frame, one: Any, other: Any) -> Any:  # noqa: ARG001 - as all operators
    kind = type(one)
    if kind is type(other) and (kind is int or kind is UInt):
        if other == 0:
            raise EvaluationFailed("modulo by zero")
        if (one, other) == (INT_MIN, -1):
            raise EvaluationFailed("an overflow: the int would have more than 64 bits")
        left = abs(_checked(one)) % abs(_checked(other))
        return _fit(-left if one < 0 else left, kind)
    raise no_overload("%", one, other)


def negate(value: Any) -> Any:
    if type(value) is int:
        return _fit(-_checked(value), int)
    if type(value) is float:
        return -value
    raise no_overload("-", value)


def _checked(value: int) -> int:
    """Return a number that came from the context. Raises EvaluationFailed if the number has too many digits to
    calculate with.
    """
    if not INT_MIN <= value <= UINT_MAX:
        raise EvaluationFailed("an overflow: an integer has more than 64 bits")
    return value


def _time(calculate: Callable[[], Any]) -> Any:
    try:
        return calculate()
    except OverflowError:
        raise EvaluationFailed("an overflow: the time or duration is out of range") from None


# ---------------------------------------------------------------------------------------------------------------------
# Keys and parts


def key_of(value: Any) -> Any:
    """Return a value as a key of an object. Raises EvaluationFailed."""
    kind = type(value)
    if kind is str or kind is int or kind is UInt:
        return value
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind is float and value.is_integer():
        return int(value)
    raise EvaluationFailed(f"a key of an object is a text, a whole number or a bool, not a {name_of(value)}")


def key_text(key: Any) -> str:
    """Return a key of an object as JSON text. `true` and `1` become texts, as in the JSON form of protocol buffers."""
    if type(key) is str:
        return key
    return ("true" if key.value else "false") if type(key) is BoolKey else str(int(key))


def keys_of(values: dict[Any, Any]) -> Iterator[Any]:
    return (key.value if type(key) is BoolKey else key for key in values)


def part_of(value: Any, key: Any) -> Any:
    """Return `value[key]`. Raises EvaluationFailed if that part does not exist."""
    if isinstance(value, dict):
        found = value.get(key_of(key), MISSING)
        if found is MISSING:
            raise EvaluationFailed(f"there is no {shown(key)}")
        return found
    if isinstance(value, list):
        if type(key) is float and key.is_integer():
            key = int(key)
        if type(key) is not int and type(key) is not UInt:
            raise EvaluationFailed(f"the index of a list is a whole number, not a {name_of(key)}")
        if not 0 <= key < len(value):
            raise EvaluationFailed(f"index out of bounds: {shown(key)} of {len(value)}")
        return value[key]
    raise no_overload("[…]", value)


# ---------------------------------------------------------------------------------------------------------------------
# Results

_FREE: Final = 16


class Result:
    """Converts the value of an expression to JSON's own types. Each part that the expression created is converted,
    which costs steps. Parts that come from the context stay unchanged. A part costs more if it occurs often in the
    result, because the result's JSON repeats it.
    """

    __slots__ = ("_frame", "_seen", "_sizes")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._seen: set[int] = set()
        self._sizes: dict[int, int] = {}

    def plain(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is float:
            return value
        if kind is str:
            if depth:
                self._frame.spend_text(len(value))
            return value
        if kind is MadeList or kind is MadeMap:
            return self._made(value, depth)
        if isinstance(value, dict | list):
            if depth:
                self._pay(value)
            return value
        if kind is UInt:
            return int(value)
        if kind is datetime:
            return value.isoformat()
        if kind is timedelta:
            return value.total_seconds()
        if kind is Type:
            return value.name
        if isinstance(value, str | int | float):
            return value
        raise EvaluationFailed(f"its value, of type {name_of(value)}, has no JSON form")

    def _made(self, value: Any, depth: int) -> Any:
        if depth >= VALUE_DEPTH_MAX:
            raise EvaluationFailed(f"its value nests deeper than {VALUE_DEPTH_MAX}")
        self._frame.spend(6 + 3 * len(value))
        if type(value) is MadeList:
            return [self.plain(one, depth + 1) for one in value]
        found: dict[str, Any] = {}
        for key, one in value.items():
            name = key_text(key)
            if name in found:
                raise EvaluationFailed(f"two keys of an object are both {shown(name)} in JSON, where keys are texts")
            found[name] = self.plain(one, depth + 1)
        return found

    def _pay(self, value: Any) -> None:
        """Spend the steps for a part of the context. A few parts are free, each of them once. This is safe, because a
        part is at most as large as the whole context.
        """
        if id(value) not in self._seen and len(self._seen) < _FREE:
            self._seen.add(id(value))
            return
        if id(value) not in self._sizes:
            self._sizes[id(value)] = _size(self._frame, value)
        self._frame.spend(self._sizes[id(value)])


def _size(frame: Frame, value: Any) -> int:
    """Return the approximate size of a value, in steps."""
    size, parts = 0, [value]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            frame.spend(1 + len(part) // 2)
            size += 1 + len(part) // 2
            parts.extend(part.values())
        elif isinstance(part, list):
            frame.spend(1 + len(part) // 4)
            size += 1 + len(part) // 4
            parts.extend(part)
        elif isinstance(part, str):
            size += len(part) // 64
    return size
