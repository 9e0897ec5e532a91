"""A schema of its own for each test, on the newest version."""

from __future__ import annotations

import pytest

from tests.storage.postgres.server import Servers


@pytest.fixture
def url(postgres_servers: Servers) -> str:
    """With a long lease: who is stopped on purpose must not run into a timeout, however slow the machine is."""
    return f"{postgres_servers.fresh()}&lease=60"
