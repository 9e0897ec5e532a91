"""Integers of more than 64 bits: expressions do not calculate with them, and never make floats of them silently."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import step
from perdure.errors import ExpressionFailed, RunFailed
from perdure.graph import Graph
from perdure.models.graphs.expressions import Expression
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

HUGE = 2**64
AT_THE_EDGE = (2**64 - 1, 2**63, -(2**63))
BEYOND = (HUGE, -(2**63) - 1, 10**40)


class Given:
    def __init__(self, value: Any) -> None:
        self.value = value

    def root(self, name: str) -> Any:
        return {"n": self.value, "deep": {"list": [1, {"n": self.value}]}, "small": 1}


@pytest.mark.parametrize("number", BEYOND)
@pytest.mark.parametrize("source", ["input.n + 1", "-input.n", "input.n * 2 > 1", "input.deep.list[1].n + 1"])
def test_what_does_not_fit_is_refused_with_its_place(source: str, number: int) -> None:
    with pytest.raises(ExpressionFailed, match=r"edge 'a' to 'b'.*64 bits") as caught:
        Expression(source, "edge 'a' to 'b'").evaluate(Given(number))
    assert (caught.value.expression, caught.value.place) == (source, "edge 'a' to 'b'")


@pytest.mark.parametrize("number", [*AT_THE_EDGE, *BEYOND])
@pytest.mark.parametrize("source", ["[input.n][0]", "input.deep.list[1].n", "true ? input.n : 0"])
def test_a_number_is_never_made_a_float(source: str, number: int) -> None:
    try:
        value = Expression(source, "here").evaluate(Given(number))
    except ExpressionFailed as error:
        assert "64 bits" in str(error)  # noqa: PT017 - both are right
        assert number in BEYOND
    else:
        assert value == number
        assert type(value) is int


@pytest.mark.parametrize("number", BEYOND)
def test_a_path_alone_hands_on_what_is_there(number: int) -> None:
    assert Expression("input.n", "here").evaluate(Given(number)) == number
    assert Expression("input.small + 1", "here").evaluate(Given(number)) == 2  # What it does not name does not matter.


async def test_a_run_fails_with_the_place_for_a_nodes_result_too(source: StoreSource) -> None:
    @step
    async def count() -> int:
        return HUGE

    @step
    async def show(number: int) -> int:
        return number

    graph = Graph("large")
    first = graph.node("count", count, input={})
    graph.edge(first, graph.node("show", show, input={"number": "nodes.count + 1"}))
    exact = Graph("exact")
    first = exact.node("count", count, input={})
    exact.edge(first, exact.node("show", show, input={"number": "nodes.count"}))
    exact.output({"number": "nodes.show"})
    async with Environment([graph, exact], source) as env:
        with pytest.raises(RunFailed, match=r"'show'.*nodes.count \+ 1.*64 bits"):
            await env.engine.run(graph())
        assert await env.engine.run(exact()) == {"number": HUGE}
