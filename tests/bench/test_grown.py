"""A store that is filled with hierarchies that have ended has sound ones, and an engine goes on with others there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.grown import OPERATIONS, ROWS, fill, measure
from bench.report import table
from perdure.storage import open_store
from perdure.testing import check_store
from perdure.testing.readiness import assert_readiness_agrees
from tests.storage.postgres.server import Servers


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
async def test_what_is_filled_in_is_sound(request: pytest.FixtureRequest, tmp_path: Path, on: str) -> None:
    servers: Servers | None = request.getfixturevalue("postgres_servers") if on == "postgres" else None
    url = f"sqlite:///{tmp_path / 'grown.db'}" if servers is None else servers.fresh()
    await fill(url, 40)
    figures = await measure(url, hierarchies=4, in_flight=2)
    store = open_store(url)
    await store.open()
    try:
        assert await check_store(store) == 3 * (40 + 2 + 4)
        assert await assert_readiness_agrees(store, OPERATIONS, now=2**60) == 3 * (40 + 2 + 4)
    finally:
        await store.close()
    assert "hierarchies/s" in table({"few": [figures], "many": [figures]}, ROWS, judged=False)
