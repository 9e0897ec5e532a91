"""Every test that asks for a `source` runs on memory and SQLite, some on Postgres: stores from it see the same data."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.environment import StoreSource
from tests.storage.postgres.server import Servers

# A schema of its own takes a test a while, so only those run on Postgres too that do most with a store.
ON_POSTGRES = {"test_children", "test_continue_as", "test_events"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "source" in metafunc.fixturenames:
        is_telling = metafunc.module.__name__.rpartition(".")[2] in ON_POSTGRES
        stores = ["memory", "sqlite", "postgres"] if is_telling else ["memory", "sqlite"]
        metafunc.parametrize("source", stores, indirect=True)


@pytest.fixture
def source(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSource:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    if request.param == "postgres":
        servers: Servers = request.getfixturevalue("postgres_servers")
        return servers.fresh()
    database = MemoryDatabase()
    return lambda: MemoryStore(database)
