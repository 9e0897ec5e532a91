"""A schema of its own for each test, on the newest version."""

from __future__ import annotations

import pytest

from tests.storage.postgres.server import Servers


@pytest.fixture
def url(postgres_servers: Servers) -> str:
    return postgres_servers.fresh()
