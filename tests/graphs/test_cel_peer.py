"""Expressions beside another implementation of CEL (common-expression-language, in Rust), over generated ones.

Both must give the same value, or both an error. Left out is what that implementation does otherwise than CEL's
specification says: it counts texts in bytes, goes through objects in any order, gives up `all` and `exists` at the
first error, compares integers as doubles, wraps when it negates the smallest integer, and shows times and durations its
own way (tests/graphs/test_cel.py has these).
"""

from __future__ import annotations

import math
import re
from typing import Any

import cel
import pytest
from cel.stdlib import add_stdlib_to_context
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perdure.models.graphs.cel.budget import EvaluationFailed, Frame
from perdure.models.graphs.cel.compiler import Program
from perdure.models.graphs.cel.patterns import compiled

FAILED = object()
TEXT = "abcXYZ ,-"

# What a context has: each name with values of one type, so that much of what is generated is well typed.
CONTEXT = st.fixed_dictionaries({
    "i": st.integers(-5, 5),
    "j": st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "d": st.sampled_from([0.0, 1.0, -1.5, 0.1, 1e20, 2.5]),
    "s": st.text(TEXT, max_size=6),
    "t": st.text(TEXT, max_size=2),
    "b": st.booleans(),
    "n": st.none(),
    "l": st.lists(st.integers(-3, 3), max_size=4),
    "w": st.lists(st.text(TEXT, max_size=3), max_size=4),
    "x": st.lists(st.one_of(st.integers(-2, 2), st.text("ab", max_size=1), st.none(), st.floats(0, 1)), max_size=3),
    "m": st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3),
    "o": st.fixed_dictionaries({"p": st.fixed_dictionaries({"q": st.integers(0, 3)})}),
})  # fmt: skip


def joined(*parts: Any) -> st.SearchStrategy[str]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


def typed(depth: int) -> dict[str, st.SearchStrategy[str]]:
    """Expressions by the type of their value; now and then one of another type."""
    ints = [st.sampled_from(["state.i", "state.j", "state.o.p.q", "state['i']", "0", "1", "-2", "3u", "0x10"])]
    doubles = [st.sampled_from(["state.d", "1.5", "-0.5", "2e3", ".25"])]
    texts = [st.sampled_from(["state.s", "state.t", "'a'", '"b,c"', "r'\\d'", "'\\u0061\\t'", "''"])]
    bools = [st.sampled_from(["state.b", "true", "false", "has(state.i)", "has(state.nope)", "has(state.m.a)"])]
    lists = [st.sampled_from(["state.l", "state.w", "state.x", "[]", "[1, 2]", "['a']", "state.nope"])]
    if depth:
        inner = typed(depth - 1)
        one, other, text, bool_, list_ = (inner[name] for name in ("int", "double", "text", "bool", "list"))
        anything = inner["any"]
        sign = st.sampled_from([" + ", " - ", " * ", " / ", " % "])
        relation = st.sampled_from([" == ", " != ", " < ", " <= ", " > ", " >= "])
        ints += [
            joined("(", one, sign, one, ")"),
            joined("(", one, sign, one, sign, one, ")"),
            joined("size(", list_, ")"),
            joined(text, ".size()"),
            joined(text, ".indexOf(", text, ")"),
            joined("int(", st.one_of(other, text, one), ")"),
            joined("(", bool_, " ? ", one, " : ", one, ")"),
            joined("math.greatest(", one, ", ", one, ")"),
            joined(list_, "[", one, "]"),
            joined("duration('", st.sampled_from(["1h", "90s", "1m30s", "100ms", "x"]), "').getSeconds()"),
            joined("timestamp('2030-0", st.sampled_from("139"), "-04T05:06:07Z').getDayOfYear()"),
        ]
        doubles += [
            joined("(", other, st.sampled_from([" + ", " - ", " * ", " / "]), other, ")"),
            joined("double(", st.one_of(one, text), ")"),
            joined("math.", st.sampled_from(["ceil", "floor", "round", "trunc", "abs"]), "(", other, ")"),
        ]
        texts += [
            joined("(", text, " + ", text, ")"),
            joined("string(", st.one_of(one, text), ")"),
            joined(text, st.sampled_from([".upperAscii()", ".lowerAscii()", ".trim()", ".reverse()"])),
            joined(text, ".replace(", text, ", ", text, ")"),
            joined(text, ".substring(", st.sampled_from(["0", "1", "1, 2", "2, 1"]), ")"),
            joined("state.w.join(", text, ")"),
        ]
        bools += [
            joined("(", anything, relation, anything, ")"),
            joined("(", one, relation, one, ")"),
            joined("(", text, relation, text, ")"),
            joined("(", bool_, st.sampled_from([" && ", " || "]), bool_, ")"),
            joined("(", bool_, " && ", anything, " && ", bool_, ")"),
            joined("!", bool_),
            joined("(", anything, " in ", list_, ")"),
            joined("(", text, " in state.m)"),
            joined(text, st.sampled_from([".contains(", ".startsWith(", ".endsWith("]), text, ")"),
            joined(list_, ".exists_one(e, e", relation, anything, ")"),
            joined(
                "state.l.", st.sampled_from(["all", "exists"]), "(e, e", relation, st.sampled_from(["0", "1.5"]), ")"
            ),
        ]
        lists += [
            joined("[", anything, ", ", anything, "]"),
            joined(list_, ".map(e, [e, ", anything, "])"),
            joined(list_, ".map(e, e", relation, anything, ", e)"),
            joined(list_, ".filter(e, e", relation, anything, ")"),
            joined("(", list_, " + ", list_, ")"),
            joined(text, ".split(", text, ")"),
            joined(list_, st.sampled_from([".reverse()", ".flatten()", ".slice(0, 1)", ".sort()"])),
            joined("[{'k': ", anything, "}]"),
        ]
    groups = {"int": ints, "double": doubles, "text": texts, "bool": bools, "list": lists}
    found = {name: st.one_of(parts) for name, parts in groups.items()}
    found["any"] = st.one_of(*found.values(), st.sampled_from(["null", "state.n", "state.m", "state.o", "b'a'"]))
    return found


EXPRESSIONS = typed(3)["any"]


class Given:
    def __init__(self, state: Any) -> None:
        self._state = state

    def root(self, name: str) -> Any:
        return self._state if name == "state" else {}


def ours(source: str, state: Any) -> Any:
    try:
        return Program(source, ("state",)).evaluate(Given(state))
    except EvaluationFailed:
        return FAILED


def theirs(source: str, state: Any) -> Any:
    context = cel.Context({"state": state})
    add_stdlib_to_context(context)
    try:
        return plain(cel.compile(source).execute(context))
    except Exception:  # noqa: BLE001 - it raises what fits best
        return FAILED


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        raise TypeError("no JSON form")
    return value


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


def is_left_out(source: str, state: Any) -> bool:
    """Where the other one is known to differ: see above."""
    is_near = any(abs(value) > 2**52 for value in (state["i"], state["j"]))
    return (
        (is_near and ("state.d" in source or "." in re.sub(r"[a-z]\.", "", source)))  # integers beside doubles
        or "nan" in source.lower()
        # What its extensions give is never unsigned.
        or ("3u" in source and re.search(r"greatest|sort|slice|flatten|reverse", source) is not None)
        or re.search(r"(?<!state\.[lw])\.sort\(\)", source) is not None  # It sorts lists by what is in them.
    )


@settings(max_examples=600, deadline=None)
@given(source=EXPRESSIONS, state=CONTEXT)
def test_both_give_the_same_value_or_both_an_error(source: str, state: Any) -> None:
    assume(not is_left_out(source, state))
    mine, other = ours(source, state), theirs(source, state)
    assert is_same(mine, other) if mine is not FAILED else other is FAILED, (source, state, mine, other)


# ---------------------------------------------------------------------------------------------------------------------
# Patterns


def patterns(depth: int) -> st.SearchStrategy[str]:
    simple = st.sampled_from([
        "a", "b", "A", ".", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "[ab]", "[^a]", "[a-b0-9]", "[^\\d]", "[\\w-]",
        "[]a]", "\\.", "\\x61", "\\n", "-", " ", "_", "[[:alpha:]]", "[^[:digit:]b]",
    ])  # fmt: skip
    if not depth:
        return simple
    inner = patterns(depth - 1)
    return st.one_of(
        simple,
        joined(inner, inner),
        joined("(", inner, "|", inner, ")"),
        joined("(?:", inner, ")", st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "+?"])),
        joined("(?i:", inner, ")"),
        joined("(?s:", inner, ")"),
        joined(st.sampled_from(["^", "\\A", "\\b", "\\B", ""]), inner, st.sampled_from(["$", "\\z", "\\b", ""])),
        joined("(?m)", "^", inner, "$"),
    )


@settings(max_examples=600, deadline=None)
@given(pattern=patterns(3), text=st.text("abA1_ -\n.", max_size=12))
def test_a_pattern_matches_what_the_other_one_says(pattern: str, text: str) -> None:
    """Of ASCII: in the other one the classes have all of Unicode in them."""
    mine = compiled(pattern, None).is_in(text, Frame(None, 0, 10**9))
    other = cel.compile("state.t.matches(state.p)").execute({"state": {"t": text, "p": pattern}})
    assert mine is other, (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,}$", "ada@lovelace.org", True),
        ("^[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,}$", "ada@lovelace", False),
        ("(?i)straße", "STRAßE", True),
        ("(?i)[^k]", "K", False),
        ("^\\pL+$", "Ωmega", True),
        ("^\\p{Lu}\\P{Lu}+$", "Ωmega", True),
        ("^\\w$", "ä", False),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        ("a$", "a\n", False),
        ("(?m)a$", "a\n", True),
        ("", "", True),
        ("x*", "", True),
        ("^$", "a", False),
        ("a{2}b{0}", "aa", True),
        ("[\\]]", "]", True),
        ("a{,2}", "a{,2}", True),
        ("(?P<year>\\d{4})-(?<month>\\d\\d)", "on 2030-01", True),
        ("\\bcat\\b", "a cat.", True),
        ("\\bcat\\b", "concat", False),
    ],
)
def test_what_a_pattern_matches(pattern: str, text: str, matches: bool) -> None:
    assert compiled(pattern, None).is_in(text, Frame(None, 0)) is matches


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^(a+)+$", "a" * 5_000 + "!"),
        ("^(a|a)*$", "a" * 5_000 + "!"),
        ("^(a|aa)+$", "a" * 5_000 + "!"),
        ("(x+x+)+y", "x" * 5_000),
        ("^(.*a){12}$", "a" * 2_000 + "!"),
        ("(a*)*(a*)*(a*)*b", "a" * 5_000),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 5_000),
    ],
)
def test_patterns_that_make_others_go_back_take_linear_time(pattern: str, text: str) -> None:
    def steps(length: int) -> int:
        frame = Frame(None, 0, 10**9)
        assert compiled(pattern, frame).is_in(text[-length:], frame) is False
        return 10**9 - frame.left

    assert steps(len(text)) < 200_000
    assert steps(len(text)) < 2.2 * steps(len(text) // 2) + 1_000
