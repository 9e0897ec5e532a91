"""The fixtures for users' own tests."""

from __future__ import annotations

pytest_plugins = ["pytester"]

import pytest  # noqa: E402

TESTS = """
from perdure import resource, step, workflow

pytest_plugins = ["perdure.testing.fixtures"]

class Bank:
    def __init__(self):
        self.charges = []

@step
async def charge(order: str) -> None:
    resource(Bank).charges.append(order)

@step
async def look(order: str) -> str:
    return order

@workflow
async def pays(order: str) -> None:
    await charge(order)

@workflow
async def looks(order: str) -> str:
    return await look(order)

def test_bad(explored):
    explored(pays("o"), world=Bank)

def test_good(explored):
    assert explored(looks("o"), world=Bank).trials > 1
"""


def test_a_mistake_fails_the_test_with_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*not idempotent (charge)*"])
