"""How SQLite goes about the store's queries: with a million runs in the file, none may read a whole table.

SQLite decides by the text of a statement, so that of many rows is looked at, not that of one.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure.storage.lists import ways
from perdure.storage.sqlite import artifacts, cooperation, queries, records, tasks
from perdure.storage.sqlite.connection import connect_writer
from perdure.storage.sqlite.lists import counting, listing
from perdure.storage.sqlite.queries import GatheredRows, WideStatement
from tests.storage.listings import LISTINGS, Listing

QUERIES = {**queries.QUERIES, **artifacts.QUERIES, **tasks.QUERIES, **records.QUERIES, **cooperation.QUERIES}

WIDE = {
    name: value for name, value in {**vars(queries), **vars(cooperation)}.items() if isinstance(value, WideStatement)
}
GATHERED = {name: value for name, value in vars(queries).items() if isinstance(value, GatheredRows)}
SINGLE = sorted(
    name
    for name, text in QUERIES.items()
    if text.startswith(("select", "update", "insert", "delete", "with")) and "(?" not in text
)

# Without an index that is only as long as what is looked for, and by name.
WHOLE_TABLE = re.compile(
    r"SCAN (runs|waits|events|journal|journal_archive|audit|payloads|event_reads|event_keys|staged|artifacts"
    r"|artifact_chunks|tasks|records|messages|message_event|return_value)( USING INDEX sqlite_autoindex_\w+)?$"
)

# People look at these, a page at a time; and purging comes once in a while, when something has expired.
SELDOM = {"queued_events", "letters", "purge_reads", "tasks_all"}


class Nothing(dict[str, None]):
    def __missing__(self, key: str) -> None:
        return None


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "runs.db"
    with closing(connect_writer(path)) as connection:
        yield connection


def plan(database: sqlite3.Connection, text: str) -> list[str]:
    variables = [None] * text.count("?") if "?" in text else Nothing()
    return [step[3] for step in database.execute(f"explain query plan {text}", variables)]


@pytest.mark.parametrize("name", sorted(WIDE))
def test_no_statement_for_many_rows_reads_a_whole_table(database: sqlite3.Connection, name: str) -> None:
    (text, _), *_ = WIDE[name].executions([(None,) * 30] * 128)
    steps = plan(database, text)
    assert not [step for step in steps if WHOLE_TABLE.match(step)], steps


@pytest.mark.parametrize("name", sorted(GATHERED))
def test_to_gather_rows_takes_no_other_way_than_to_read_them(database: sqlite3.Connection, name: str) -> None:
    rows = GATHERED[name]
    ways = [step for step in plan(database, rows.sql) if step.startswith(("SCAN", "SEARCH", "USE"))]
    gathered = plan(database, rows.gathering(database, Nothing()))
    assert [step for step in gathered if step.startswith(("SCAN", "SEARCH", "USE")) and "(subquery" not in step] == ways


@pytest.mark.parametrize("name", [name for name in SINGLE if name not in SELDOM])
def test_no_query_reads_a_whole_table(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, QUERIES[name])
    assert not [step for step in steps if WHOLE_TABLE.match(step)], steps


@pytest.mark.parametrize(
    "name", ["ripe_waits", "ripe_deadlines", "claimable", "waiting", "queue", "purge_events", "free_tasks"]
)
def test_what_takes_the_first_of_many_sorts_nothing(database: sqlite3.Connection, name: str) -> None:
    steps = plan(database, QUERIES[name])
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


@pytest.mark.parametrize("listed", LISTINGS, ids=str)
def test_every_way_to_list_runs_walks_an_index_and_sorts_nothing(database: sqlite3.Connection, listed: Listing) -> None:
    found = ways(listed.wanted)
    assert tuple(way.query for way in found) == listed.ways
    for way in found:
        steps = plan(database, listing(way.query, len(way.statuses)))
        walked = [step for step in steps if step.startswith(("SCAN", "SEARCH")) and not step.startswith("SCAN wanted")]
        index = "run_tags USING PRIMARY KEY" if way.query == "by_tag" else f"runs USING INDEX {listed.index(way.query)}"
        assert sum(index in step for step in walked) == max(1, len(way.statuses)), steps
        assert not [step for step in walked if step.startswith("SCAN runs") or "TEMP B-TREE" in step], steps
        assert not [step for step in plan(database, counting(way.query, len(way.statuses))) if WHOLE_TABLE.match(step)]


def test_rows_of_a_wide_run_are_found_by_their_numbers(database: sqlite3.Connection) -> None:
    """A run has several rows for each of its children: to look for one by its scope alone reads all of them."""
    assert "SEARCH message_event USING PRIMARY KEY (scope=? AND seq=?)" in plan(database, QUERIES["events_at"])
