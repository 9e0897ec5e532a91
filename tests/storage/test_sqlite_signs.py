"""Lock files beside a database, at the moments at which somebody else opens, reads, deletes or closes them."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure.ports import ENGINES_KEPT_US
from perdure.storage.sqlite import liveness
from perdure.storage.sqlite.connection import connect_writer
from perdure.storage.sqlite.liveness import SignOfLife, SignsOfLife
from perdure.storage.sqlite.lost_commits import known_losses, report_losses
from perdure.storage.sqlite.store import SqliteStore
from perdure.testing.conformance.base import Author, a_run, insert


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect_writer(path)) as connection:
        yield connection


def before_the_first_lock(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen between the moment at which a file is opened and the one at which it is locked."""
    lock = liveness._try_lock
    happened: list[bool] = []

    def try_lock(handle: int) -> bool:
        if not happened:
            happened.append(True)
            happens()
        return lock(handle)

    monkeypatch.setattr(liveness, "_try_lock", try_lock)


def test_a_sign_of_life_that_is_tidied_up_while_it_is_being_given_is_given_anew(
    path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines that start at the same time look at each other's lock files."""
    signs = SignsOfLife(path)
    before_the_first_lock(monkeypatch, lambda: report_losses(connection, path))
    assert signs.give("e-1")
    assert signs.path("e-1").exists()
    assert SignsOfLife(path).dead(["e-1"]) == {}
    signs.end(tidy=True)


def test_a_sign_of_life_that_somebody_looks_at_while_it_is_being_given_is_given_then(
    path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs = SignsOfLife(path)
    looked: list[SignOfLife | None] = []

    def let_go(_seconds: float) -> None:
        while looked:
            sign = looked.pop()
            assert sign is not None
            sign.let_go(tidy=True)

    monkeypatch.setattr(time, "sleep", let_go)
    before_the_first_lock(monkeypatch, lambda: looked.append(SignOfLife.take(signs.path("e-1"))))
    assert signs.give("e-1")
    assert SignsOfLife(path).dead(["e-1"]) == {}
    signs.end(tidy=True)


def test_whoever_is_late_to_tidy_up_leaves_the_file_that_came_after(
    path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened a file that was tidied up before it could lock it; another one is at that place by then."""
    signs = SignsOfLife(path)
    lock = signs.path("e-1")
    lock.touch()

    def replaced() -> None:
        lock.unlink()
        assert signs.give("e-1")

    before_the_first_lock(monkeypatch, replaced)
    report_losses(connection, path)
    assert lock.exists()
    assert SignsOfLife(path).dead(["e-1"]) == {}
    signs.end(tidy=True)


def test_a_number_is_never_written_to_a_file_that_was_opened_after_the_sign_was_given_up(
    path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread notes a number while the loop gives the sign up, and something else opens a file: it gets
    the same descriptor."""
    signs = SignsOfLife(path)
    assert signs.give("e-1")
    other = path.with_name("other")
    other.write_bytes(b"x" * 100)
    seek = os.lseek
    opened: list[int] = []
    giving_up = threading.Thread(target=signs.end, kwargs={"tidy": False})

    def lseek(handle: int, place: int, how: int) -> int:
        found = seek(handle, place, how)
        giving_up.start()
        giving_up.join(0.5)  # It waits for the note, or has ended.
        opened.append(os.open(other, os.O_RDWR))
        return found

    monkeypatch.setattr(os, "lseek", lseek)
    signs.note("e-1", 7)
    giving_up.join()
    os.close(opened[0])
    assert other.read_bytes() == b"x" * 100


async def test_an_engine_whose_undertaker_died_is_forgotten_and_nothing_looks_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was marked dead by an engine that died before it deleted the lock file, which tells of commits."""
    stores = [SqliteStore(path) for _ in range(4)]
    for store in stores[:3]:
        await store.open()
    dead, undertaker, living = [await Author.enroll(store, f"e-{n}") for n, store in enumerate(stores[:3])]
    await dead.commit(insert(a_run("r-1")))
    dead.store.abandon()
    with monkeypatch.context() as death:
        death.setattr(SignOfLife, "let_go", lambda self, tidy: os.close(self._handle))
        assert await undertaker.store.mark_dead_engines() == ["e-0"]
        undertaker.store.abandon()
    assert path.with_name("runs.db-engine-e-0.lock").exists()
    assert await living.store.mark_dead_engines() == ["e-1"]
    for at in (1, ENGINES_KEPT_US + 2):
        await living.store.purge(at=at, keys_before=0, limit=10)
    assert [engine.id for engine in await living.store.engines()] == ["e-2"]
    await stores[3].open()
    await Author.enroll(stores[3], "e-3")  # It looks for what was lost.
    assert "lost" not in caplog.text
    assert known_losses(path) == []
    assert not path.with_name("runs.db-engine-e-0.lock").exists()
    for store in stores[2:]:
        await store.close()


async def test_an_engine_that_dies_after_it_has_signed_off_leaves_nothing_that_looks_lost(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its row is gone by then, and its lock file is not."""
    first, second = SqliteStore(path), SqliteStore(path)
    await first.open()
    author = await Author.enroll(first, "e-0")
    await author.commit(insert(a_run("r-1")))
    await Author.enroll(first, "e-1")
    await first.retire("e-0")
    first.abandon()
    assert path.with_name("runs.db-engine-e-0.lock").exists()
    await second.open()
    await Author.enroll(second, "e-2")
    assert "e-0" not in [engine.id for engine in await second.engines()]
    assert "lost" not in caplog.text
    assert known_losses(path) == []
    await second.close()


async def test_what_is_lost_is_noted_before_its_engine_is_forgotten(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(path)
    await store.open()
    await Author.enroll(store, "e-1")
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("insert into engines values ('e-x', -5, 0, 380, 'h', 1, '[]', 1, 1)")
    lock = path.with_name("runs.db-engine-e-x.lock")
    lock.write_text(f"{412:20}")
    assert await store.purge(at=ENGINES_KEPT_US + 2, keys_before=0, limit=10) == 1
    ((_, lost),) = known_losses(path)
    assert "engine e-x has made 412, and the database knows 380 of them" in lost
    assert not lock.exists()
    await store.close()


def test_losses_of_a_database_with_any_name_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "my-engine-runs [1]*.db"
    with closing(connect_writer(path)) as connection:
        path.with_name(f"{path.name}-engine-e%3A1.lock").write_text(f"{5:20}")
        report_losses(connection, path)
    ((note, lost),) = known_losses(path)
    assert "engine e:1 has made 5" in lost
    assert note.name == f"{path.name}-lost-e%3A1.txt"


async def test_word_of_commits_stays_for_as_long_as_the_log_alone_has_them(path: Path) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    await first.open()
    await second.open()
    lock = path.with_name("runs.db-engine-e-0.lock")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader, closing(connect_writer(path)) as other:
        author = await Author.enroll(first, "e-0")
        reader.execute("begin")
        reader.execute("select * from runs").fetchall()  # What comes later cannot be brought into the file.
        await author.commit(insert(a_run("r-1")))
        first.abandon()
        assert await second.mark_dead_engines() == ["e-0"]
        assert lock.exists()
        report_losses(other, path)
        assert lock.exists()
        reader.execute("rollback")
        report_losses(other, path)
        assert not lock.exists()
    assert known_losses(path) == []
    await second.close()


async def test_an_engine_that_gives_up_leaves_word_of_its_commits(path: Path) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    await first.open()
    await second.open()
    lock = path.with_name("runs.db-engine-e-0.lock")
    await (await Author.enroll(first, "e-0")).commit(insert(a_run("r-1")))
    first.withdraw("e-0")
    assert lock.exists()
    assert await second.mark_dead_engines() == ["e-0"]
    assert not lock.exists()
    await first.close()
    await second.close()
