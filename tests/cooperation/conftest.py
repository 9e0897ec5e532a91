from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from perdure.storage.memory import MemoryDatabase, MemoryStore
from tests.cooperation import engines


@pytest.fixture(autouse=True)
def stores(empty_file: Path, quick_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Where the engines of worlds keep their data."""
    numbers = count()

    def on_postgres() -> str:
        new: Callable[[], str] = request.getfixturevalue("empty_schema")
        return new()

    engines.SOURCES.update(
        memory=lambda: partial(MemoryStore, MemoryDatabase()),
        sqlite=lambda: f"sqlite:///{shutil.copyfile(empty_file, quick_path / f'{next(numbers)}.db')}",
        postgres=on_postgres,
    )
    yield
    for world in list(engines.OPEN):
        world.end()
