"""The store in memory keeps the port's promises."""

from __future__ import annotations

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def database(self) -> None:
        self.shared = MemoryDatabase()

    def make_store(self) -> MemoryStore:
        return MemoryStore(self.shared)
