from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from tests.cooperation import engines
from tests.cooperation.everywhere import Everywhere
from tests.storage.postgres.server import Servers


@pytest.fixture(autouse=True)
def stores(empty_file: Path, quick_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the engines of worlds keep their data."""
    numbers = count()

    def on_postgres() -> str:
        new: Callable[[], str] = request.getfixturevalue("empty_schema")
        servers: Servers = request.getfixturevalue("postgres_servers")
        servers.take_back()  # The world before this one has ended.
        return new()

    engines.SOURCES.update(
        memory=lambda: partial(MemoryStore, MemoryDatabase()),
        sqlite=lambda: f"sqlite:///{shutil.copyfile(empty_file, quick_path / f'{next(numbers)}.db')}",
        postgres=on_postgres,
    )
    yield
    for world in list(engines.OPEN):
        world.end()


@pytest.fixture(params=["some", pytest.param("all", marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def everywhere(request: pytest.FixtureRequest) -> Everywhere:
    """Runs a scenario everywhere, with some of the faults that there can be, or in the soak with all."""
    return Everywhere(whole=request.param == "all", name=request.node.nodeid)
