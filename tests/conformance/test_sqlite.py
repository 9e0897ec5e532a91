"""The store in an SQLite file keeps the port's promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance import StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    def make_store(self) -> SqliteStore:
        return SqliteStore(self.path)
