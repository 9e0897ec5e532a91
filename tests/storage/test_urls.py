"""URLs name stores, or say what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import Misuse
from perdure.storage import open_store
from perdure.storage.memory import MemoryStore
from perdure.storage.sqlite import SqliteStore


def test_memory() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)


def test_a_relative_path_starts_where_the_program_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///shop.db")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path.resolve() / "shop.db"


def test_an_absolute_path_has_four_slashes(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db")
    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path.resolve() / "shop.db"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("sqlite://:memory:", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite://", "memory://"),
        ("sqlite:///", "memory://"),
        ("sqlite://shop.db", "sqlite:///shop.db"),
        ("sqlite:///shop.db?mode=ro", "no options"),
        ("memory://name", "nothing after"),
        ("postgresql://u@h/d", "not available in this version"),
        ("postgres://h/d", "not available in this version"),
        ("postgresql+asyncpg://h/d", "not available in this version"),
        ("mysql://h", "'mysql'"),
        ("shop.db", "sqlite:///"),
        ("", "sqlite:///"),
    ],
)
def test_anything_else_is_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(Misuse) as caught:
        open_store(url)
    assert hint in str(caught.value)


def test_no_password_is_told() -> None:
    for url in ("postgresql://me:secret@h/d", "redis://me:secret@h"):
        with pytest.raises(Misuse) as caught:
            open_store(url)
        assert "secret" not in f"{caught.value} {vars(caught.value)}"
