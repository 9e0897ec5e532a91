"""The store in a Postgres database keeps the port's promises, on the oldest and the newest version that tests bring."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.ports import Store
from perdure.storage import open_store
from perdure.testing.conformance import StoreConformance


class _PostgresStore(StoreConformance):
    version: int
    fails_in_steps = ("select pg_terminate_backend(pg_backend_pid())",)

    @pytest.fixture(autouse=True)
    def database(self, empty_schema: Callable[[int], str]) -> None:
        self.url = empty_schema(self.version)

    def make_store(self) -> Store:
        return open_store(self.url)


class TestPostgres16(_PostgresStore):
    version = 16


class TestPostgres18(_PostgresStore):
    version = 18
