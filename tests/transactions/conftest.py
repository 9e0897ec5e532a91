"""Both databases that have transactions for steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.transactions.notes import PostgresWorld, SqliteWorld, World


@pytest.fixture(params=["sqlite", "postgres"])
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(f"{request.param}_world")
    return found


@pytest.fixture
def sqlite_world(empty_file: Path, quick_path: Path) -> SqliteWorld:
    return SqliteWorld(quick_path, empty_file)


@pytest.fixture
def postgres_world(empty_schema: Callable[[], str]) -> PostgresWorld:
    return PostgresWorld(empty_schema)
