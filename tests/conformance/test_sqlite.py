"""The store in an SQLite file keeps the port's promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance import StoreConformance


class TestSqliteStore(StoreConformance):
    # SQLite keeps to no fewer pages than there are, and takes the next one for a full disk.
    fails_in_steps = (
        "pragma max_page_count = 1",
        "create table big (text)",
        "insert into big values (zeroblob(1000000))",
    )
    works_again = ("pragma max_page_count = 1000000",)

    @pytest.fixture(autouse=True)
    def database(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.db"

    def make_store(self) -> SqliteStore:
        return SqliteStore(self.path)
