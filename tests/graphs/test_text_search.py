"""Searches in texts: what they find, and that they are paid for by what they take."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ExpressionFailed
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.text_search import last_index
from tests.graphs.test_expression_bounds import Given, steps_of

TEXTS = st.text("ab", max_size=12)


@given(text=TEXTS, part=st.text("ab", max_size=4), end=st.none() | st.integers(0, 15))
def test_the_last_index_is_where_python_finds_it(text: str, part: str, end: int | None) -> None:
    assert last_index(text, part, end) == text.rfind(part, 0, end)


@given(text=TEXTS, part=st.text("ab", max_size=4), data=st.data())
def test_the_last_index_of_an_expression_begins_at_its_start_or_before(text: str, part: str, data: Any) -> None:
    start = data.draw(st.integers(0, len(text)))
    found = Expression("input.t.lastIndexOf(input.p, input.s)", "here").evaluate(
        Given(input={"t": text, "p": part, "s": start})
    )
    assert found == max((at for at in range(start + 1) if text[at:].startswith(part)), default=-1)


# A search that compares the part at each place takes half a minute for these, and a linear one some milliseconds.
LONG = {"t": "a" * 600_000, "p": "ab" + "a" * 300_000}
LONG_S_MAX = 10.0


@pytest.mark.parametrize("function", ["contains", "indexOf", "lastIndexOf"])
def test_a_search_in_a_long_text_takes_linear_time(function: str) -> None:
    begun = time.process_time()
    try:
        found = Expression(f"input.t.{function}(input.p)", "here").evaluate(Given(input=LONG))
    except ExpressionFailed as failed:
        assert "more than 200,000 steps" in str(failed)  # noqa: PT017 - either will do
    else:
        assert found in (False, -1)
    assert time.process_time() - begun < LONG_S_MAX


@pytest.mark.parametrize(
    "source",
    ["t.contains(p)", "t.indexOf(p)", "t.lastIndexOf(p)", "t.replace(p, '')", "t.split(p)"],
)
def test_a_search_in_a_short_text_pays_for_the_product_of_both_lengths(source: str) -> None:
    """CPython compares the part at each place of a short text."""
    part = "a" * 600 + "b" + "a" * 600
    steps = steps_of(source.replace("t.", "input.t.").replace("(p", "(input.p"), input={"t": "a" * 2_400, "p": part})
    assert steps > 900
