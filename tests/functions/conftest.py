"""Every test that asks for a `source` runs on memory and on SQLite: stores made from it see the same data."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.environment import StoreSource


@pytest.fixture(params=["memory", "sqlite"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSource:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}"
    database = MemoryDatabase()
    return lambda: MemoryStore(database)
