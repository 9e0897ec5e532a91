"""Rows that come all at once, as one JSON text: the same rows, in the same order, whatever is in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.storage.sqlite.queries import GatheredRows

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["", "\0", "a\0b", '"', "\\", "\x1f\x7f", "\u2028", "🦔", "[1]", "null", "{}"]),
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("create table things (number integer primary key, one, two)")
        yield connection


def fill(database: sqlite3.Connection, rows: list[tuple[object, object]]) -> None:
    database.execute("delete from things")
    database.executemany("insert into things (one, two) values (?, ?)", rows)


def things() -> GatheredRows:
    return GatheredRows("select number, one, two as other from things where number > :after order by number desc")


@given(st.lists(st.tuples(VALUES, VALUES), max_size=20), st.integers(0, 3))
def test_the_same_rows_come_in_the_same_order(
    database: sqlite3.Connection, rows: list[tuple[object, object]], after: int
) -> None:
    fill(database, rows)
    wanted = database.execute(things().sql, {"after": after}).fetchall()
    assert things().fetch(database, {"after": after}) == wanted


def test_many_rows_come_in_order(database: sqlite3.Connection) -> None:
    fill(database, [(number * 7919 % 10_007, f"row {number}") for number in range(10_007)])
    found = GatheredRows("select one, two from things order by one").fetch(database, {})
    assert [one for one, _ in found] == list(range(10_007))


@pytest.mark.parametrize("blob", [b"", b"\xff\x00"])
def test_what_has_no_json_form_comes_as_it_is(database: sqlite3.Connection, blob: bytes) -> None:
    fill(database, [("before", 1), (blob, 2), ("after", 3)])
    assert things().fetch(database, {"after": 0}) == [(3, "after", 3), (2, blob, 2), (1, "before", 1)]


def test_numbers_that_json_has_not_come_as_they_are(database: sqlite3.Connection) -> None:
    fill(database, [(float("inf"), 1), (-float("inf"), 2)])
    assert things().fetch(database, {"after": 0}) == [(2, -float("inf"), 2), (1, float("inf"), 1)]


def test_the_error_about_damaged_text_names_the_column(database: sqlite3.Connection) -> None:
    fill(database, [("fine", 1)])
    database.execute("update things set one = cast(x'80ff' as text)")
    with pytest.raises(sqlite3.OperationalError, match="column 'one'"):
        things().fetch(database, {"after": 0})


def test_what_is_too_long_for_one_text_comes_row_by_row(database: sqlite3.Connection) -> None:
    fill(database, [("x" * 400, number) for number in range(10)])
    before = database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
    try:
        found = things().fetch(database, {"after": 0})
    finally:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    assert [number for number, _, _ in found] == list(range(10, 0, -1))


def test_other_errors_are_not_hidden(database: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        GatheredRows("select * from nowhere").fetch(database, {})
