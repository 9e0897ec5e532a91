"""Fixtures for pytest. To use them, add `pytest_plugins = ["perdure.testing.fixtures"]` to your conftest.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.testing.explore import Exploration, explore

__all__ = ["explored"]


@pytest.fixture
def explored() -> Callable[..., Exploration]:
    """Return a function that explores a workflow. If the exploration has findings, the function fails the test.

    The function takes the same arguments as `perdure.testing.explore`, and returns the report.

        def test_checkout(explored):
            explored(checkout("o-17"), world=Bank)
    """

    def run(*args: Any, **options: Any) -> Exploration:
        report = asyncio.run(explore(*args, **options))
        report.check()
        return report

    return run
