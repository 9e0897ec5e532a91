"""Every test that asks for a `source` runs on memory, SQLite and Postgres: stores made from it see the same data."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.environment import StoreSource
from tests.storage.postgres.server import Servers


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSource:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    if request.param == "postgres":
        servers: Servers = request.getfixturevalue("postgres_servers")
        return servers.fresh()
    database = MemoryDatabase()
    return lambda: MemoryStore(database)
