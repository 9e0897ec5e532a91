"""CEL's own rules: types, operators, macros, errors, functions. Where a rule is CEL's specification, not a choice of
ours, the case says what the specification says."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import ExpressionFailed, InvalidDefinition
from perdure.models.graphs.expressions import Expression

STATE = {
    "one": 1,
    "double": 1.5,
    "text": "tide",
    "big": 2**80,
    "none": None,
    "list": [1, 2, 3],
    "map": {"b": 1, "a": {"deep": True}},
    "true": True,
}


class Given:
    def root(self, name: str) -> Any:
        return STATE if name == "state" else {}


def evaluated(source: str) -> Any:
    return Expression(source, "here").evaluate(Given())


@pytest.mark.parametrize(
    ("source", "value"),
    [
        # Numbers of different types are compared by value, also beyond what a double can tell apart.
        ("1 == 1.0 && 1u == 1 && 1 < 1.5 && 2u > 1.5", True),
        ("9007199254740993 == 9007199254740992.0", False),
        ("9223372036854775807 < 9223372036854775808.0", True),
        ("[1, 2] == [1.0, 2u] && {'a': 1} == {'a': 1.0}", True),
        ("true == 1 || 'a' == b'a' || null == false", False),
        ("1 in [true] || true in [1]", False),
        ("double('NaN') == double('NaN') || double('NaN') < 1.0 || double('NaN') >= 1.0", False),
        ("5.0 / 0.0 > 1.0 && -5.0 / 0.0 < 1.0 && 5.0 / -0.0 < 1.0", True),
        ("7 / 2 == 3 && -7 / 2 == -3 && -7 % 2 == -1 && 7 % -2 == 1", True),
        ("-9223372036854775808", -(2**63)),
        ("18446744073709551615u", 2**64 - 1),
        ("0xFF + -0x0F", 240),
        (".5 + 1e3 + 1.5E-1", 1000.65),
        ("2--1", 3),
        ("---1", -1),
        # Precedence and grouping.
        ("1 + 2 * 3 - 4 / 2 % 2", 7),
        ("10 - 2 - 3", 5),
        ("true || false && false", True),
        ("!true || !false", True),
        ("1 < 2 == true", True),
        ("false ? 1 : true ? 2 : 3", 2),
        ("[1, 2,]", [1, 2]),
        ("{'a': 1,}.a", 1),
        # One operand that decides is enough.
        ("true || 1 / 0 > 0", True),
        ("1 / 0 > 0 || true", True),
        ("false && 1 / 0 > 0", False),
        ("1 / 0 > 0 && false", False),
        ("'no bool' || true", True),
        ("[0, 1].exists(x, 1 / x > 0)", True),
        ("[0, 1].all(x, 1 / x > 5)", False),
        # Macros.
        ("[].all(x, x > 0) && ![].exists(x, x > 0) && ![].exists_one(x, true)", True),
        ("[1, 2, 3].map(x, x > 1, x * x)", [4, 9]),
        ("[1, 2].map(x, [3, 4].map(y, x * y))", [[3, 4], [6, 8]]),
        ("[1, 2].map(x, [3].map(x, x))", [[3], [3]]),
        ("[[1], [2]].map(state, state[0])", [1, 2]),
        ("state.map.map(k, k)", ["b", "a"]),
        ("{'z': 1, 'a': 2}.filter(k, k != '')", ["z", "a"]),
        ("[1, 2, 2].exists_one(x, x == 2) || ![1, 2].exists_one(x, x == 2)", False),
        # Fields, keys, indexes.
        ("has(state.none) && !has(state.nope) && has(state.map.a.deep)", True),
        ("state['map']['a'].deep", True),
        ("{1: 'a', true: 'b', 'x': 'c'}[true]", "b"),
        ("{1: 'a', true: 'b'}.size()", 2),
        ("{1: 'a'}[1u] + {1u: 'b'}[1] + {1: 'c'}[1.0]", "abc"),
        ("true in {true: 1} && !(1 in {true: 1})", True),
        ("[1, 2][1u] + [1, 2][0.0]", 3),
        ("state.big == state.big && state.big > 1", True),
        # Texts are counted in characters.
        ("'tïde😀'.size()", 5),
        ("'äöü'.substring(1, 2) + 'a😀b'.charAt(1)", "ö😀"),
        ("'abcabc'.indexOf('c', 3) + 'abcabc'.lastIndexOf('c', 4)", 7),
        ("'a,b,c'.split(',', 2)", ["a", "b,c"]),
        ("'ab'.split('')", ["a", "b"]),
        ("'aXbX'.replace('X', '', 1)", "abX"),
        ("['a', 'b'].join('-') + ['c'].join()", "a-bc"),
        ("'Straße'.upperAscii() + 'ÄB'.lowerAscii()", "STRAßEÄb"),
        ('strings.quote("a\\"b\\n")', '"a\\"b\\n"'),
        ("'\\u00e4\\x41\\101\\t' + r'\\d' + \"\"\"a\"b\"\"\"", 'äAA\t\\da"b'),
        ("string(b'\\xc3\\xa4') + string(bytes('ö'))", "äö"),
        # Conversions.
        ("string(1.0) + ' ' + string(0.1) + ' ' + string(1e20) + ' ' + string(1e21) + ' ' + string(1.5e-9)",
         "1 0.1 100000000000000000000 1e+21 1.5e-09"),
        ("string(true) + string(1u) + string(-2)", "true1-2"),
        ("int('-12') + int(1.9) + int(-1.9) + int(3u)", -9),
        ("double('1e3') + double(2)", 1002.0),
        ("bool('t') && !bool('FALSE')", True),
        ("type(1) == int && type(1u) == uint && type([]) == list && type(type(1)) == type", True),
        ("type(null) == null_type && dyn(1) == 1", True),
        ("type(1.5)", "double"),
        # Times.
        ("timestamp('2030-01-01T02:00:00+02:00') == timestamp('2030-01-01T00:00:00Z')", True),
        ("timestamp('2030-03-04T23:06:07+05:00').getHours()", 18),
        ("timestamp('2030-03-04T23:06:07Z').getHours('+02:00') + timestamp(0).getFullYear()", 1971),
        ("timestamp('2030-03-04T05:06:07.089Z').getMonth()", 2),
        ("string(timestamp('2030-01-01T00:00:00.5Z') + duration('1h'))", "2030-01-01T01:00:00.5Z"),
        ("string(timestamp('2030-01-02T00:00:00Z') - timestamp('2030-01-01T00:00:00Z'))", "86400s"),
        ("string(duration('-1h30m0.5s')) + string(duration('1.5ms'))", "-5400.5s0.0015s"),
        ("duration('3661.5s').getMinutes() + duration('-90s').getMinutes()", 60),
        ("timestamp('2030-01-01T00:00:00Z')", "2030-01-01T00:00:00+00:00"),
        # Numbers, sets and lists.
        ("math.greatest(1, 2.5, 2u) + double(math.least([3, 1]))", 3.5),
        ("math.round(2.5) + math.round(-2.5) + math.ceil(1.1) + math.floor(-1.1) + math.trunc(-1.9)", -1.0),
        ("math.bitAnd(6, 3) + math.bitNot(0) + math.bitShiftRight(-1, 63)", 2),
        ("[1, 2].sum() + max(3, 4) + [].sum()", 7),
        ("sets.contains([1, 2], [2.0]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], ['1'])", True),
        ("[1, 1.0, '1', true, [1], [1]].distinct()", [1, "1", True, [1]]),
        ("[[1, [2]], 3].flatten() == [1, [2], 3] && [[1, [2]]].flatten(2) == [1, 2]", True),
        ("[3, 1, 2].sort() + ['b', 'a'].sort() + [1, 2, 3].slice(1, 2) + lists.range(2)", [1, 2, 3, "a", "b", 2, 0, 1]),
        ("[1, 2].reverse() == [2, 1] && 'ab'.reverse() == 'ba' && [1, 2].contains(2.0)", True),
        ("base64.encode(b'abc') + string(base64.decode('YWJj'))", "YWJjabc"),
        ("size('abc') + size([1]) + size({'a': 1}) + charAt('3', 0).size()", 6),
    ],
)  # fmt: skip
def test_what_an_expression_is(source: str, value: Any) -> None:
    found = evaluated(source)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 + 1.0", "No such overload: + of int and double; CEL converts no numbers by itself"),
        ("1 + 1u", "No such overload"),
        ("'a' + 1", "No such overload: + of string and int"),
        ("'a' * 2", "No such overload"),
        ("!1", "No such overload"),
        ("-'a'", "No such overload"),
        ("1 ? 2 : 3", "No such overload"),
        ("1 < 'a'", "No such overload"),
        ("[1] < [2]", "No such overload"),
        ("null < null", "No such overload"),
        ("1 || false", "No such overload"),
        ("1.5 % 1.0", "No such overload"),
        ("9223372036854775807 + 1", "overflow"),
        ("-9223372036854775808 - 1", "overflow"),
        ("-(-9223372036854775808)", "overflow"),
        ("-9223372036854775808 / -1", "overflow"),
        ("2u - 3u", "overflow"),
        ("18446744073709551615u * 2u", "overflow"),
        ("state.big + 1", "overflow"),
        ("string(state.big)", "overflow"),
        ("double(1e300) + double(state.big) > 0.0 ? int(1e30) : 1", "overflow"),
        ("1 / 0", "division by zero"),
        ("1u % 0u", "modulo by zero"),
        ("[1, 2][2]", "index out of bounds: 2 of 2"),
        ("[1, 2][-1]", "index out of bounds: -1 of 2"),
        ("[1, 2]['a']", "the index of a list is a whole number, not a string"),
        ("'abc'[0]", "No such overload"),
        ("{'a': 1}.b", "there is no 'b'"),
        ("{1: 2}[3]", "there is no 3"),
        ("{1.5: 2}", "a key of an object"),
        ("{'a': 1, 'a': 2}", "the key 'a' is there twice"),
        ("has(state.nope.deeper)", "there is no 'nope'"),
        ("has(state.one.deeper)", "No such overload: .deeper of int"),
        ("[0, 2].all(x, 2 / x > 0)", "division by zero"),
        ("[1].filter(x, x)", "No such overload: filter of int"),
        ("'abc'.map(x, x)", "No such overload: map of string"),
        ("'a' in 'abc'", "No such overload: in of string and string"),
        ("int('1.5')", "is no whole number"),
        ("int('1_0')", "is no whole number"),
        ("double('0x10')", "is no number"),
        ("bool('yes')", "neither true nor false"),
        ("string(b'\\xff')", "no UTF-8"),
        ("string([1])", "No such overload"),
        ("timestamp('2030-02-30T00:00:00Z')", "day is out of range"),
        ("timestamp('2030-01-01')", "is no time"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "out of range"),
        ("timestamp('2030-01-01T00:00:00Z').getHours('Europe/Berlin')", "a time zone is an offset from UTC"),
        ("duration('1d')", "is not a duration"),
        ("duration('9999999999h')", "longer than 10,000 years"),
        ("size(1)", "No such overload"),
        ("[1, 'a'].sort()", "No such overload: sort"),
        ("[1, 2].join(',')", "No such overload: join"),
        ("math.greatest(1, 'b')", "No such overload"),
        ("math.greatest([])", "nothing to choose from"),
        ("'abc'.substring(2, 1)", "is not between"),
        ("b'bytes'", "has no JSON form"),
        ("base64.decode('?')", "base64.decode"),
    ],
)  # fmt: skip
def test_what_is_an_error(source: str, why: str) -> None:
    with pytest.raises(ExpressionFailed) as failed:
        evaluated(source)
    assert str(failed.value).startswith(f"here: {source!r} failed: ")
    assert why in str(failed.value)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 ? 2", "it ends too early, where ':' should be"),
        ("true ? false ? 1 : 2 : 3", "unexpected"),
        ("(1", "it ends too early"),
        ("[1 2]", "'2' at character 4 is unexpected"),
        ("'a' 'b'", "unexpected"),
        ("'line\nbreak'", "a text that does not end"),
        ("'abc", "a text that does not end at character 1"),
        ('"""abc', "a text that does not end"),
        ("'\\q'", "stands for nothing"),
        ("'\\ud800'", "half a character"),
        ("b'\\u00e4'", "which is for texts"),
        ("9223372036854775808", "more than 64 bits"),
        ("-1u", "has no sign"),
        ("1.0e400", "too large for a double"),
        ("1.", "it ends too early"),
        ("state.if.in", "unexpected"),
        ("for + 1", "a word that CEL reserves"),
        ("a#b", "'#' at character 2"),
        ("Msg{a: 1}", "unexpected"),
        (".state", "unexpected"),
        ("has(1)", "has(…) is asked of a field"),
        ("[1].map(x)", "map(…) has 2 or 3 parts, not 1"),
        ("[1].all(x.y, true)", "the first part of all(…) is a name"),
        ("size(1, 2)", "unknown function 'size of 2 values'"),
        ("(1).int()", "unknown function 'int'"),
        ("math.pi()", "unknown function 'math.pi'"),
        ("math.greatest", "unknown name 'math'"),
        ("[1].first()", "unknown function 'first'"),
        ("'a'.matches('(')", "'(' is no pattern: it has a ( without its )"),
        ("'a'.matches('(?=a)')", "there is no such group"),
        ("'a'.matches('(a)\\\\1')", "there is no escape"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_source_is_said_when_the_graph_is_built(source: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        Expression(source, "here")
    assert str(refused.value).startswith("here: ")
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{true: 3, false: 4}", {"true": 3, "false": 4}),
        ("{1: 'a', -2: 'b', 3u: 'c'}", {"1": "a", "-2": "b", "3": "c"}),
        ("[{'inner': {true: {false: 1}}}]", [{"inner": {"true": {"false": 1}}}]),
    ],
)
def test_keys_are_texts_in_json(source: str, value: Any) -> None:
    assert evaluated(source) == value


@pytest.mark.parametrize("source", ["{1: 3, '1': 4}", "{'true': 1, true: 2}", "[{'a': {false: 1, 'false': 2}}]"])
def test_two_keys_that_are_one_in_json_are_an_error(source: str) -> None:
    with pytest.raises(ExpressionFailed, match=r"two keys of an object are both '(1|true|false)' in JSON"):
        evaluated(source)


def test_values_of_the_context_are_handed_on_as_they_are() -> None:
    assert evaluated("has(state.list) ? state.list : []") is STATE["list"]
    assert evaluated("[state.map, 1u, {true: state.list}]") == [STATE["map"], 1, {"true": [1, 2, 3]}]
    assert evaluated("[state.map]")[0] is STATE["map"]
