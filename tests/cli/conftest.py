"""A shell in a folder with a project, and a store in which something has happened."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Nursery, Shell

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.end()


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with runs of every kind, events, dead letters, tasks and artifacts in it, to be copied."""
    path = tmp_path_factory.mktemp("furnished") / "shop.db"
    # Elsewhere, since whatever is decorated in this process is there for all other tests too.
    subprocess.run(
        [sys.executable, "-m", "tests.cli.furnish", f"sqlite:///{path}"], cwd=HERE.parents[1], check=True, timeout=60
    )
    return path


@pytest.fixture
def shell(nursery: Nursery, quick_path: Path, furnished: Path) -> Shell:
    """In a folder with the shop and a copy of the furnished store, which the environment names."""
    folder = quick_path / "project"
    folder.mkdir()
    shutil.copyfile(HERE / "kiosk.py", folder / "shop.py")
    shutil.copyfile(furnished, folder / "shop.db")
    return Shell(nursery, folder, f"sqlite:///{folder / 'shop.db'}")


@pytest.fixture
def empty(nursery: Nursery, quick_path: Path) -> Shell:
    """In an empty folder, without a store."""
    folder = quick_path / "empty"
    folder.mkdir()
    return Shell(nursery, folder, None)
