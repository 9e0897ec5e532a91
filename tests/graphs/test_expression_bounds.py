"""What no expression may do, whatever its source and its data are: crash, hang, or take more than its budget."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import Engine
from perdure.errors import ExpressionFailed, InvalidDefinition, RunFailed
from perdure.graph import Graph, assign
from perdure.models.graphs.cel.budget import BudgetExceeded, EvaluationFailed, Frame
from perdure.models.graphs.cel.compiler import NameUnknown, Program
from perdure.models.graphs.cel.functions import FUNCTIONS
from perdure.models.graphs.cel.syntax import SyntaxFailed
from perdure.models.graphs.expressions import ROOTS, Expression
from perdure.models.graphs.mappings import ValueMap

TOO_MUCH = "it takes more than 200,000 steps, which is as much as one evaluation may take"


class Given:
    def __init__(self, **roots: Any) -> None:
        self._roots = roots

    def root(self, name: str) -> Any:
        return self._roots.get(name, {})


def steps_of(source: str, **roots: Any) -> int:
    """How many steps an evaluation takes."""
    program = Program(source, ROOTS)
    frame = Frame(Given(**roots), program.variables, 10**9)
    program.run(frame)
    return 10**9 - frame.left


@pytest.mark.parametrize(
    "source",
    [
        "1" + "+1" * 20_000,
        "1" + "+1" * 8_000,
        "(" * 8_000 + "1" + ")" * 8_000,
        "(" * 100_000,
        "[" * 8_000 + "]" * 8_000,
        "{'a':" * 3_000 + "1" + "}" * 3_000,
        "!" * 16_000 + "true",
        "-" * 16_000 + "1",
        "true" + "?true:true" * 1_500,
        "true" + "&&true" * 2_500,
        "1" + "<2" * 8_000,
        "state" + ".a" * 8_000,
        "state" + "[0]" * 5_000,
        "state" + ".trim()" * 2_000,
        "size(" * 3_000 + "1" + ")" * 3_000,
        "[1]" + ".map(x,x)" * 1_700,
        "[1].map(x, " * 1_400 + "1" + ")" * 1_400,
        "'" + "a" * 100_000 + "'",
        '"""' * 5_000,
        "1" * 16_000,
        "0x" + "f" * 16_000,
        "1." + "0" * 16_000,
        "'a'.matches('" + "(" * 5_000 + "')",
        "'a'.matches('" + "a{1000}" * 100 + "')",
        "'a'.matches('((a{1000}){1000}){1000}')",
    ],
)
def test_no_source_is_too_much(source: str) -> None:
    """It is refused, with the place and not all of the source, or it is evaluated: nothing else happens."""
    said = outcome_of(source)
    assert said == "" or said.startswith("graph 'g', node 'n', input.x: ")
    assert len(said) < 5_000


def outcome_of(source: str) -> str:
    """What an expression says if it is refused, or fails."""
    try:
        Expression(source, "graph 'g', node 'n', input.x").evaluate(Given(state={}))
    except (InvalidDefinition, ExpressionFailed) as error:
        return str(error)
    return ""


def test_a_source_has_so_many_characters() -> None:
    assert outcome_of("1" + " " * 16_383) == ""
    assert "at most 16,384" in outcome_of("1" + " " * 16_384)


def test_a_sum_or_a_condition_may_be_long() -> None:
    assert Expression("1" + "+1" * 5_000, "here").evaluate(Given()) == 5_001
    assert Expression("true" + " && state.x" * 1_000, "here").evaluate(Given(state={"x": True})) is True


@pytest.mark.parametrize(
    "source",
    [
        "input.map(x, input.map(y, x + y))",
        "input.filter(x, input.exists(y, y == -x)).size()",
        "input.map(x, input)",
        "input.map(x, 'x').map(x, input.map(y, 'y').join(x)).join('')",
        "input.all(x, input.all(y, input.all(z, true)))",
        "lists.range(1000000000)",
        "lists.range(9223372036854775807).size()",
        "input.map(x, input.sort() == input.reverse())",
        "input.map(x, sets.contains(input, input))",
        "input.map(x, [x]).distinct().size()",
    ],
)
def test_what_takes_too_long_is_an_error_like_any_other(source: str) -> None:
    with pytest.raises(ExpressionFailed) as failed:
        Expression(source, "graph 'g', edge a -> b, when").evaluate(Given(input=list(range(15_000))))
    assert str(failed.value).startswith(f"graph 'g', edge a -> b, when: {source!r} failed: {TOO_MUCH}")
    assert (failed.value.expression, failed.value.place) == (source, "graph 'g', edge a -> b, when")


def test_the_cost_of_a_macro_is_linear() -> None:
    for source in ("input.map(x, x + 1)", "input.filter(x, x > 1).size()", "input.exists_one(x, x == 3)"):
        few, many = (steps_of(source, input=list(range(count))) for count in (1_000, 10_000))
        assert many < 10.1 * few, source


@pytest.mark.parametrize(
    "source",
    ["input.flatten().size()", "input.sort().size()", "input.sum()", "input.distinct().size()", "-1 in input",
     "input == input.reverse()", "input.contains(-1)", "math.greatest(input)", "sets.contains(input, [1])"],
)  # fmt: skip
def test_a_function_pays_for_what_it_goes_through(source: str) -> None:
    """Also if it finds nothing to do: it could be asked ten thousand times."""
    assert steps_of(source, input=list(range(10_000))) > 1_000


def test_a_list_of_ten_thousand_is_not_too_much() -> None:
    items = [{"name": f"n{number}", "size": number, "ok": number % 2 == 0} for number in range(10_000)]
    chosen = Expression("input.filter(i, i.ok && i.size > 10 && i.name != 'n12').map(i, i.name)", "here")
    assert len(chosen.evaluate(Given(input=items))) == 4_993


def test_no_operator_swallows_that_the_budget_is_used_up() -> None:
    for source in ("lists.range(1000000).size() > 0 || true", "[1].exists(x, lists.range(1000000) == [])"):
        with pytest.raises(ExpressionFailed, match="more than 200,000 steps"):
            Expression(source, "here").evaluate(Given())


def test_an_evaluation_takes_as_many_steps_each_time() -> None:
    """A replay must come to the same: what an evaluation before it left behind may not make it cheaper."""
    source = "input.filter(x, x.matches('^[a-c]+(d|e)*$') && x.size() > 1).size()"
    texts = ["abc", "abcd", "cde", "x" * 50]
    assert len({steps_of(source, input=texts) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    "source",
    [
        "[input].map(a, a + a).map(a, a + a)" + ".map(a, a + a)" * 40,
        "[input].map(a, [a, a])" + ".map(a, [a, a])" * 40,
        "[input].map(a, {'x': a, 'y': a})" + ".map(a, {'x': a, 'y': a})" * 40,
        "lists.range(10000).map(i, input)",
        "lists.range(10000).map(i, {'all': [input, input]})",
        "lists.range(5000).map(i, input).join('')",
        "input.replace('', input)",
        "input.replace('x', input).replace('x', input)",
        "lists.range(400).map(i, input).map(a, [a].join(a) + a + a).join(input)",
    ],
)
@pytest.mark.parametrize("value", ["x" * 20_000, {"items": [{"a": ["x"] * 10}] * 500}, ["x"] * 5_000])
def test_no_composition_takes_more_than_so_much_memory(source: str, value: Any) -> None:
    """Also not as JSON: what is in a result many times would be there many times."""
    expression = Expression(source, "here")
    tracemalloc.start()
    try:
        with pytest.raises(ExpressionFailed):
            expression.evaluate(Given(input=value))
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_values_that_nest_deeply_are_an_error_and_no_crash() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    assert Expression("has(state.x) ? state.x : 1", "here").evaluate(Given(state={"x": deep})) is deep
    for source in ("state.x == [state.x]", "[state.x, state.x].distinct()", "state.x in [state.x]"):
        with pytest.raises(ExpressionFailed, match="nests deeper than 100"):
            Expression(source, "here").evaluate(Given(state={"x": deep}))
    with pytest.raises(InvalidDefinition, match="the mapping nests deeper than 64"):
        ValueMap({"a": deep}, "here")


def test_integers_with_many_digits_are_not_calculated_with() -> None:
    huge = 10**100_000
    for source in ("state.n * state.n", "state.n + 1", "string(state.n)", "double(state.n)", "-state.n", "1 / state.n"):
        with pytest.raises(ExpressionFailed, match="overflow"):
            Expression(source, "here").evaluate(Given(state={"n": huge}))
    for source in ("[1][state.n]", "[1].slice(0, state.n)", "{1: 2}[state.n]", "math.sqrt(state.n)"):
        with pytest.raises(ExpressionFailed):
            Expression(source, "here").evaluate(Given(state={"n": huge}))
    assert Expression("state.n > 1.5 && state.n == state.n", "here").evaluate(Given(state={"n": huge})) is True


async def test_a_run_fails_at_the_place_of_what_takes_too_long() -> None:
    graph = Graph("costly")
    graph.node("a", assign({}))
    graph.node("b", assign({}))
    graph.edge("a", "b", when="input.all(x, input.all(y, x + y >= 0))")
    async with Engine("memory://", workflows=[graph]) as engine:
        with pytest.raises(RunFailed, match=r"graph 'costly', edge a -> b, when: .* more than 200,000 steps"):
            await engine.run(graph(list(range(10_000))))
        assert await engine.run(graph([1, 2])) == {}


async def test_what_takes_too_long_can_be_routed_as_an_error() -> None:
    graph = Graph("caught")
    graph.node("a", assign({"state.n": "input.map(x, input.map(y, x)).size()"}))
    graph.node("sorry", assign({"output.why": "error.type"}))
    graph.edge("a", "sorry", on_error=True)
    async with Engine("memory://", workflows=[graph]) as engine:
        assert await engine.run(graph(list(range(10_000)))) == {"why": "ExpressionFailed"}


SOURCES = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            ["state", "input", ".a", "[0]", "(", ")", "[", "]", "{", "}", ",", ":", "?", "+", "-", "!", "&&", "||",
             " ", "1", "1u", "1.5", "'a'", "b'a'", "'\ud800'", "\ud800", "map", ".map(x,", ".all(x,", "x", "has(",
             ".matches('", "(a*)*", "')", "==", "<", "%", "/", "*", "timestamp('", "duration('", "9" * 30, "null",
             "size(", "in", "true", "//", "\n", "\x00", "😀", "`", "math.", "greatest(", "lists.range(99999)",
             "string(", "'\\", "\"\"\""]
        ),
        max_size=60,
    ).map("".join),
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.just("\ud800"),
        st.just(10**400),
        st.just("x" * 100_000),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=4)),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(source=SOURCES, value=VALUES)
def test_whatever_is_written_it_gives_a_value_or_an_error(source: str, value: Any) -> None:
    try:
        program = Program(source, ROOTS)
        program.run(Frame(Given(state={"a": value}, input=value), program.variables))
    except (SyntaxFailed, NameUnknown, EvaluationFailed, BudgetExceeded):
        pass


def call(name: str, values: list[Any]) -> None:
    """Call a function of CEL: it gives a value, or an error that says why not."""
    args = ", ".join(f"input[{number}]" for number in range(len(values)))
    try:
        expression = Expression(f"[{name}({args})].size()", "here")
    except InvalidDefinition:
        return
    try:
        assert expression.evaluate(Given(input=values)) == 1
    except ExpressionFailed:
        pass


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(FUNCTIONS)), values=st.lists(VALUES, min_size=1, max_size=4))
def test_whatever_a_function_is_given_it_gives_a_value_or_an_error(name: str, values: list[Any]) -> None:
    call(name, values)


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    10**400,
    0.5,
    float("nan"),
    float("-inf"),
    "",
    "\ud800",
    "%",
    [],
    ["\ud800"],
    [[]],
    {"a": 1},
]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_hostile_values_give_every_function_a_value_or_an_error(name: str) -> None:
    for count in (1, 2):
        for values in itertools.product(ODD, repeat=count):
            call(name, [*values])
