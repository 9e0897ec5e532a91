"""The functions that expressions may call: CEL's own functions, and the usual extensions for texts, numbers, sets and
lists.

Each function takes the frame, and spends the steps for its work before it does the work. The length of a text is its
number of characters (code points).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from perdure.models.graphs.cel import conversions, patterns
from perdure.models.graphs.cel.budget import EvaluationFailed, Frame
from perdure.models.graphs.cel.conversions import as_duration, as_timestamp, clock_part
from perdure.models.graphs.cel.values import (
    INT_MAX,
    INT_MIN,
    MISSING,
    TYPES,
    MadeList,
    Members,
    UInt,
    add,
    contains,
    is_less,
    name_of,
    no_overload,
    shown,
)
from perdure.models.graphs.text_search import last_index, search_chars

NAMESPACES: Final = frozenset({"math", "sets", "lists", "strings", "base64"})
_BITS: Final = 2**64 - 1


class Function:
    """A function, with its minimum and maximum number of arguments. `check` gets the arguments that are known before
    the evaluation.
    """

    __slots__ = ("call", "check", "fewest", "is_method", "most")

    def __init__(
        self,
        call: Callable[..., Any],
        fewest: int,
        most: int | None = None,
        *,
        is_method: bool = True,
        check: Callable[[Sequence[Any]], object] | None = None,
    ) -> None:
        self.call = call
        self.fewest = fewest
        self.most: float = fewest if most is None else most
        self.is_method = is_method
        self.check: Callable[[Sequence[Any]], object] = check or (lambda _: None)


# ---------------------------------------------------------------------------------------------------------------------
# Texts


def _texts(function: str, *given: Any) -> None:
    for one in given:
        if type(one) is not str:
            raise no_overload(function, *given)


def _numbers(function: str, *given: Any) -> None:
    for one in given:
        if type(one) is not int and type(one) is not UInt:
            raise no_overload(function, *given)


def _list(function: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise no_overload(function, given)
    return given


def _size(frame: Frame, value: Any) -> int:  # noqa: ARG001 - as all functions
    if isinstance(value, str | bytes | list | dict):
        return len(value)
    raise no_overload("size", value)


def _contains(frame: Frame, value: Any, wanted: Any) -> bool:
    if isinstance(value, list | dict):
        return contains(frame, wanted, value)
    _texts("contains", value, wanted)
    frame.spend_text(search_chars(value, wanted))
    return wanted in value


def _starts_with(frame: Frame, value: Any, wanted: Any) -> bool:
    _texts("startsWith", value, wanted)
    frame.spend_text(len(wanted))
    return bool(value.startswith(wanted))


def _ends_with(frame: Frame, value: Any, wanted: Any) -> bool:
    _texts("endsWith", value, wanted)
    frame.spend_text(len(wanted))
    return bool(value.endswith(wanted))


def _char_at(frame: Frame, value: Any, index: Any) -> str:  # noqa: ARG001 - as all functions
    _texts("charAt", value)
    _numbers("charAt", index)
    if not 0 <= index <= len(value):
        raise EvaluationFailed(f"charAt: there is no character {shown(index)} in a text of {len(value)}")
    return str(value[index : index + 1])


def _index_of(frame: Frame, value: Any, wanted: Any, start: Any = 0) -> int:
    _texts("indexOf", value, wanted)
    _between("indexOf", start, len(value))
    frame.spend_text(search_chars(value, wanted))
    return int(value.find(wanted, start))


def _last_index_of(frame: Frame, value: Any, wanted: Any, start: Any = None) -> int:
    _texts("lastIndexOf", value, wanted)
    start = len(value) if start is None else start
    _between("lastIndexOf", start, len(value))
    frame.spend_text(search_chars(value, wanted) + 4 * len(value))
    return last_index(value, wanted, start + len(wanted))


def _between(function: str, index: Any, length: int) -> None:
    _numbers(function, index)
    if not 0 <= index <= length:
        raise EvaluationFailed(f"{function}: {shown(index)} is not between 0 and {length}")


def _substring(frame: Frame, value: Any, start: Any, end: Any = None) -> str:
    _texts("substring", value)
    end = len(value) if end is None else end
    _between("substring", end, len(value))
    _between("substring", start, end)
    frame.spend_text(end - start)
    return str(value[start:end])


def _replace(frame: Frame, value: Any, old: Any, new: Any, limit: Any = -1) -> str:
    _texts("replace", value, old, new)
    _numbers("replace", limit)
    frame.spend_text(2 * search_chars(value, old))
    count = value.count(old)
    count = count if limit < 0 else min(count, limit)
    frame.spend_text(len(value) + 8 * count + count * len(new))
    return str(value.replace(old, new, count))


def _split(frame: Frame, value: Any, separator: Any, limit: Any = -1) -> MadeList:
    _texts("split", value, separator)
    _numbers("split", limit)
    frame.spend_text(2 * search_chars(value, separator))
    if limit == 0:
        return MadeList()
    count = len(value) if separator == "" else value.count(separator)
    count = count if limit < 0 else min(count, limit - 1)
    frame.spend(1 + count)
    if separator != "":
        return MadeList(value.split(separator, count))
    if count >= len(value):
        return MadeList(value)
    return MadeList([*value[:count], value[count:]])


def _join(frame: Frame, values: Any, separator: Any = "") -> str:
    _texts("join", separator)
    frame.spend(1 + len(_list("join", values)) // 2)
    for one in values:
        if type(one) is not str:
            raise no_overload("join", values, one)
    frame.spend_text(sum(map(len, values)) + len(separator) * len(values))
    return str(separator.join(values))


_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _upper_ascii(frame: Frame, value: Any) -> str:
    _texts("upperAscii", value)
    frame.spend_text((8 if value.isascii() else 48) * len(value))
    return str(value.upper() if value.isascii() else value.translate(_UPPER))


def _lower_ascii(frame: Frame, value: Any) -> str:
    _texts("lowerAscii", value)
    frame.spend_text((8 if value.isascii() else 48) * len(value))
    return str(value.lower() if value.isascii() else value.translate(_LOWER))


def _trim(frame: Frame, value: Any) -> str:
    _texts("trim", value)
    frame.spend_text(2 * len(value))
    return str(value.strip())


_QUOTES: Final = str.maketrans({
    "\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\v": "\\v",
})  # fmt: skip


def _quote(frame: Frame, value: Any) -> str:
    _texts("strings.quote", value)
    frame.spend_text(48 * len(value))
    return f'"{value.translate(_QUOTES)}"'


def _reverse(frame: Frame, value: Any) -> Any:
    if isinstance(value, list):
        frame.spend(1 + len(value) // 8)
        return MadeList(value[::-1])
    _texts("reverse", value)
    frame.spend_text(2 * len(value))
    return value[::-1]


def _matches(frame: Frame, value: Any, pattern: Any) -> bool:
    _texts("matches", value, pattern)
    return patterns.compiled(pattern, frame).is_in(value, frame)


def _check_pattern(given: Sequence[Any]) -> None:
    if isinstance(given[1], str):
        patterns.compiled(given[1], None)


# ---------------------------------------------------------------------------------------------------------------------
# Numbers


def _all_of(frame: Frame, given: Sequence[Any]) -> list[Any]:
    items = list(given[0]) if len(given) == 1 and isinstance(given[0], list) else list(given)
    frame.spend(1 + 3 * len(items))
    return items


def _greatest(name: str, sign: int) -> Callable[..., Any]:
    def find(frame: Frame, *given: Any) -> Any:
        items = _all_of(frame, given)
        if not items:
            raise EvaluationFailed(f"{name}: there is nothing to choose from")
        best = items[0]
        if len(items) == 1:
            is_less(frame, best, best, name)
        for one in items[1:]:
            if is_less(frame, best, one, name) if sign > 0 else is_less(frame, one, best, name):
                best = one
        return best

    return find


def _sum(frame: Frame, *given: Any) -> Any:
    items = _all_of(frame, given)
    if any(type(one) not in (int, UInt, float, timedelta) for one in items):
        raise no_overload("sum", *items[:3])
    if len({type(one) for one in items}) == 1:
        total = items[0]
        for one in items[1:]:
            total = add(frame, total, one)
        return total
    if any(isinstance(one, timedelta) for one in items):
        raise no_overload("sum", *items[:3])
    if any(type(one) is not float and not INT_MIN <= one <= _BITS for one in items):
        raise EvaluationFailed("an overflow: an integer has more than 64 bits")
    found = sum(items)
    if isinstance(found, int) and not INT_MIN <= found <= INT_MAX:
        raise EvaluationFailed("an overflow: the int would have more than 64 bits")
    return found


def _numeric(name: str, calculate: Callable[[Any], Any]) -> Function:
    def call(frame: Frame, value: Any) -> Any:  # noqa: ARG001 - as all functions
        if type(value) not in (int, UInt, float) or (type(value) is not float and not INT_MIN <= value <= _BITS):
            raise no_overload(name, value)
        return calculate(value)

    return Function(call, 1)


def _abs(value: Any) -> Any:
    if value == INT_MIN and type(value) is int:
        raise EvaluationFailed("an overflow: the int would have more than 64 bits")
    return value if type(value) is UInt else abs(value)


def _sign(value: Any) -> Any:
    if value != value:
        return value
    return type(value)((value > 0) - (value < 0))


def _rounded(how: Callable[[float], int]) -> Callable[[Any], float]:
    return lambda value: float(how(value)) if math.isfinite(value) else value


def _half_away(value: float) -> int:
    low = math.floor(value)
    return low + 1 if value - low > 0.5 or (value - low == 0.5 and value > 0) else low


def _bitwise(name: str, calculate: Callable[..., int], count: int) -> Function:
    def call(frame: Frame, *given: Any) -> int:  # noqa: ARG001 - as all functions
        _numbers(name, *given)
        if any(not INT_MIN <= one <= _BITS for one in given):
            raise EvaluationFailed("an overflow: an integer has more than 64 bits")
        found = calculate(*given) & _BITS
        if all(type(one) is UInt for one in given[:1]):
            return UInt(found)
        return found - 2**64 if found >= 2**63 else found

    return Function(call, count)


def _shift(one: int, by: int, left: bool) -> int:
    if by < 0:
        raise EvaluationFailed("a negative shift")
    if by >= 64:
        return 0
    return one << by if left else (one & _BITS) >> by


# ---------------------------------------------------------------------------------------------------------------------
# Lists and sets


def _distinct(frame: Frame, values: Any) -> MadeList:
    known = Members(frame)
    return MadeList([one for one in _list("distinct", values) if known.add(one)])


def _flatten(frame: Frame, values: Any, depth: Any = 1) -> MadeList:
    _numbers("flatten", depth)
    if not 0 <= depth <= 100:
        raise EvaluationFailed("flatten: the depth is between 0 and 100")
    made: list[Any] = _list("flatten", values)
    for _ in range(depth):
        frame.spend(1 + len(made) // 2)
        if not any(isinstance(one, list) for one in made):
            break
        frame.spend(1 + sum(len(one) if isinstance(one, list) else 1 for one in made))
        made = [inner for one in made for inner in (one if isinstance(one, list) else (one,))]
    frame.spend(1 + len(made) // 8)
    return MadeList(made)


def _slice(frame: Frame, values: Any, start: Any, end: Any) -> MadeList:
    _between("slice", end, len(_list("slice", values)))
    _between("slice", start, end)
    frame.spend(1 + (end - start) // 8)
    return MadeList(values[start:end])


def _sort(frame: Frame, values: Any) -> MadeList:
    rounds = len(_list("sort", values)).bit_length()
    frame.spend(1 + len(values) + len(values) * rounds // 4)
    if len(values) > 1:
        is_less(frame, values[0], values[0], "sort")
    kinds = {float if type(one) in (int, UInt) else type(one) for one in values}
    if len(kinds) > 1:
        raise no_overload("sort", values[0], next(one for one in values if name_of(one) != name_of(values[0])))
    if kinds & {str, bytes}:
        frame.spend_text(rounds * sum(map(len, values)))
    return MadeList(sorted(values))


def _range(frame: Frame, count: Any) -> MadeList:
    _numbers("lists.range", count)
    if count > 0:
        frame.spend(count)
    return MadeList(range(max(0, count)))


def _sets_contains(frame: Frame, values: Any, wanted: Any) -> bool:
    known = Members(frame, _list("sets.contains", values))
    return all(one in known for one in _list("sets.contains", wanted))


def _sets_equivalent(frame: Frame, one: Any, other: Any) -> bool:
    return _sets_contains(frame, one, other) and _sets_contains(frame, other, one)


def _sets_intersects(frame: Frame, one: Any, other: Any) -> bool:
    known = Members(frame, _list("sets.intersects", other))
    return any(value in known for value in _list("sets.intersects", one))


def _encode(frame: Frame, value: Any) -> str:
    frame.spend_text(8 * len(value) if isinstance(value, str | bytes) else 0)
    data = conversions.encoded("base64.encode", value) if type(value) is str else value
    if type(data) is not bytes:
        raise no_overload("base64.encode", value)
    return base64.b64encode(data).decode("ascii")


def _decode(frame: Frame, value: Any) -> bytes:
    _texts("base64.decode", value)
    frame.spend_text(8 * len(value))
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise EvaluationFailed(f"base64.decode: {error}") from None


def _type(frame: Frame, value: Any) -> Any:  # noqa: ARG001 - as all functions
    return TYPES[name_of(value)]


def _clock(name: str) -> Function:
    return Function(lambda frame, *given: clock_part(frame, name, *given), 1, 2)


_MANY: Final = 1_000
FUNCTIONS: Final[Mapping[str, Function]] = {
    "size": Function(_size, 1),
    "contains": Function(_contains, 2),
    "startsWith": Function(_starts_with, 2),
    "endsWith": Function(_ends_with, 2),
    "matches": Function(_matches, 2, check=_check_pattern),
    "type": Function(_type, 1, is_method=False),
    "dyn": Function(lambda frame, value: value, 1, is_method=False),  # noqa: ARG005 - as all functions
    "duration": Function(as_duration, 1, is_method=False),
    "timestamp": Function(as_timestamp, 1, is_method=False),
    **{name: Function(call, 1, is_method=False) for name, call in conversions.CONVERSIONS.items()},
    **{name: _clock(name) for name in conversions.CLOCK_PARTS},
    "charAt": Function(_char_at, 2),
    "indexOf": Function(_index_of, 2, 3),
    "lastIndexOf": Function(_last_index_of, 2, 3),
    "substring": Function(_substring, 2, 3),
    "replace": Function(_replace, 3, 4),
    "split": Function(_split, 2, 3),
    "join": Function(_join, 1, 2),
    "lowerAscii": Function(_lower_ascii, 1),
    "upperAscii": Function(_upper_ascii, 1),
    "trim": Function(_trim, 1),
    "reverse": Function(_reverse, 1),
    "strings.quote": Function(_quote, 1),
    "min": Function(_greatest("min", -1), 1, _MANY),
    "max": Function(_greatest("max", 1), 1, _MANY),
    "sum": Function(_sum, 1, _MANY),
    "math.greatest": Function(_greatest("math.greatest", 1), 1, _MANY),
    "math.least": Function(_greatest("math.least", -1), 1, _MANY),
    "math.abs": _numeric("math.abs", _abs),
    "math.sign": _numeric("math.sign", _sign),
    "math.ceil": _numeric("math.ceil", _rounded(math.ceil)),
    "math.floor": _numeric("math.floor", _rounded(math.floor)),
    "math.round": _numeric("math.round", _rounded(_half_away)),
    "math.trunc": _numeric("math.trunc", _rounded(math.trunc)),
    "math.isNaN": _numeric("math.isNaN", math.isnan),
    "math.isInf": _numeric("math.isInf", math.isinf),
    "math.isFinite": _numeric("math.isFinite", math.isfinite),
    "math.sqrt": _numeric("math.sqrt", lambda value: math.sqrt(value) if not value < 0 else math.nan),
    "math.bitOr": _bitwise("math.bitOr", lambda one, other: one | other, 2),
    "math.bitAnd": _bitwise("math.bitAnd", lambda one, other: one & other, 2),
    "math.bitXor": _bitwise("math.bitXor", lambda one, other: one ^ other, 2),
    "math.bitNot": _bitwise("math.bitNot", lambda one: ~one, 1),
    "math.bitShiftLeft": _bitwise("math.bitShiftLeft", lambda one, by: _shift(one, by, True), 2),
    "math.bitShiftRight": _bitwise("math.bitShiftRight", lambda one, by: _shift(one, by, False), 2),
    "sets.contains": Function(_sets_contains, 2),
    "sets.equivalent": Function(_sets_equivalent, 2),
    "sets.intersects": Function(_sets_intersects, 2),
    "base64.encode": Function(_encode, 1),
    "base64.decode": Function(_decode, 1),
    "distinct": Function(_distinct, 1),
    "flatten": Function(_flatten, 1, 2),
    "slice": Function(_slice, 3),
    "sort": Function(_sort, 1),
    "lists.range": Function(_range, 1),
}

__all__ = ["FUNCTIONS", "MISSING", "NAMESPACES", "Function"]
