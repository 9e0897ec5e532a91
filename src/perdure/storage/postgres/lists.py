"""Lists of runs: the statements for a filter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from msgspec.structs import asdict

from perdure.ports import ArtifactFilter, RunFilter, TaskFilter
from perdure.storage.lists import COUNTED_MAX, Way, cursor, for_each_status, narrowest, ways
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import QUERIES, Query, to_query
from perdure.storage.postgres.rows import json_text

# Each statement reads an index in its order, and stops when the page is full. By default, Postgres estimates how many
# runs meet a condition. If it expects few runs, it reads all of them and sorts them.
LISTING: Final = (
    "; ".join(f"set local {name} = off" for name in ("enable_sort", "enable_incremental_sort", "enable_bitmapscan"))
    + "; set local max_parallel_workers_per_gather = 0"
)


async def list_runs(connection: Connection, wanted: RunFilter) -> Sequence[Sequence[Any]]:
    way = await chosen_way(connection, wanted)
    query = listing(way.query, len(way.statuses))
    return await connection.fetch(query.sql, *query.arguments({**given(wanted), **way.variables}))


async def count_runs(connection: Connection, wanted: RunFilter) -> int:
    way = await chosen_way(connection, wanted)
    query = bounded_count(way.query, len(way.statuses))
    count: int = await connection.fetchval(query.sql, *query.arguments({**given(wanted), **way.variables}))
    return count


async def chosen_way(connection: Connection, wanted: RunFilter) -> Way:
    found = ways(wanted)
    if len(found) == 1:
        return found[0]
    counts: list[int] = []
    for way in found:
        query = counting(way.query, len(way.statuses))
        counts.append(await connection.fetchval(query.sql, *query.arguments({**given(wanted), **way.variables})))
    return narrowest(found, counts)


def given(wanted: RunFilter) -> dict[str, Any]:
    created_from, before_at, before_id = cursor(wanted)
    return {
        "workflow": wanted.workflow,
        "statuses": [str(status) for status in wanted.statuses] or None,
        "hold": wanted.hold,
        "parent_id": wanted.parent_id,
        "tags": json_text(wanted.tags) if wanted.tags else None,
        "created_from": created_from,
        "before_at": before_at,
        "before_id": before_id,
        "limit": max(0, wanted.limit),
    }


@cache
def listing(query: str, statuses: int) -> Query:
    """Return the statement for a way with this many statuses. It takes the newest runs of each status, and then the
    newest of all these runs.
    """
    columns, checks = QUERIES["run_columns"].text, QUERIES["filters"].text
    newest = QUERIES["newest_by_tag" if query == "by_tag" else "newest"].text
    return _for_each(f"select {columns} {QUERIES[query].text} and {checks}", statuses, newest)


@cache
def bounded_count(query: str, statuses: int) -> Query:
    """Return the statement that counts the runs that `listing` finds. It stops counting at the limit, and sorts
    nothing.
    """
    found = _for_each(f"select 1 {QUERIES[query].text} and {QUERIES['filters'].text}", statuses, "limit :limit").text
    return to_query(f"select count(*) from ({found}) as counted")  # noqa: S608 - of our own texts


@cache
def counting(query: str, statuses: int) -> Query:
    counted = _for_each(f"select 1 {QUERIES[query].text}", statuses, f"limit {COUNTED_MAX}").text
    return to_query(f"select count(*) from ({counted}) as counted")  # noqa: S608 - of our own texts


def _for_each(part: str, statuses: int, end: str) -> Query:
    whole = f"{for_each_status(f'({part} {end})', statuses)} {end}"
    return to_query(whole if statuses > 1 else for_each_status(f"{part} {end}", 1))


def within_variables(wanted: ArtifactFilter | TaskFilter) -> dict[str, Any]:
    """Return the variables of a query that lists artifacts or tasks."""
    within = wanted.within
    return asdict(wanted) | {
        "limit": max(0, wanted.limit),
        "workflows": None if within is None else [*within.workflows],
        "tag_keys": [] if within is None else [key for key, _ in within.tags],
        "tag_values": [] if within is None else [value for _, value in within.tags],
    }
