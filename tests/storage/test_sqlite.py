"""What only the SQLite store has: a file that can be damaged, full, foreign or too new, and processes that die."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.errors import RowDamaged, SchemaTooNew, StoreBroken, StoreBusy
from perdure.kernel.events import Event
from perdure.kernel.rows import Entry, PublishedValue, StreamItem, Wait
from perdure.kernel.runs import Audit, Damage, Outcome, Run
from perdure.ports import RunFilter
from perdure.storage.sqlite import SqliteStore, schema
from perdure.storage.sqlite.hints import LogWatch, Writes
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.schema import MIGRATIONS, SCHEMA_VERSION
from perdure.storage.sqlite.switch_interval import COMMIT_SWITCH_INTERVAL_S, BriskSwitching
from perdure.testing.conformance.base import Author, a_run, a_wait, an_entry, insert, update

LARGE = "x" * 100_000
TABLES = ("SCAN runs", "SCAN waits", "SCAN published", "SCAN stream_items")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def sql(path: Path, statement: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()


async def refuses(path: Path, *hints: str, error: type[StoreBroken] = StoreBroken) -> StoreBroken:
    store = SqliteStore(path)
    with pytest.raises(error) as caught:
        await store.open()
    for hint in (str(path), *hints):
        assert hint in str(caught.value)
    await store.close()
    return caught.value


# ---------------------------------------------------------------------------------------------------------------------
# The file


async def test_the_file_is_durable_and_small_beside_itself(path: Path) -> None:
    async with opened(path) as store:

        def pragmas(connection: sqlite3.Connection) -> list[object]:
            names = ("journal_mode", "synchronous", "busy_timeout")
            return [connection.execute(f"pragma {name}").fetchone()[0] for name in names]

        assert await store._db.writer.run(pragmas) == ["wal", 2, 5000]
        assert await store._db.reader.run(lambda c: c.execute("pragma query_only").fetchone()[0]) == 1
        await Author.enroll(store, "e-1")
        assert (path.parent / "runs.db-engine-e-1.lock").exists()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    async with opened(path):
        pass
    sql(path, "update perdure_schema set version = 99")
    error = await refuses(path, "99", f"up to {SCHEMA_VERSION}", "upgrade Perdure", error=SchemaTooNew)
    assert vars(error)["version"] == 99
    assert vars(error)["known"] == SCHEMA_VERSION
    assert sql(path, "select version from perdure_schema") == [(99,)]


async def test_a_file_from_before_streams_is_brought_up_to_date_with_its_runs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", {n: text for n, text in schema.MIGRATIONS.items() if n < 5})
        async with opened(path) as store:
            await (await Author.enroll(store)).commit(insert(a_run()))
        assert sql(path, "select name from sqlite_master where name = 'stream_items'") == []
    async with opened(path) as store:
        author = await Author.enroll(store, "e-2")
        await author.commit(stream_items=[StreamItem(run_id="r-1", stream="log", value="1", at=1)])
        assert [item.offset for item in (await store.stream("r-1", "log", after=0, limit=9)).items] == [1]
        assert await store.published("r-1") == []
    assert sql(path, "select version from perdure_schema") == [(SCHEMA_VERSION,)]


async def test_a_file_that_is_up_to_date_is_opened_while_somebody_writes_to_it(path: Path) -> None:
    async with opened(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        async with opened(path) as store:
            assert await store.engines() == []


async def test_tables_of_somebody_else_with_our_names_are_refused_and_left_alone(path: Path) -> None:
    sql(path, "create table runs (speed integer)")
    await refuses(path, "runs", "a file of its own")
    assert sql(path, "select name from sqlite_master") == [("runs",)]
    assert sql(path, "pragma journal_mode") == [("delete",)]


async def test_a_file_of_the_first_schema_is_brought_up_to_date_with_what_is_in_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MIGRATIONS[1])
        connection.execute("insert into perdure_schema (version) values (1)")
        for run_id in ("old", "older"):
            waiting = (run_id, "1", "retry", "pay", 500, 2, "{}", 4)
            connection.execute("insert into waits values (?, ?, ?, ?, ?, ?, ?, ?)", waiting)
        connection.commit()
    async with opened(path) as store:
        author = await Author.enroll(store, "e-1")
        await author.commit(insert(a_run("old", owner="e-1")))
        (wait,) = (await store.load(["old"]))["old"].waits
        assert wait == a_wait("old", kind="retry", name="pay", attempts=2, failure="{}", since=4, details=None)
        await author.commit(waits={("old", "1"): a_wait("old", kind="beat", details="1")})
        assert (await store.load(["old"]))["old"].waits == (a_wait("old", kind="beat", details="1"),)
    assert sql(path, "select version from perdure_schema") == [(SCHEMA_VERSION,)]


async def test_a_file_may_have_other_tables(path: Path) -> None:
    sql(path, "create table orders (id)")
    async with opened(path):
        pass
    assert sql(path, "select * from orders") == []


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)
    await refuses(path, "not an SQLite database")
    assert path.read_text().startswith("Dear diary")


async def test_a_damaged_file_is_refused(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await author.commit(*(insert(a_run(f"r-{i}"), LARGE) for i in range(20)))
    with path.open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(50_000))
    await refuses(path, "damaged", "backup")


async def test_an_empty_file_is_a_new_database(path: Path) -> None:
    path.touch()
    async with opened(path) as store:
        assert await store.engines() == []


async def test_a_missing_directory_is_refused(path: Path) -> None:
    await refuses(path / "sub" / "runs.db", "does not exist")


async def test_a_directory_is_refused(path: Path) -> None:
    path.mkdir()
    await refuses(path, "is a directory")


@pytest.mark.parametrize(("what", "mode"), [("runs.db", 0o444), (".", 0o555)])
def test_what_is_read_only_is_refused(what: str, mode: int) -> None:
    script = """
        import asyncio, os, sys
        from perdure.errors import StoreBroken
        from perdure.storage.sqlite import SqliteStore, schema
        if os.geteuid() == 0:
            os.setuid(65534)  # Nothing is read-only for root.
        try:
            asyncio.run(SqliteStore(sys.argv[1]).open())
        except StoreBroken as error:
            print(error)
    """
    # pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        sql(directory / "runs.db", "create table orders (id)")
        directory.chmod(0o777)
        (directory / what).chmod(mode)
        said = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script), directory / "runs.db"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ).stdout
        directory.chmod(0o755)
    assert "read-only" in said
    assert "runs.db" in said


async def test_two_links_to_one_file_are_one_database(path: Path) -> None:
    link = path.with_name("link.db")
    async with opened(path) as store:
        await Author.enroll(store)
        link.symlink_to(path)
        async with opened(link) as other:
            assert await other.mark_dead_engines() == []


async def test_a_row_that_is_no_run_is_never_taken_for_one(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await author.commit(insert(a_run()))
        for column, value in (("status", "dancing"), ("version", "many"), ("tags", "[]"), ("hold", "{")):
            [(before,)] = sql(path, f"select {column} from runs")
            sql(path, f"update runs set {column} = ?", value)
            found = [(await store.load(["r-1"]))["r-1"].run, (await store.get(["r-1"]))["r-1"].run]
            if column == "status":
                assert await store.list(RunFilter()) == []  # Listings go by the statuses that there are.
            else:
                found += await store.list(RunFilter())
            for run in found:
                assert isinstance(run.hold, Damage)
                assert f"runs.{column} of row 'r-1' holds {value!r}" in run.hold.reason
            sql(path, f"update runs set {column} = ?", before)
        assert await store.load(["r-1"])


async def test_a_table_taken_away_is_a_broken_store(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        sql(path, "drop table audit")
        with pytest.raises(StoreBroken, match="audit"):
            await store.audit("r-1")
        await author.commit(insert(a_run()))


# ---------------------------------------------------------------------------------------------------------------------
# Writing


async def test_a_full_disk_is_told_and_leaves_nothing_half_written(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await author.commit(insert(a_run()))

        def limit(pages: int) -> Callable[[sqlite3.Connection], object]:
            return lambda connection: connection.execute(f"pragma max_page_count = {pages}").fetchone()

        await store._db.writer.run(limit(1))  # SQLite takes the present size for less than that.
        batch = author.batch(
            update(a_run(), outcome=Outcome(output=LARGE)),
            *(insert(a_run(f"more-{i}"), LARGE) for i in range(10)),
            journal=[an_entry(value=LARGE)],
        )
        for _ in range(3):
            with pytest.raises(StoreBusy, match="is full"):
                await store.commit(batch)
        stored = (await store.get(["r-1", "more-0"]))["r-1"]
        assert (stored.run, stored.outcome) == (a_run(), Outcome())
        assert (await store.journal("r-1"))[1] == []
        assert [engine.batch for engine in await store.engines()] == [1]
        await store._db.writer.run(limit(1_000_000))
        await store.commit(batch)
        assert len(await store.list(RunFilter())) == 11
    assert sql(path, "pragma integrity_check") == [("ok",)]


async def test_a_lock_held_for_too_long_is_busy(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await store._db.writer.run(lambda connection: connection.execute("pragma busy_timeout = 1").fetchone())
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            with pytest.raises(StoreBusy, match="locked"):
                await store.commit(author.batch(insert(a_run())))
        await author.commit(insert(a_run()))


async def test_large_payloads_stand_apart_and_go_with_what_they_belong_to(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        entries = [an_entry(value=LARGE), an_entry(seq=2, failure=LARGE), an_entry(seq=3, value="x" * 8192)]
        await author.commit(insert(a_run(), LARGE, Outcome(output=LARGE, failure=LARGE)), journal=entries)
        slots = "select slot from payloads order by slot"
        assert [slot for (slot,) in sql(path, slots)] == ["entry:1", "entry:2", "failure", "input", "output"]
        assert sql(path, "select input, output, failure from runs") == [(None, None, None)]
        assert sql(path, "select value is null from journal") == [(1,), (1,), (0,)]
        write = update(a_run(), outcome=Outcome(output="1"))
        write.input = "2"
        await author.commit(write, archive=[("r-1", 2, 7)])
        assert [slot for (slot,) in sql(path, slots)] == ["archive:7:2", "entry:1"]
        sql(path, "delete from payloads")
        with pytest.raises(RowDamaged, match=r"payloads\.data"):
            await store.journals(["r-1"])
        for entry in [(await store.journal("r-1"))[1][0], (await store.archived("r-1"))[0][1]]:
            assert "payloads.data" in (entry.failure or "")


async def test_results_of_a_kilobyte_share_their_pages(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await author.commit(insert(a_run()))
        before = await store._db.reader.run(_size)
        await author.commit(journal=[an_entry(seq=seq, value="x" * 1024) for seq in range(1, 101)])
        assert await store._db.reader.run(_size) - before < 100 * 1024 * 1.5


def _size(connection: sqlite3.Connection) -> int:
    pages, size = (connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * size)


async def test_tags_are_indexed_only_while_a_run_has_them(path: Path) -> None:
    async with opened(path) as store:
        author = await Author.enroll(store)
        await author.commit(insert(a_run(tags={"k": "v"})), insert(a_run("r-2")))
        assert sql(path, "select key, value, run_id from run_tags") == [("k", "v", "r-1")]
        await author.commit(update(a_run(), tags={}))
        assert sql(path, "select * from run_tags") == []


def test_switching_is_brisk_from_the_first_entry_to_the_last_exit() -> None:
    before = sys.getswitchinterval()
    brisk = BriskSwitching()
    with brisk:
        with brisk:
            assert sys.getswitchinterval() == pytest.approx(COMMIT_SWITCH_INTERVAL_S)
        assert sys.getswitchinterval() == pytest.approx(COMMIT_SWITCH_INTERVAL_S)
    assert sys.getswitchinterval() == pytest.approx(before)


# ---------------------------------------------------------------------------------------------------------------------
# Queries


def test_columns_stand_in_the_order_of_the_records() -> None:
    def columns(query: str) -> tuple[str, ...]:
        listed = QUERIES[query].partition("(")[2].partition(")")[0] if "insert" in query else QUERIES[query]
        return tuple(name.strip().rpartition(".")[2] for name in listed.split(","))

    def selected(query: str) -> tuple[str, ...]:
        listed = QUERIES[query].removeprefix("select ").partition(" from ")[0]
        return tuple(name.strip().strip('"') for name in listed.split(","))

    # What was tried is in the column of the hold's fingerprint while a run is not held.
    assert columns("run_columns")[:-1] == Run.__struct_fields__[:-1]
    assert columns("insert_journal") == (*Entry.__struct_fields__, "spilled")
    assert columns("insert_audit") == Audit.__struct_fields__
    assert columns("event_columns") == Event.__struct_fields__
    assert selected("published") == PublishedValue.__struct_fields__[:-1]
    assert selected("stream") == StreamItem.__struct_fields__[:-1]
    assert columns("wait_columns") == tuple("filter" if name == "where" else name for name in Wait.__struct_fields__)


@pytest.mark.parametrize(
    "query",
    [
        "claimable",
        "owners",
        "release",
        "update_runs",
        "update_runs_with_outcome",
        "drop_waits",
        "clear_waits",
        "published",
        "stream",
        "last_offset",
        "said_in",
        "forget_said",
        "outdate_published",
    ],
)
async def test_what_is_done_often_walks_an_index(path: Path, query: str) -> None:
    async with opened(path) as store:
        text = QUERIES[query]
        variables: Any = [None] * text.count("?") if "?" in text else dict.fromkeys(re.findall(r":(\w+)", text))
        plan = await store._db.writer.run(lambda c: c.execute(f"explain query plan {text}", variables).fetchall())
    steps = [step[3] for step in plan]
    assert not [step for step in steps if step.startswith(TABLES) or "TEMP B-TREE" in step]
    assert [step for step in steps if step.startswith("SEARCH")]


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    head = "import asyncio, sys\nfrom perdure.storage.sqlite import SqliteStore\n"
    head += "from perdure.testing.conformance.base import Author, a_run, an_entry, insert\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_processes_that_open_a_new_file_at_the_same_time_all_succeed(path: Path) -> None:
    script = """
        async def main():
            store = SqliteStore(sys.argv[1])
            print("ready", flush=True)
            sys.stdin.readline()
            await store.open()
            await Author.enroll(store, sys.argv[2])
            await store.close()
            print("done")
        asyncio.run(main())
    """
    processes = [start(script, path, f"e-{i}") for i in range(4)]
    assert [line(process) for process in processes] == ["ready"] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["done"] * 4
    assert sql(path, "select version from perdure_schema") == [(SCHEMA_VERSION,)]
    assert sql(path, "select count(*), max(epoch) from engines") == [(4, 4)]


async def test_a_killed_process_is_found_dead_at_once_and_what_it_committed_is_whole(path: Path) -> None:
    script = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            author = await Author.enroll(store, "victim")
            for i in range(1_000_000):
                run = a_run(f"r-{i}", owner="victim")
                await author.commit(insert(run, "x" * 20_000), journal=[an_entry(run.id)])
                print(i, flush=True)
        asyncio.run(main())
    """
    async with opened(path) as store:
        process = start(script, path)
        told = [line(process) for _ in range(20)]
        assert await store.mark_dead_engines() == []
        process.kill()
        process.wait()
        assert await store.mark_dead_engines() == ["victim"]
        assert not list(path.parent.glob("*.lock"))
        rest = process.communicate()[0].split()
        heir = await Author.enroll(store, "heir")
        claimed = await heir.claim(1_000_000)
        [victim, _] = await store.engines()
        # The last commit may have landed without having been told.
        assert victim.batch == len(claimed)
        assert len(claimed) - len(told) - len(rest) in (0, 1)
        for run_id in claimed:
            assert await store.journal(run_id) == ("x" * 20_000, [an_entry(run_id)])
    assert sql(path, "pragma integrity_check") == [("ok",)]


async def test_a_change_of_the_log_is_told_again_since_it_comes_before_what_it_announces(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(b"frames")
    told = asyncio.Queue[None]()
    watch = LogWatch(path, lambda: told.put_nowait(None), Writes())
    log.write_bytes(b"frames of a commit that is on its way to the disk")
    for _ in range(3):
        await told.get()
    watch.end()
    assert told.empty()


async def test_what_the_store_itself_writes_is_not_told_before_it_rests(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(b"frames")
    writes, told = Writes(), asyncio.Queue[bool]()
    watch = LogWatch(path, lambda: told.put_nowait(writes.is_busy), writes)
    writes.is_busy = True

    def rest() -> None:
        writes.count += 1
        writes.is_busy = False

    log.write_bytes(b"frames of the store's own commit")
    asyncio.get_running_loop().call_later(0.1, rest)
    assert not await told.get()  # Something of others may hide behind it.
    watch.end()


async def test_what_others_write_is_told_though_the_store_itself_writes_all_the_time(path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(b"frames")
    writes, told = Writes(), asyncio.Event()
    watch = LogWatch(path, told.set, writes)
    writes.is_busy = writes.others_seen = True
    log.write_bytes(b"frames of two commits")
    await told.wait()
    watch.end()


def test_a_writer_sees_that_others_have_written(path: Path) -> None:
    mine, theirs = (sqlite3.connect(path, isolation_level=None) for _ in range(2))
    mine.execute("pragma journal_mode = wal")
    mine.execute("create table things (thing)")
    writes = Writes()
    for _ in range(3):
        writes.do(lambda connection: connection.execute("insert into things values ('mine')"), mine)
    assert (writes.count, writes.others_seen) == (3, False)
    theirs.execute("insert into things values ('theirs')")
    writes.do(lambda connection: connection.execute("insert into things values ('mine')"), mine)
    assert writes.others_seen
    mine.close()
    theirs.close()


async def test_a_lock_file_that_is_gone_means_dead(path: Path) -> None:
    async with opened(path) as store, opened(path) as other:
        await Author.enroll(store, "e-1")
        (path.parent / "runs.db-engine-e-1.lock").unlink()
        assert await store.mark_dead_engines() == []
        assert await other.mark_dead_engines() == ["e-1"]


async def test_an_abandoned_store_leaves_its_lock_file_as_a_killed_process_would(path: Path) -> None:
    lock = path.parent / "runs.db-engine-e-1.lock"
    async with opened(path) as store, opened(path) as other:
        await Author.enroll(store, "e-1")
        store.abandon()
        assert lock.exists()
        assert await other.mark_dead_engines() == ["e-1"]
        assert not lock.exists()


# Who may read the files.


@pytest.mark.parametrize("mask", [0o022, 0o000])
async def test_a_new_file_its_log_and_its_lock_are_for_the_owner_only(tmp_path: Path, mask: int) -> None:
    was = os.umask(mask)
    try:
        async with Engine(f"sqlite:///{tmp_path / 'shop.db'}", workflows=[]):
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(was)
    assert len(modes) >= 4, modes
    assert set(modes.values()) == {0o600}, modes


async def test_files_belong_to_whom_the_database_belongs_also_if_root_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.touch(0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    async with Engine(f"sqlite:///{path}", workflows=[]):
        owners = {one.name: (one.stat().st_uid, one.stat().st_gid) for one in tmp_path.iterdir()}
    assert len(owners) >= 4, owners
    assert set(owners.values()) == {(path.stat().st_uid, path.stat().st_gid)}, owners


async def test_files_beside_a_file_that_a_group_shares_are_shared_too(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    path.touch()
    path.chmod(0o660)
    async with Engine(f"sqlite:///{path}", workflows=[]):
        modes = {one.name: one.stat().st_mode & 0o777 for one in tmp_path.iterdir()}
    assert set(modes.values()) == {0o660}, modes
