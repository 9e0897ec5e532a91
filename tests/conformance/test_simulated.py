"""The simulated store keeps the port's promises, so that what is found on it counts."""

from __future__ import annotations

import pytest

from perdure.testing.conformance import StoreConformance
from perdure.testing.simulate.database import SimulatedDatabase
from perdure.testing.simulate.store import SimulatedStore


class TestSimulatedStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def database(self) -> None:
        self.shared = SimulatedDatabase()

    def make_store(self) -> SimulatedStore:
        return SimulatedStore(self.shared)
