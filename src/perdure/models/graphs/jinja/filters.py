"""The filters, tests, functions and methods that a template calls by name. Each spends its steps before its work."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from functools import cmp_to_key
from typing import Any, Final
from urllib.parse import quote

from perdure.models.graphs.jinja.budget import Frame, RenderingFailed, Undefined
from perdure.models.graphs.jinja.values import (
    MISSING,
    Fields,
    Function,
    attribute,
    calculated,
    equal,
    is_in,
    is_less,
    item,
    items_in,
    kind_of,
    need,
    repeated,
    text_of,
    truth,
)
from perdure.models.graphs.text_search import last_index, search_chars
from perdure.values.arguments import shown

Filter = Callable[..., Any]
_INDENT_MAX: Final = 100
_ERROR_STEPS: Final = 10  # the cost of an exception, in steps
_RANGE_MAX: Final = 100_000
_PATH_CHARS_MAX: Final = 1_000
_FORMAT_OPTIONS: Final = frozenset(".0123456789")
_FORMAT_OPTIONS_MAX: Final = 3
_FORMAT_SHOWN_CHARS: Final = 20
_ESCAPED_CHARS_MAX: Final = 6  # `"` becomes `&quot;`, which has six characters
_BYTES_PER_STEP: Final = 4  # the bytes of a URL are examined one by one
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
FILTERS: Final[dict[str, Filter]] = {}
TESTS: Final[dict[str, Filter]] = {}


def _filter(*names: str) -> Callable[[Filter], Filter]:
    def add(function: Filter) -> Filter:
        for name in names:
            FILTERS[name] = function
        return function

    return add


def _text(frame: Frame, value: Any) -> str:
    """Return a value as a text for further processing."""
    text = text_of(frame, value)
    frame.spend_text(len(text))
    return text


def _whole(value: Any, what: str) -> int:
    if isinstance(need(value), bool) or not isinstance(value, int):
        raise RenderingFailed(f"{what} is a whole number, not {shown(value)}")
    return int(value)


def _plain(change: Callable[[str], str]) -> Filter:
    return lambda frame, value: change(_text(frame, value))


for _names, _change in (
    (("upper",), str.upper),
    (("lower",), str.lower),
    (("capitalize",), lambda text: text[:1].upper() + text[1:].lower()),
    (("safe", "string"), str),
):
    _filter(*_names)(_plain(_change))


@_filter("escape", "e")
def _escape(frame: Frame, value: Any) -> str:
    text = _text(frame, value)
    frame.spend_text(_ESCAPED_CHARS_MAX * len(text))
    return html.escape(text)


@_filter("title")
def _title(frame: Frame, value: Any) -> str:
    text = _text(frame, value)
    frame.spend(len(text))
    found, is_inside = [], False
    for char in text:
        found.append(char.lower() if is_inside else char.upper())
        is_inside = not (char.isspace() or char in "-([{<")
    return "".join(found)


def _stripped(strip: Callable[[str, str | None], str]) -> Filter:
    def changed(frame: Frame, value: Any, chars: Any = None) -> str:
        text = _text(frame, value)
        if chars is None:
            return strip(text, None)
        given = _text(frame, chars)
        frame.spend(len(given) // 4)
        # For each character of the text, Python searches all these characters.
        wanted = "".join(dict.fromkeys(given))
        frame.spend_text(len(text) * len(wanted))
        return strip(text, wanted)

    return changed


_filter("trim")(_stripped(str.strip))


def _searched(frame: Frame, value: Any, wanted: Any) -> tuple[str, str]:
    """Return a text, and the part to search for, after spending the cost of a search through the whole text."""
    text, part = _text(frame, value), _text(frame, wanted)
    frame.spend_text(search_chars(text, part))
    return text, part


def _count(frame: Frame, value: Any, wanted: Any) -> int:
    text, part = _searched(frame, value, wanted)
    return text.count(part)


def _find(frame: Frame, value: Any, wanted: Any) -> int:
    text, part = _searched(frame, value, wanted)
    return text.find(part)


def _find_last(frame: Frame, value: Any, wanted: Any) -> int:
    text, part = _searched(frame, value, wanted)
    return last_index(text, part)


@_filter("replace")
def _replace(frame: Frame, value: Any, old: Any, new: Any) -> str:
    after = _text(frame, new)
    text, before = _searched(frame, value, old)
    frame.spend_text(search_chars(text, before) + text.count(before) * len(after))
    return text.replace(before, after)


@_filter("indent")
def _indent(frame: Frame, value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:
    text = _text(frame, value)
    frame.spend(text.count("\n"))
    lines = text.removesuffix("\n").split("\n")
    width = max(0, _whole(width, "the width of indent"))
    frame.spend_text(len(text) + len(lines) * width)
    pad = " " * width
    return "\n".join(pad + line if (number or first) and (line or blank) else line for number, line in enumerate(lines))


@_filter("truncate")
def _truncate(frame: Frame, value: Any, length: Any = 255, killwords: Any = False, end: Any = "...") -> str:
    text, tail = _text(frame, value), _text(frame, end)
    length = _whole(length, "the length of truncate")
    if len(text) <= length:
        return text
    short = text[: max(0, length - len(tail))]
    return (short if killwords or " " not in short else short.rpartition(" ")[0]) + tail


@_filter("split")
def _split(frame: Frame, value: Any, by: Any = None, most: Any = None) -> list[str]:
    most = -1 if most is None else _whole(most, "how often to split")
    text, separator = (_text(frame, value), None) if by is None else _searched(frame, value, by)
    if separator == "":
        frame.spend(len(text))
        return list(text)
    # Make at most one part more than the budget can pay for. If that part exists, the budget is exceeded.
    found = text.split(separator, min(most, frame.left) if most >= 0 else frame.left)
    frame.spend(len(found))
    return found


@_filter("lines")
def _lines(frame: Frame, value: Any) -> list[str]:
    text = _text(frame, value)
    frame.spend_text(4 * len(text))
    frame.spend(1 + sum(map(text.count, _LINE_ENDS)))
    return text.splitlines()


@_filter("wordcount")
def _word_count(frame: Frame, value: Any) -> int:
    return len(_split(frame, value))


@_filter("urlencode")
def _url_encode(frame: Frame, value: Any) -> str:
    if isinstance(value, Mapping):
        return "&".join(f"{_quoted(frame, key)}={_quoted(frame, one)}" for key, one in value.items())
    return _quoted(frame, value)


def _quoted(frame: Frame, value: Any) -> str:
    text = _text(frame, value)
    bytes_max = len(text) if text.isascii() else 4 * len(text)
    frame.spend(bytes_max // _BYTES_PER_STEP)
    return quote(text, safe="/")


@_filter("format")
def _format(frame: Frame, value: Any, *given: Any) -> str:
    """Format like Python's `%` operator, without widths: `%s`, `%d`, `%f`, `%.2f`, `%x`, `%%`."""
    text, out, at, rest = _text(frame, value), [], 0, list(given)
    frame.spend(2 * text.count("%"))
    while (found := text.find("%", at)) >= 0:
        out.append(text[at:found])
        end = found + 1
        while text[end : end + 1] in _FORMAT_OPTIONS and end <= found + _FORMAT_SHOWN_CHARS:
            end += 1
        code, options = text[end : end + 1], text[found + 1 : end]
        if len(options) > _FORMAT_OPTIONS_MAX or not code or code not in "sdfxXeg%":
            raise RenderingFailed(f"format does not know {text[found : end + 1]!r:.20}")
        if code == "%":
            out.append("%")
        elif not rest:
            raise RenderingFailed("format has more places than values")
        else:
            one = rest.pop(0)
            out.append(f"%{options}{code}" % (_text(frame, one) if code == "s" else need(one)))
        at = end + 1
    out.append(text[at:])
    frame.spend_text(sum(map(len, out)))
    return "".join(out)


@_filter("tojson")
def _to_json(frame: Frame, value: Any, indent: Any = None) -> str:
    width = None if indent is None else min(_whole(indent, "the indent of tojson"), _INDENT_MAX)
    chars = frame.spend_value(value, 2)
    if width:
        frame.spend_value(value, 1 + width // 8)
    text = json.dumps(value, ensure_ascii=False, indent=width, default=dict)
    frame.spend_text(max(0, len(text) - chars))
    return text


@_filter("pprint")
def _pprint(frame: Frame, value: Any) -> str:
    frame.spend_text(frame.spend_value(value))
    return repr(value)


# Numbers.


@_filter("abs")
def _abs(_: Frame, value: Any) -> Any:
    if kind_of(need(value)) != "number":
        raise RenderingFailed(f"a {kind_of(value)} has no sign")
    return abs(value)


@_filter("round")
def _round(_: Frame, value: Any, digits: Any = 0) -> Any:
    digits = _whole(digits, "the digits of round")
    if kind_of(need(value)) != "number" or not -300 <= digits <= 300:
        raise RenderingFailed(f"{shown(value)} cannot be rounded to {digits} digits")
    if isinstance(value, int):
        return value
    shift = 10.0**digits
    scaled = value * shift
    whole = float(int(scaled + (0.5 if scaled >= 0 else -0.5))) if abs(scaled) < 2**53 else scaled
    return whole / shift


@_filter("int")
def _int(frame: Frame, value: Any, default: Any = MISSING) -> int:
    try:
        if isinstance(value, str):
            text = _text(frame, value).strip()
            if len(text) > 400:
                raise ValueError
            return int(text) if text.lstrip("+-").isdigit() else int(float(text))
        return int(need(value))
    except (ValueError, TypeError, OverflowError):
        return int(_else(frame, default, value, "whole number"))


@_filter("float")
def _float(frame: Frame, value: Any, default: Any = MISSING) -> float:
    try:
        frame.spend_text(8 * len(value) if isinstance(value, str) else 0)
        return float(need(value))
    except (ValueError, TypeError, OverflowError):
        return float(_else(frame, default, value, "number"))


def _else(frame: Frame, default: Any, value: Any, wanted: str) -> Any:
    """Return the default, because the value has a wrong type. Raises RenderingFailed if there is no default."""
    if default is MISSING:
        raise RenderingFailed(f"{shown(value)} is no {wanted}")
    frame.spend(_ERROR_STEPS)
    return default


@_filter("bool")
def _bool(_: Frame, value: Any) -> bool:
    return truth(value)


# Lists and objects.


@_filter("length", "count")
def _length(_: Frame, value: Any) -> int:
    if isinstance(need(value), str | list | tuple | Mapping):
        return len(value)
    raise RenderingFailed(f"a {kind_of(value)} has no length")


@_filter("default", "d")
def _default(_: Frame, value: Any, other: Any = "", even_if_false: Any = False) -> Any:
    return other if isinstance(value, Undefined) or (truth(even_if_false) and not value) else value


@_filter("list")
def _list(frame: Frame, value: Any) -> list[Any]:
    return items_in(frame, value)


@_filter("first")
def _first(frame: Frame, value: Any) -> Any:
    return _end(frame, value, 0)


@_filter("last")
def _last(frame: Frame, value: Any) -> Any:
    return _end(frame, value, -1)


def _end(frame: Frame, value: Any, at: int) -> Any:
    if isinstance(need(value), Mapping):
        frame.spend(len(value) // 8)
        value = list(value)
    if not isinstance(value, list | tuple | str):
        raise RenderingFailed(f"a {kind_of(value)} has no first and no last")
    return value[at] if value else Undefined("the first or the last of nothing", 0)


@_filter("reverse")
def _reverse(frame: Frame, value: Any) -> Any:
    if isinstance(value, str):
        return _text(frame, value)[::-1]
    return items_in(frame, value)[::-1]


@_filter("join")
def _join(frame: Frame, value: Any, by: Any = "", attribute: Any = None) -> str:
    items = items_in(frame, value)
    if attribute is not None:
        items = [_get(frame, one, attribute) for one in items]
    frame.spend(sum(not isinstance(one, str) for one in items))  # Writing a number takes longer than copying a text.
    by, texts = _text(frame, by), [text_of(frame, one) for one in items]
    frame.spend_text(sum(map(len, texts)) + len(by) * len(texts))
    return str(by).join(texts)


def _get(frame: Frame, value: Any, path: Any, default: Any = MISSING) -> Any:
    """Return the part of a value at a path, for example `a.b`."""
    if isinstance(path, int):
        found = item(need(value), path)
    else:
        path = text_of(frame, path)
        if len(path) > _PATH_CHARS_MAX:
            raise RenderingFailed(f"a field's path may have at most {_PATH_CHARS_MAX:,} characters, not {len(path):,}")
        frame.spend(3 + path.count("."))
        found = value
        for part in path.split("."):
            found = item(found, int(part)) if part.isdigit() else attribute(found, part)
            if found is MISSING:
                break
    if found is MISSING:
        return Undefined(str(path), 0) if default is MISSING else default
    return found


@_filter("attr")
def _attr(frame: Frame, value: Any, name: Any) -> Any:
    return _get(frame, need(value), name)


@_filter("items")
def _items(frame: Frame, value: Any) -> list[Any]:
    if not isinstance(need(value), Mapping):
        raise RenderingFailed(f"a {kind_of(value)} has no items")
    frame.spend(2 * len(value))
    return list(value.items())


@_filter("dictsort")
def _dict_sort(
    frame: Frame, value: Any, by: Any = "key", case_sensitive: Any = False, reverse: Any = False
) -> list[Any]:
    at = 1 if by == "value" else 0
    return _sorted(frame, _items(frame, value), lambda pair: pair[at], case_sensitive, reverse)


@_filter("sort")
def _sort(
    frame: Frame, value: Any, reverse: Any = False, case_sensitive: Any = False, attribute: Any = None
) -> list[Any]:
    items = items_in(frame, value)
    return _sorted(
        frame, items, lambda one: one if attribute is None else _get(frame, one, attribute), case_sensitive, reverse
    )


def _sorted(frame: Frame, items: list[Any], key: Callable[[Any], Any], case_sensitive: Any, reverse: Any) -> list[Any]:
    keys = []
    for one in items:
        found = need(key(one))
        keys.append(_text(frame, found).lower() if isinstance(found, str) and not case_sensitive else found)
    if not any(isinstance(one, bool) or not isinstance(one, int) for one in keys) or _are_texts(frame, keys):
        frame.spend(len(keys) * len(keys).bit_length() // 4)
        order = sorted(range(len(items)), key=keys.__getitem__, reverse=bool(reverse))
        return [items[at] for at in order]

    def compared(one: int, other: int) -> int:
        frame.spend(4)
        return -1 if is_less(frame, keys[one], keys[other]) else int(is_less(frame, keys[other], keys[one]))

    order = sorted(range(len(items)), key=cmp_to_key(compared), reverse=bool(reverse))
    return [items[at] for at in order]


def _are_texts(frame: Frame, keys: list[Any]) -> bool:
    if not all(isinstance(one, str) for one in keys):
        return False
    frame.spend_text(sum(map(len, keys)) * len(keys).bit_length())
    return True


@_filter("min")
def _min(frame: Frame, value: Any) -> Any:
    return _most(frame, value, lambda one, best: is_less(frame, one, best))


@_filter("max")
def _max(frame: Frame, value: Any) -> Any:
    return _most(frame, value, lambda one, best: is_less(frame, best, one))


def _most(frame: Frame, value: Any, is_better: Callable[[Any, Any], bool]) -> Any:
    items = items_in(frame, value)
    best = items[0] if items else Undefined("the most of nothing", 0)
    for one in items[1:]:
        frame.spend(3)
        best = one if is_better(one, best) else best
    return best


@_filter("sum")
def _sum(frame: Frame, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for one in items_in(frame, value):
        frame.spend(3)
        found = one if attribute is None else _get(frame, one, attribute)
        total = calculated(frame, "+", total, found)
    return total


@_filter("unique")
def _unique(frame: Frame, value: Any, case_sensitive: Any = False, attribute: Any = None) -> list[Any]:
    seen: set[str] = set()
    found = []
    for one in items_in(frame, value):
        key = need(one if attribute is None else _get(frame, one, attribute))
        frame.spend(10)
        frame.spend_value(key)
        text = json.dumps(key.lower() if isinstance(key, str) and not case_sensitive else key, default=repr)
        if text not in seen:
            seen.add(text)
            found.append(one)
    return found


@_filter("batch")
def _batch(frame: Frame, value: Any, count: Any, fill: Any = None) -> list[list[Any]]:
    items, count = items_in(frame, value), _whole(count, "the size of a batch")
    if count < 1:
        raise RenderingFailed("batch needs a number of at least 1")
    found = [items[at : at + count] for at in range(0, len(items), count)]
    if found and fill is not None and (missing := count - len(found[-1])):
        found[-1] += repeated(frame, [fill], missing)
    return found


@_filter("slice")
def _slice(frame: Frame, value: Any, count: Any, fill: Any = None) -> list[list[Any]]:
    items, count = items_in(frame, value), _whole(count, "the number of slices")
    if count < 1:
        raise RenderingFailed("slice needs a number of at least 1")
    frame.spend(count)
    size, more = divmod(len(items), count)
    found: list[list[Any]] = []
    at = 0
    for number in range(count):
        length = size + (number < more)
        part = items[at : at + length]
        at += length
        found.append([*part, fill] if fill is not None and number >= more else part)
    return found


@_filter("zip")
def _zip(frame: Frame, value: Any, *others: Any) -> list[Any]:
    lists = [items_in(frame, one) for one in (value, *others)]
    return list(zip(*lists, strict=False))


@_filter("chain")
def _chain(frame: Frame, value: Any, *others: Any) -> list[Any]:
    return [one for part in (value, *others) for one in items_in(frame, part)]


@_filter("groupby")
def _group_by(frame: Frame, value: Any, attribute: Any, default: Any = MISSING) -> list[Any]:
    items = items_in(frame, value)
    ordered = _sorted(frame, items, lambda one: _get(frame, one, attribute, default), False, False)
    groups: list[tuple[Any, list[Any]]] = []
    for one in ordered:
        key = _get(frame, one, attribute, default)
        if not groups or not equal(frame, groups[-1][0], key):
            groups.append((key, []))
        groups[-1][1].append(one)
    return groups


@_filter("map")
def _map(frame: Frame, value: Any, name: Any = None, *given: Any, attribute: Any = None, default: Any = MISSING) -> Any:
    items = items_in(frame, value)
    if attribute is not None:
        return [need(_get(frame, one, attribute, default)) for one in items]
    function = _named(FILTERS, name, "filter")
    frame.spend(2 * len(items))
    return [function(frame, one, *given) for one in items]


def _named(among: Mapping[str, Filter], name: Any, what: str) -> Filter:
    if name not in among:
        raise RenderingFailed(f"there is no {what} {shown(name)}")
    return among[name]


def _selected(*, is_wanted: bool, has_attribute: bool) -> Filter:
    def select(frame: Frame, value: Any, *given: Any) -> list[Any]:
        rest = list(given)
        path = rest.pop(0) if has_attribute else None
        test = _named(TESTS, rest.pop(0), "test") if rest else _is_true
        found = []
        for one in items_in(frame, value):
            frame.spend(2)
            looked_at = _get(frame, one, path) if has_attribute else one
            if isinstance(looked_at, Undefined) and test is _is_true:
                looked_at = False
            if bool(test(frame, looked_at, *rest)) is is_wanted:
                found.append(one)
        return found

    return select


def _is_true(_: Frame, value: Any) -> bool:
    return truth(value)


_filter("select")(_selected(is_wanted=True, has_attribute=False))
_filter("reject")(_selected(is_wanted=False, has_attribute=False))
_filter("selectattr")(_selected(is_wanted=True, has_attribute=True))
_filter("rejectattr")(_selected(is_wanted=False, has_attribute=True))


# Tests.


def _test(names: str, function: Filter) -> None:
    for name in names.split():
        TESTS[name] = function


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_test("defined", lambda _, value: not isinstance(value, Undefined))
_test("undefined", lambda _, value: isinstance(value, Undefined))
_test("none", lambda _, value: value is None)
_test("boolean", lambda _, value: isinstance(value, bool))
_test("true", lambda _, value: value is True)
_test("false", lambda _, value: value is False)
_test("number", lambda _, value: _is_number(value))
_test("integer", lambda _, value: _is_number(value) and isinstance(value, int))
_test("float", lambda _, value: isinstance(value, float))
_test("string", lambda _, value: isinstance(value, str))
_test("mapping", lambda _, value: isinstance(value, Mapping))
_test("sequence", lambda _, value: isinstance(value, list | tuple))
_test("iterable", lambda _, value: isinstance(value, list | tuple | str | Mapping))
_test("odd", lambda _, value: _whole(value, "what is odd") % 2 == 1)
_test("even", lambda _, value: _whole(value, "what is even") % 2 == 0)
_test("divisibleby", lambda frame, value, by: calculated(frame, "%", value, by) == 0)
_test("eq equalto ==", equal)
_test("ne !=", lambda frame, value, other: not equal(frame, value, other))
_test("lt lessthan <", is_less)
_test("gt greaterthan >", lambda frame, value, other: is_less(frame, other, value))
_test("le <=", lambda frame, value, other: not is_less(frame, other, value))
_test("ge >=", lambda frame, value, other: not is_less(frame, value, other))
_test("in", is_in)
_test("startingwith", lambda frame, value, other: _text(frame, value).startswith(_text(frame, other)))
_test("endingwith", lambda frame, value, other: _text(frame, value).endswith(_text(frame, other)))
_test("lower", lambda frame, value: _text(frame, value).islower())
_test("upper", lambda frame, value: _text(frame, value).isupper())
_test("sameas", lambda _, value, other: need(value) is need(other))
_test("filter", lambda _, value: value in FILTERS)
_test("test", lambda _, value: value in TESTS)


# Methods of values, as in Python, and functions.


def _method(name: str) -> Filter:
    return FILTERS[name]


METHODS: Final[Mapping[type, Mapping[str, Filter]]] = {
    str: {
        "upper": _method("upper"),
        "lower": _method("lower"),
        "title": _method("title"),
        "capitalize": _method("capitalize"),
        "replace": _method("replace"),
        "split": _method("split"),
        "splitlines": _method("lines"),
        "strip": _method("trim"),
        "lstrip": _stripped(str.lstrip),
        "rstrip": _stripped(str.rstrip),
        "startswith": TESTS["startingwith"],
        "endswith": TESTS["endingwith"],
        "count": _count,
        "find": _find,
        "rfind": _find_last,
        "isdigit": lambda frame, text: _text(frame, text).isdigit(),
        "isalpha": lambda frame, text: _text(frame, text).isalpha(),
        "isalnum": lambda frame, text: _text(frame, text).isalnum(),
        "islower": TESTS["lower"],
        "isupper": TESTS["upper"],
        "isspace": lambda frame, text: _text(frame, text).isspace(),
        "join": lambda frame, text, items: _join(frame, items, text),
    },
    dict: {
        "items": _items,
        "keys": items_in,
        "values": lambda frame, value: [one for _, one in _items(frame, value)],
        "get": lambda _, value, key, default=None: default if (found := item(value, key)) is MISSING else found,
    },
    list: {
        "count": lambda frame, value, one: sum(equal(frame, one, other) for other in items_in(frame, value)),
    },
}


def _range(frame: Frame, begin: Any, end: Any = None, step: Any = 1) -> list[int]:
    begin, end = (0, begin) if end is None else (begin, end)
    numbers = range(_whole(begin, "a bound"), _whole(end, "a bound"), _whole(step, "the step") or 1)
    if len(numbers) > _RANGE_MAX:
        raise RenderingFailed(f"range has at most {_RANGE_MAX:,} numbers")
    frame.spend(len(numbers))
    return list(numbers)


def _dict(frame: Frame, first: Any = None, **fields: Any) -> dict[str, Any]:
    if first is not None and not isinstance(first, Mapping):
        raise RenderingFailed("dict takes an object and named values")
    frame.spend(len(first or ()) + len(fields))
    return {**(first or {}), **fields}


def _namespace(frame: Frame, first: Any = None, **fields: Any) -> Fields:
    return Fields("namespace", _dict(frame, first, **fields))


def _callable(name: str, function: Filter) -> Function:
    return Function(name, lambda frame, given, named: function(frame, *given, **named))


FUNCTIONS: Final[Mapping[str, Function]] = {
    "range": _callable("range", _range),
    "dict": _callable("dict", _dict),
    "namespace": _callable("namespace", _namespace),
}
