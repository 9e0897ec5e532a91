"""URLs name stores, or say what would."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import Misuse
from perdure.storage import open_store
from perdure.storage.memory import MemoryStore
from perdure.storage.postgres import PostgresStore
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


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgres_takes_options_of_its_own_and_leaves_the_others_to_the_driver(scheme: str) -> None:
    store = open_store(f"{scheme}://me:secret@h:5433/d?sslmode=require&schema=shop&lease=2.5&application=a%26b")
    assert isinstance(store, PostgresStore)
    address = store.address
    assert address.url == f"{scheme}://me:secret@h:5433/d?sslmode=require&application=a%26b"
    assert (address.schema, address.lease_s) == ("shop", 2.5)
    assert "secret" not in address.name


def test_postgres_without_options_has_a_schema_and_a_lease() -> None:
    store = open_store("postgresql:///d")
    assert isinstance(store, PostgresStore)
    assert (store.address.url, store.address.schema, store.address.lease_s) == ("postgresql:///d", "perdure", 10.0)


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
        ("postgresql+asyncpg://h/d", "'postgresql+asyncpg'"),
        ("postgresql://h/d?schema=Mixed", "cannot be the schema"),
        ("postgresql://h/d?schema=pg_mine", "cannot be the schema"),
        ("postgresql://h/d?schema=", "cannot be the schema"),
        ("postgresql://h/d?lease=soon", "number of seconds"),
        ("postgresql://h/d?lease=0", "number of seconds"),
        ("postgresql://h/d?lease=nan", "number of seconds"),
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
    for url in ("postgresql://me:secret@h/d?lease=x", "redis://me:secret@h"):
        with pytest.raises(Misuse) as caught:
            open_store(url)
        assert "secret" not in f"{caught.value} {vars(caught.value)}"
