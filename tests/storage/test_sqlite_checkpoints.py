"""The write-ahead log is brought into the file while nothing waits to be written."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.storage.sqlite.checkpoints import PAGES, PAGES_MAX, PAUSE_S, Checkpoints
from perdure.storage.sqlite.connection import connect_reader, connect_steps, connect_writer
from perdure.storage.sqlite.thread import DatabaseThread

ROWS = 50


@pytest.fixture
def path(quick_path: Path) -> Path:
    return quick_path / "log.db"


def connected(path: Path) -> sqlite3.Connection:
    connection = connect_writer(path)
    connection.execute("create table if not exists things (id integer primary key, filling blob)")
    connection.execute("pragma wal_checkpoint(truncate)")
    return connection


def write(connection: sqlite3.Connection) -> None:
    """Some rows that take a page each."""
    connection.execute("begin immediate")
    connection.executemany("insert into things (filling) values (?)", [(bytes(7_000),)] * ROWS)
    connection.execute("commit")


def log_pages(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many there are, and how many of them are in the file, as somebody else finds it who looks now."""
    _busy, pages, done = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    return pages, done


def fill(connection: sqlite3.Connection, checkpoints: Checkpoints, is_enough: Callable[[float | None], bool]) -> None:
    for _ in range(PAGES_MAX // ROWS):
        if is_enough(checkpoints.patience_s(connection)):
            return
        write(connection)
    raise AssertionError("so many pages should be worth the trouble")


def test_commits_alone_leave_the_log_where_it_is(path: Path) -> None:
    with closing(connected(path)) as connection:
        empty = path.stat().st_size
        for _ in range(3 * PAGES // ROWS):
            write(connection)
        assert path.stat().st_size == empty
        for _ in range(2 * PAGES // ROWS):
            write(connection)
        assert path.stat().st_size > empty  # Longer than that it never gets, whatever happens.


def test_the_connection_of_steps_leaves_the_log_to_the_writer(path: Path) -> None:
    """Two connections that make checkpoints at the same instant are what some versions of SQLite cannot stand."""
    with closing(connected(path)), closing(connect_steps(path)) as steps:
        before = path.stat().st_size
        for _ in range(2 * PAGES_MAX // ROWS):
            write(steps)
        assert path.stat().st_size == before


def test_a_few_pages_are_left_some_more_wait_for_a_pause_and_many_do_not_wait(path: Path) -> None:
    with closing(connected(path)) as connection:
        checkpoints = Checkpoints()
        checkpoints.bring_in(connection)
        assert checkpoints.patience_s(connection) is None
        fill(connection, checkpoints, lambda patience_s: patience_s == PAUSE_S)
        fill(connection, checkpoints, lambda patience_s: patience_s == 0)
        before = path.stat().st_size
        checkpoints.bring_in(connection)
        assert path.stat().st_size > before
        assert checkpoints.patience_s(connection) is None


def test_the_length_of_the_log_is_learnt(path: Path) -> None:
    with closing(connected(path)) as connection:
        checkpoints = Checkpoints()
        checkpoints.bring_in(connection)
        fill(connection, checkpoints, lambda patience_s: patience_s == 0)
        checkpoints.bring_in(connection)  # One row a page, not two: so it was later than it should have been.
        for _ in range(PAGES // ROWS):
            write(connection)
        assert checkpoints.patience_s(connection) == 0


def test_what_somebody_reads_stays_in_the_log_and_goes_with_the_next(path: Path) -> None:
    with closing(connected(path)) as connection, closing(connect_reader(path)) as reader:
        checkpoints = Checkpoints()
        reader.execute("begin")
        assert reader.execute("select count(*) from things").fetchone() == (0,)
        write(connection)
        checkpoints.bring_in(connection)
        pages, done = log_pages(connection)
        assert done < pages
        assert reader.execute("select count(*) from things").fetchone() == (0,)
        reader.execute("rollback")
        checkpoints.bring_in(connection)
        pages, done = log_pages(connection)
        assert done == pages


def test_one_that_fails_changes_nothing_and_nobody_hears_of_it(path: Path) -> None:
    with closing(connected(path)) as connection:
        checkpoints = Checkpoints()
        write(connection)
        connection.execute("begin immediate")  # No connection can do it inside its own transaction.
        checkpoints.bring_in(connection)
        connection.execute("rollback")
        assert connection.execute("select count(*) from things").fetchone() == (ROWS,)


class NoMemory(sqlite3.Connection):
    """What SQLite has no memory for, the module raises as MemoryError."""

    def execute(self, sql: str, *variables: Any) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            raise MemoryError
        return super().execute(sql, *variables)


def test_nor_does_anybody_hear_of_one_that_there_is_no_memory_for(path: Path) -> None:
    connected(path).close()
    with closing(sqlite3.connect(path, factory=NoMemory)) as connection:
        Checkpoints().bring_in(connection)


def test_the_thread_that_writes_does_it_when_there_is_nothing_else_to_do(path: Path) -> None:
    async def scenario() -> None:
        thread = DatabaseThread("writer", path, connected, Checkpoints())
        await thread.start()
        empty = path.stat().st_size
        for _ in range(2 * PAGES // ROWS + 1):
            await thread.run(write)
        while path.stat().st_size == empty:
            await asyncio.sleep(0.01)
        await thread.stop()

    asyncio.run(scenario())


def test_a_pause_is_enough_for_a_quarter_of_it(path: Path) -> None:
    async def scenario() -> None:
        thread = DatabaseThread("writer", path, connected, Checkpoints())
        await thread.start()
        empty = path.stat().st_size
        for _ in range(PAGES // 2 // ROWS + 1):
            await thread.run(write)
        while path.stat().st_size == empty:
            await asyncio.sleep(0.01)
        assert await thread.run(lambda connection: connection.execute("select count(*) from things").fetchone())
        await thread.stop()

    asyncio.run(scenario())
