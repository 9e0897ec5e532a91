"""Lists of runs: the statements for a filter."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any

from msgspec.structs import asdict

from perdure.ports import ArtifactFilter, RunFilter, TaskFilter
from perdure.storage.lists import COUNTED_MAX, Way, cursor, for_each_status, narrowest, ways
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import json_text


def list_runs(connection: sqlite3.Connection, *, wanted: RunFilter) -> list[tuple[Any, ...]]:
    way = chosen_way(connection, wanted)
    return connection.execute(listing(way.query, len(way.statuses)), {**given(wanted), **way.variables}).fetchall()


def count_runs(connection: sqlite3.Connection, *, wanted: RunFilter) -> int:
    way = chosen_way(connection, wanted)
    statement = bounded_count(way.query, len(way.statuses))
    count: int = connection.execute(statement, {**given(wanted), **way.variables}).fetchone()[0]
    return count


def chosen_way(connection: sqlite3.Connection, wanted: RunFilter) -> Way:
    found = ways(wanted)
    if len(found) == 1:
        return found[0]
    return narrowest(found, [_count(connection, way, given(wanted)) for way in found])


def given(wanted: RunFilter) -> dict[str, object]:
    created_from, before_at, before_id = cursor(wanted)
    return {
        "workflow": wanted.workflow,
        "statuses": json_text(wanted.statuses) if wanted.statuses else None,
        "hold": wanted.hold,
        "parent_id": wanted.parent_id,
        "tags": json_text(wanted.tags) if wanted.tags else None,
        "created_from": created_from,
        "before_at": before_at,
        "before_id": before_id,
        "limit": max(0, wanted.limit),
    }


@cache
def listing(query: str, statuses: int) -> str:
    """Return the statement for a way with this many statuses. SQLite merges the parts while it reads them, and sorts
    nothing.
    """
    part = f"select {QUERIES['run_columns']} {QUERIES[query]} and {QUERIES['filters']}"
    return f"{for_each_status(part, statuses)} {QUERIES['newest_by_tag' if query == 'by_tag' else 'newest']}"


@cache
def bounded_count(query: str, statuses: int) -> str:
    """Return the statement that counts the runs that `listing` finds. It stops counting at the limit, and sorts
    nothing.
    """
    parts = for_each_status(f"select 1 {QUERIES[query]} and {QUERIES['filters']}", statuses)
    return f"select count(*) from ({parts} limit :limit)"  # noqa: S608 - of our own texts


@cache
def counting(query: str, statuses: int) -> str:
    parts = for_each_status(f"select 1 {QUERIES[query]}", statuses)
    return f"select count(*) from ({parts} limit {COUNTED_MAX})"  # noqa: S608 - of our own texts


def _count(connection: sqlite3.Connection, way: Way, variables: dict[str, object]) -> int:
    statement = counting(way.query, len(way.statuses))
    count: int = connection.execute(statement, {**variables, **way.variables}).fetchone()[0]
    return count


def within_variables(wanted: ArtifactFilter | TaskFilter) -> dict[str, Any]:
    """Return the variables of a query that lists artifacts or tasks."""
    within = wanted.within
    return asdict(wanted) | {
        "limit": max(0, wanted.limit),
        "workflows": None if within is None else json_text(within.workflows),
        "tags": None if within is None else json_text(within.tags),
        "within": None,
    }
