"""What is asked over HTTP is answered by a client, which is tested on every store: here it is SQLite, and Postgres too
where the store decides what the answer is."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.ports import Store
from perdure.storage import open_store
from tests.storage.postgres.server import Servers


def copied(empty_file: Path, quick_path: Path) -> Callable[[], Store]:
    url = f"sqlite:///{shutil.copyfile(empty_file, quick_path / 'site.db')}"
    return lambda: open_store(url)


@pytest.fixture
def make_store(empty_file: Path, quick_path: Path) -> Callable[[], Store]:
    return copied(empty_file, quick_path)


@pytest.fixture(params=["sqlite", "postgres"])
def make_any_store(request: pytest.FixtureRequest, empty_file: Path, quick_path: Path) -> Callable[[], Store]:
    if request.param == "sqlite":
        return copied(empty_file, quick_path)
    servers: Servers = request.getfixturevalue("postgres_servers")
    source = servers.fresh()
    assert isinstance(source, str)
    return lambda: open_store(source)
