"""Files of a database that somebody deletes or replaces, while it is stopped and while an engine has it open."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, step, workflow
from perdure.errors import EngineStopped, StoreBroken, StoreReplaced
from perdure.storage.sqlite import store as store_module
from perdure.storage.sqlite import tasks
from perdure.storage.sqlite.faults import store_fault
from perdure.storage.sqlite.lost_commits import FileWatch, has_reset_bug, known_losses
from perdure.storage.sqlite.store import SqliteStore
from perdure.testing.conformance.base import Author, a_run, insert
from perdure.upgrade import look

KILLED = """
    import asyncio, os, signal, sys
    from perdure import Engine
    from tests.storage.test_sqlite_files import touching

    async def main():
        engine = Engine(f"sqlite:///{sys.argv[1]}", workflows=[touching])
        await engine.open()
        for number in range(3):
            await engine.run(touching(), id=f"r-{number}")
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
"""


@step
async def touch() -> str:
    return "touched"


@workflow
async def touching() -> str:
    return await touch()


def killed(path: Path) -> None:
    """A process that has committed runs, all of them still in the log, and is killed."""
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), str(path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.with_name("runs.db-wal").stat().st_size > 0


def opened(path: Path) -> Engine:
    return Engine(f"sqlite:///{path}", workflows=[touching], poll_s=0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)):
        return path


async def make(path: Path) -> None:
    async with opened(path) as engine:
        await engine.run(touching(), id="before")


async def test_runs_that_were_lost_with_a_deleted_log_are_missed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await make(path)  # Closing it brings the log into the file.
    killed(path)
    path.with_name("runs.db-wal").unlink()
    path.with_name("runs.db-shm").unlink()
    async with opened(path) as engine:
        assert await engine.runs.get("before") is not None
        assert await engine.runs.get("r-2") is None  # SQLite itself finds nothing wrong.
    assert "commits were lost" in caplog.text
    ((note, lost),) = known_losses(path)
    assert "and the database knows 0 of them" in lost
    caplog.clear()
    async with opened(path):
        assert "commits were lost" not in caplog.text  # It was said, and stays noted until somebody deletes it.
    assert known_losses(path) == [(note, lost)]


async def test_commits_after_an_older_copy_was_put_back_are_missed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(path)
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as connection:  # An operator's copy, of the time when one run was there.
        connection.execute("vacuum into ?", (str(copy),))
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("update engines set batch = 2")
        connection.execute("delete from runs where id <> 'r-0'")
    for end in ("-wal", "-shm"):
        path.with_name(f"runs.db{end}").unlink(missing_ok=True)
    copy.replace(path)
    async with opened(path):
        assert "and the database knows 2 of them" in caplog.text


async def test_nothing_is_missed_after_a_kill_or_a_graceful_end(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        killed(path)
        async with opened(path) as engine:
            assert await engine.runs.get("r-2") is not None
        for end in ("-wal", "-shm"):
            assert not path.with_name(f"runs.db{end}").exists()
        path.unlink()
    assert "lost" not in caplog.text
    assert known_losses(path) == []


@pytest.mark.parametrize("which", ["runs.db", "runs.db-wal", "runs.db-shm"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_an_engine_whose_file_is_gone_acknowledges_nothing_and_stops(path: Path, which: str, how: str) -> None:
    await make(path)
    engine = opened(path)
    await engine.open()
    try:
        file = path.with_name(which)
        if how == "deleted":
            file.unlink()
        else:
            other = path.with_name("other")
            shutil.copyfile(file, other)
            other.replace(file)
        with pytest.raises(EngineStopped, match=f"{which} was {how}"):
            await engine.run(touching(), id="void")
    finally:
        await engine.shutdown(grace=0)


async def test_an_engine_whose_log_was_moved_away_does_not_write_to_it_any_more(path: Path) -> None:
    await make(path)
    engine = Engine(f"sqlite:///{path}", workflows=[touching], poll_s=None)
    await engine.open()
    try:
        await engine.run(touching(), id="in the log")
        aside = path.with_name("runs.db-wal").rename(path.with_name("aside"))
        before = aside.read_bytes()
        with pytest.raises(EngineStopped, match=r"runs\.db-wal was deleted"):
            await engine.run(touching(), id="void")
        assert aside.read_bytes() == before
    finally:
        await engine.shutdown(grace=0)


async def test_an_engine_that_stopped_for_an_older_file_leaves_word_of_what_that_lacks(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make(path)
    older = Path(shutil.copyfile(path, path.with_name("older.db")))
    engine = opened(path)
    await engine.open()
    await engine.run(touching(), id="newer")
    for end in ("-wal", "-shm"):
        path.with_name(f"runs.db{end}").unlink()
    older.replace(path)
    with pytest.raises(EngineStopped, match="runs"):
        await engine.run(touching(), id="void")
    await engine.shutdown(grace=0)
    async with opened(path) as engine:
        assert await engine.runs.get("newer") is None
    assert "commits were lost" in caplog.text


def unlinked_by(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, log: Path) -> None:
    """Have somebody delete the log at the moment at which a write is done and not yet acknowledged."""
    write = getattr(module, name)

    def written(*args: Any, **options: Any) -> Any:
        done = write(*args, **options)
        log.unlink(missing_ok=True)
        return done

    monkeypatch.setattr(module, name, written)


async def test_a_commit_that_was_not_acknowledged_is_not_missed(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await make(path)
    store, log = SqliteStore(path), path.with_name("runs.db-wal")
    await store.open()
    author = await Author.enroll(store, "e-1")
    await author.commit(insert(a_run("r-1")))
    before = path.read_bytes(), log.read_bytes()
    with monkeypatch.context() as moment:
        unlinked_by(moment, store_module, "commit", log)
        with pytest.raises(StoreReplaced, match=r"runs\.db-wal was deleted"):
            await author.commit(insert(a_run("r-2")))
    await store.close()
    path.with_name("runs.db-shm").unlink(missing_ok=True)
    path.write_bytes(before[0])  # Put back as they were, without the last commit.
    log.write_bytes(before[1])
    async with opened(path) as engine:
        assert await engine.runs.get("r-1") is not None
        assert await engine.runs.get("r-2") is None
    assert "lost" not in caplog.text


async def test_a_write_beside_the_batches_is_not_acknowledged_either(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    await store.open()
    with monkeypatch.context() as moment:
        unlinked_by(moment, tasks, "claim_tasks", path.with_name("runs.db-wal"))
        with pytest.raises(StoreReplaced, match=r"runs\.db-wal was deleted"):
            await store.claim_tasks(queue="q", worker="w", lease_us=1, at=1, limit=1)
    await store.close()


async def test_an_engine_whose_file_is_emptied_stops_though_all_is_in_the_log(path: Path) -> None:
    engine = opened(path)
    await engine.open()
    try:
        await engine.run(touching(), id="in the log")
        os.truncate(path, 0)
        with pytest.raises(EngineStopped, match=r"runs\.db was emptied"):
            await engine.run(touching(), id="void")
    finally:
        await engine.shutdown(grace=0)


def test_a_log_that_is_shorter_than_it_should_be_was_replaced(path: Path) -> None:
    short = sqlite3.OperationalError("disk I/O error")
    short.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHORT_READ
    assert isinstance(store_fault(short, path), StoreReplaced)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
async def test_a_log_without_its_file_is_left_alone_until_the_file_is_back(path: Path, how: str) -> None:
    await make(path)
    killed(path)
    aside = path.with_name("aside.db")
    shutil.copyfile(path, aside)
    if how == "deleted":
        path.unlink()
    else:
        os.truncate(path, 0)
    with pytest.raises(StoreBroken, match=r"runs\.db-wal is there: the file was deleted"):
        await look(f"sqlite:///{path}")
    with pytest.raises(StoreBroken, match="Put the file back beside its log"):
        await opened(path).open()
    aside.replace(path)
    async with opened(path) as engine:
        assert await engine.runs.get("before") is not None
        assert await engine.runs.get("r-2") is not None
    assert known_losses(path) == []


async def test_an_idle_engine_notices_that_its_file_is_gone(path: Path) -> None:
    engine = opened(path)
    await engine.open()
    path.unlink()

    async def read_on() -> None:
        while True:
            await engine.runs.list()
            await asyncio.sleep(0.01)

    with pytest.raises(EngineStopped, match=r"runs\.db was deleted while the engine had it open"):
        await asyncio.wait_for(read_on(), 20)
    await engine.shutdown(grace=0)


@pytest.mark.parametrize(
    ("version", "has_it"),
    [
        ((3, 40, 1), True), ((3, 45, 0), True), ((3, 50, 6), True),
        ((3, 51, 2), True), ((3, 51, 3), False), ((3, 53, 0), False),
    ],
)  # fmt: skip
def test_versions_of_sqlite_with_the_reset_bug_are_known(version: tuple[int, int, int], has_it: bool) -> None:
    assert has_reset_bug(version) is has_it


@pytest.fixture
def grown(path: Path) -> Iterator[sqlite3.Connection]:
    """A database whose log has some pages."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (x)")
        grow(connection, 20)
        yield connection


def grow(connection: sqlite3.Connection, rows: int) -> None:
    for _ in range(rows):
        connection.execute("insert into t values (randomblob(5000))")


def test_a_log_that_grows_while_another_thread_looks_was_not_cut(
    path: Path, grown: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = FileWatch(path)
    watch.check()
    stat, has_met = os.stat, False

    def met(name: str) -> os.stat_result:
        """The other thread looks at a longer log before this one has compared what it saw."""
        nonlocal has_met
        found = stat(name)
        if name.endswith("-wal") and not has_met:
            has_met = True
            grow(grown, 5)
            watch.check()
        return found

    with monkeypatch.context() as moment:
        moment.setattr("perdure.storage.sqlite.lost_commits.os.stat", met)
        watch.check()
    assert has_met
    watch.check()


def test_a_log_that_was_emptied_by_a_checkpoint_and_has_grown_again_was_not_cut(
    path: Path, grown: sqlite3.Connection
) -> None:
    watch = FileWatch(path)
    watch.check()
    grown.execute("pragma wal_checkpoint(truncate)")
    grow(grown, 1)
    watch.check()


def test_a_log_that_was_cut_is_noticed_at_once(path: Path, grown: sqlite3.Connection) -> None:
    watch = FileWatch(path)
    watch.check()
    os.truncate(f"{path}-wal", 8_000)
    with pytest.raises(StoreReplaced, match="truncated"):
        watch.check()
