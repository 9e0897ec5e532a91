"""How many calls an expression and a template take at worst, on any machine: what their budgets let through runs on the
event loop, and has to be over long before 50 ms are."""

from __future__ import annotations

import pytest

from bench import expressions, templates
from perdure.errors import ExpressionFailed
from perdure.models.graphs.expressions import Expression

# A tenth more than with Python 3.11. There, half a million calls take 20 to 30 ms.
EXPRESSION_CALLS_MAX, TEMPLATE_CALLS_MAX = 480_000, 530_000
SIZES = (1_000, 100_000)


@pytest.mark.parametrize("what", expressions.WORST)
def test_no_expression_takes_more_calls_than_it_did(what: str) -> None:
    state = expressions.State()
    for size in SIZES:
        expression = Expression(expressions.WORST[what].format(n=size), "here")

        def evaluate(expression: Expression = expression) -> None:
            try:
                expression.evaluate(state)
            except ExpressionFailed as error:
                assert "steps" in str(error) or "there is no" in str(error)  # noqa: PT017 - what it may say, not does

        assert templates.calls_of(evaluate) <= EXPRESSION_CALLS_MAX


@pytest.mark.parametrize("what", templates.WORST)
def test_no_template_takes_more_calls_than_it_did(what: str) -> None:
    given = templates.values()
    for render in templates.renderings(templates.WORST[what], given, SIZES):
        assert templates.calls_of(render) <= TEMPLATE_CALLS_MAX
