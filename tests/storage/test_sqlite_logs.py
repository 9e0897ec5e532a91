"""A write-ahead log that is cut, or replaced by one from another time: what was acknowledged is there, or is missed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Engine
from perdure.errors import EngineStopped, StoreBroken
from perdure.storage.sqlite.log_files import is_log_outdated
from perdure.storage.sqlite.lost_commits import known_losses
from perdure.storage.sqlite.store import SqliteStore
from perdure.testing.conformance.base import Author
from perdure.upgrade import look
from tests.storage.test_sqlite_files import touching

FRAME_HEADER, LOG_HEADER = 24, 32

# Each ends with a kill, and has written the ids of all runs that were acknowledged to a file.
BEGIN = """
    import asyncio, os, signal, sqlite3, subprocess, sys
    from pathlib import Path
    from perdure import Client, Engine
    from tests.storage.test_sqlite_files import touching

    path, acknowledged = sys.argv[1], open(sys.argv[2], "a")

    def opened():
        return Engine(f"sqlite:///{path}", workflows=[touching])

    async def work(engine, *ids):
        for id in ids:
            await engine.run(touching(), id=id)
            acknowledged.write(id + "\\n")
            acknowledged.flush()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)
"""
ENDS = {
    "killed": """
    async def main():
        engine = opened()
        await engine.open()
        await work(engine, "a-1", "a-2", "a-3")
        die()
    """,
    "taken over by one that commits nothing": """
    async def main():
        engine, other = opened(), Client(f"sqlite:///{path}")
        await other.open()
        await engine.open()
        await work(engine, "a-1", "a-2")
        engine.session.store.abandon()
        await other.engines.mark_dead()
        die()
    """,
    "closed beside another": """
    async def main():
        engine, other = opened(), Client(f"sqlite:///{path}")
        await other.open()
        await engine.open()
        await work(engine, "a-1", "a-2")
        await engine.shutdown()
        die()
    """,
    "closed beside a reader": """
    async def main():
        engine = opened()
        await engine.open()
        await work(engine, "a-1")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("begin")
        reader.execute("select * from runs").fetchall()
        await work(engine, "a-2", "a-3")
        await engine.shutdown()
        die()
    """,
    "after a checkpoint of a part": """
    async def main():
        engine = opened()
        await engine.open()
        await work(engine, "a-1")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("begin")
        reader.execute("select * from runs").fetchall()
        await work(engine, "a-2", "a-3")
        sqlite3.connect(path, isolation_level=None).execute("pragma wal_checkpoint(passive)")
        die()
    """,
}
GO = """
    asyncio.run(main())
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a database, its log, and the ids of acknowledged runs."""
    made: dict[str, Path] = {}
    for name, end in ENDS.items():
        made[name] = folder = tmp_path_factory.mktemp("ended")
        asyncio.run(_make(folder / "runs.db"))
        code = "\n".join(textwrap.dedent(part) for part in (BEGIN, end, GO))
        result = subprocess.run(
            [sys.executable, "-c", code, str(folder / "runs.db"), str(folder / "acknowledged")], check=False
        )
        assert result.returncode == -signal.SIGKILL
    return made


async def _make(path: Path) -> None:
    async with Engine(f"sqlite:///{path}", workflows=[touching]) as engine:
        await engine.run(touching(), id="before")


def cuts(log: Path) -> list[int]:
    """Lengths of the log: at each end of a frame, and between."""
    if not log.exists():
        return [0]
    with log.open("rb") as file:
        frame = int.from_bytes(file.read(12)[8:], "big") + FRAME_HEADER
    ends = range(LOG_HEADER, log.stat().st_size + 1, frame)
    return sorted({0, LOG_HEADER // 2, *ends, *(end - frame // 2 for end in ends[1:])})


async def missed(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[set[str], str]:
    """Which acknowledged runs a store that is opened now has not; and what is said of it."""
    path = folder / "runs.db"
    wanted = {"before", *(folder / "acknowledged").read_text("utf-8").split()}
    caplog.clear()
    store = SqliteStore(path)
    try:
        await store.open()
        await Author.enroll(store, "e-new")
        found = set(await store.get(sorted(wanted)))
    except StoreBroken as error:
        return wanted, str(error)
    finally:
        await store.close()
    said = "; ".join(record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert bool(said) == bool(known_losses(path))  # The doctor says it too.
    return wanted - found, said


@pytest.mark.parametrize("index", ["with its index", "without its index"])
@pytest.mark.parametrize("end", ENDS)
async def test_what_a_cut_log_has_lost_is_missed_wherever_it_is_cut(
    ended: dict[str, Path], end: str, index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = cuts(ended[end] / "runs.db-wal")
    outcomes: set[bool] = set()
    for number, length in enumerate([*lengths, None]):
        folder = shutil.copytree(ended[end], tmp_path / str(number))
        log = folder / "runs.db-wal"
        if length is None:
            log.unlink(missing_ok=True)
        elif log.exists():
            os.truncate(log, length)
        if index == "without its index":
            (folder / "runs.db-shm").unlink(missing_ok=True)
        lost, said = await missed(folder, caplog)
        assert not lost or said, (length, lengths, lost)
        outcomes.add(bool(lost))
        if length == lengths[-1]:
            assert (lost, said) == (set(), "")  # It is whole: nothing is made up.
    assert outcomes == {False, True} or "closed beside another" in end or "taken over" in end


async def test_a_log_that_is_overwritten_in_the_middle_is_missed_from_there_on(
    ended: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lengths = cuts(ended["killed"] / "runs.db-wal")
    for number, place in enumerate(lengths[1:-1]):
        folder = shutil.copytree(ended["killed"], tmp_path / str(number))
        with (folder / "runs.db-wal").open("r+b") as log:
            log.seek(place)
            log.write(b"\0" * 64)
        lost, said = await missed(folder, caplog)
        assert not lost or said, (place, lengths, lost)


@pytest.mark.parametrize("stopped", ["in order", "by a kill"])
async def test_a_log_from_another_time_is_refused_and_the_database_stays_as_it_was(
    ended: dict[str, Path], stopped: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite would take its old pages for the newest ones, and write them into the file."""
    folder = shutil.copytree(ended["killed"], tmp_path / "runs")
    path, log = folder / "runs.db", folder / "runs.db-wal"
    aside = Path(shutil.copyfile(log, tmp_path / "older"))
    async with Engine(f"sqlite:///{path}", workflows=[touching]) as engine:
        await engine.run(touching(), id="since")
    assert not log.exists()
    newer = b""
    if stopped == "by a kill":
        code = "\n".join(textwrap.dedent(part) for part in (BEGIN, ENDS["killed"].replace("a-", "c-"), GO))
        subprocess.run([sys.executable, "-c", code, str(path), str(folder / "acknowledged")], check=False)
        newer = log.read_bytes()
    before = path.read_bytes()
    shutil.copyfile(aside, log)
    (folder / "runs.db-shm").unlink(missing_ok=True)
    for _ in range(2):
        with pytest.raises(StoreBroken, match="does not belong to"):
            await look(f"sqlite:///{path}")
        _, said = await missed(folder, caplog)
        assert "move this log away" in said
    assert path.read_bytes() == before
    if newer:
        log.write_bytes(newer)
    else:
        log.unlink()
    (folder / "runs.db-shm").unlink(missing_ok=True)
    assert await missed(folder, caplog) == (set(), "")


async def test_a_log_of_another_database_is_refused(ended: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(ended["killed"], tmp_path / "runs")
    await _make(tmp_path / "runs.db")
    shutil.copyfile(folder / "runs.db-wal", tmp_path / "runs.db-wal")
    with pytest.raises(StoreBroken, match="does not belong to"):
        await SqliteStore(tmp_path / "runs.db").open()


async def test_an_idle_engine_notices_that_its_log_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    engine = Engine(f"sqlite:///{path}", workflows=[touching], poll_s=0.01)
    await engine.open()
    await engine.run(touching(), id="r")
    log = tmp_path / "runs.db-wal"
    os.truncate(log, log.stat().st_size - 1)

    async def until_stopped() -> None:
        while True:
            await engine.runs.count()
            await asyncio.sleep(0.01)

    with pytest.raises(EngineStopped, match=r"runs\.db-wal was truncated"):
        await asyncio.wait_for(until_stopped(), 60)
    await engine.shutdown(grace=0)


async def test_an_engine_whose_log_was_cut_writes_nothing_behind_the_gap(tmp_path: Path) -> None:
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    engine = Engine(f"sqlite:///{path}", workflows=[touching], poll_s=None)
    await engine.open()
    await engine.run(touching(), id="r")
    os.truncate(log, log.stat().st_size - 1)
    cut = log.read_bytes()
    with pytest.raises(EngineStopped, match=r"runs\.db-wal was truncated"):
        await engine.run(touching(), id="void")
    assert log.read_bytes() == cut
    await engine.shutdown(grace=0)


async def test_a_log_that_was_brought_in_and_emptied_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with Engine(f"sqlite:///{path}", workflows=[touching], poll_s=0.01) as engine:
        await engine.run(touching(), id="r-1")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            for _ in range(100):
                if other.execute("pragma wal_checkpoint(truncate)").fetchone()[0] == 0:
                    break
        assert (tmp_path / "runs.db-wal").stat().st_size == 0
        await engine.run(touching(), id="r-2")
        assert not is_log_outdated(path)
    assert known_losses(path) == []
