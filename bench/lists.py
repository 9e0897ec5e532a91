"""Pages of a million runs: every filter that listings have, and pairs of them, on SQLite and on Postgres.

`python -m bench.lists`, or with `--runs 20000` fewer. The stores are filled by SQL (lists_filling.py). Each filter is
asked for its first page, some in the middle, some at the end, and some drawn by lot: with `Client.runs`, by HTTP;
p95 is that of the slowest kind of page. What the database does for each is printed below. It ends with 1 if one is too
slow.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import httpx

from bench import lists_filling as filling
from bench.figures import percentile
from perdure import Client
from perdure.engine import AnyClient
from perdure.http import serving
from perdure.ports import RunFilter
from perdure.storage import open_store
from perdure.storage.postgres import PostgresStore
from perdure.storage.postgres import lists as postgres_listing
from perdure.storage.postgres.connection import connect
from perdure.storage.sqlite import lists as sqlite_listing
from tests.storage.postgres.server import PostgresServer

LIMIT_MS: Final = 100
PAGES: Final = ("first", "middle", "last", "any")

Filter = Mapping[str, Any]  # as Client.runs takes it
Plans = Callable[[RunFilter], Awaitable[list[str]]]


def filters(runs: int) -> dict[str, Filter]:
    """What is asked for, by what it is called. What fits few runs, or none, is the harder part."""
    day = timedelta(microseconds=runs * filling.APART_US // 10)
    since = filling.created(runs // 2)
    statuses = ("succeeded", "suspended", "failed", "rollback_failed")
    return {
        "all": {},
        "created, a tenth of the time": {"created_from": since, "created_before": since + day},
        **{f"status {status}": {"status": status} for status in statuses},
        "status, five of them": {"status": ["created", "running", "suspended", "cancelling", "failed"]},
        "workflow, a tenth": {"workflow": "flow-1"},
        "workflow, few": {"workflow": filling.RARE},
        "workflow, none": {"workflow": "flow-none"},
        "hold paused": {"hold": "paused"},
        "hold blocked": {"hold": "blocked"},
        "parent of 10,000": {"parent": filling.PARENT},
        "tag, half": {"tags": {"env": "test"}},
        "tag, few": {"tags": {"customer": "c-17"}},
        "status and workflow": {"status": "failed", "workflow": "flow-1"},
        "status and workflow, none": {"status": "failed", "workflow": filling.UNFAILING},
        "status and time": {"status": "suspended", "created_from": since, "created_before": since + day},
        "workflow and time": {"workflow": "flow-1", "created_from": since, "created_before": since + day},
        "status, workflow and time": {"status": "succeeded", "workflow": "flow-2", "created_before": since},
        "hold and workflow": {"hold": "blocked", "workflow": "flow-1"},
        "parent and status": {"parent": filling.PARENT, "status": "failed"},
        "tag and status": {"tags": {"env": "test"}, "status": "failed"},
        "tag and status, few": {"tags": {"env": "test"}, "status": "rollback_failed"},
        "tag and workflow": {"tags": {"env": "test"}, "workflow": "flow-1"},
        "tag and workflow, few": {"tags": {"env": "test"}, "workflow": filling.RARE},
        "two tags": {"tags": {"env": "test", "customer": "c-17"}},
    }


def cursors(runs: int, samples: int, seed: int = 0) -> dict[str, list[str | None]]:
    """Where pages begin, by kind."""
    drawn = random.Random(seed)
    starts: dict[str, list[str | None]] = {"first": [None] * samples}
    for kind, number in (("middle", runs // 2), ("last", max(2, runs // 1_000))):
        starts[kind] = [filling.cursor(number - drawn.randrange(min(number, 100))) for _ in range(samples)]
    starts["any"] = [filling.cursor(drawn.randrange(1, runs + 1)) for _ in range(samples)]
    return starts


async def slowest(ask: Callable[[str | None], Awaitable[Any]], starts: Mapping[str, list[str | None]]) -> list[float]:
    """The median of all pages in ms, and the p95 of the kind of page that has the longest."""
    took: dict[str, list[float]] = {kind: [] for kind in starts}
    await ask(None)
    for kind, given in starts.items():
        for cursor in given:
            began = time.perf_counter()
            await ask(cursor)
            took[kind].append((time.perf_counter() - began) * 1000)
    return [
        percentile([ms for many in took.values() for ms in many], 50),
        max(percentile(many, 95) for many in took.values()),
    ]


def parameters(given: Filter) -> list[tuple[str, str]]:
    """A filter as a query string has it."""
    found: list[tuple[str, str]] = []
    for name, value in given.items():
        if name == "tags":
            found += [("tag", f"{key}={one}") for key, one in value.items()]
        elif isinstance(value, list):
            found += [(name, one) for one in value]
        else:
            found.append((name, value.isoformat() if isinstance(value, datetime) else value))
    return found


def wanted(given: Filter) -> RunFilter:
    """A filter as a store has it."""
    status = given.get("status", ())

    def us(name: str) -> int | None:
        return None if name not in given else int(given[name].timestamp() * 1_000_000)

    return RunFilter(
        workflow=given.get("workflow"),
        statuses=(status,) if isinstance(status, str) else tuple(status),
        hold=given.get("hold"),
        parent_id=given.get("parent"),
        tags=given.get("tags", {}),
        created_from=us("created_from"),
        created_before=us("created_before"),
    )


async def measure(client: AnyClient, database: str, plans: Plans, *, runs: int, samples: int) -> bool:
    """Print a line for each filter, and what the database does; whether all are fast enough."""
    print(f"\n{database}, {runs:,} runs: pages of 100, {samples} of each kind ({', '.join(PAGES)}); ms")
    print(f"{'':30} {'p50':>7} {'p95':>7}   {'HTTP p50':>8} {'p95':>7}")
    starts, is_fast = cursors(runs, samples), True
    told: list[str] = []
    async with serving(client, port=0, requests_per_s=10**6, requests_burst=10**6) as url, httpx.AsyncClient() as http:
        for name, given in filters(runs).items():

            async def ask(cursor: str | None, given: Filter = given) -> None:
                await client.runs.list(**given, cursor=cursor)

            async def get(cursor: str | None, given: Filter = given) -> None:
                query = httpx.QueryParams([*parameters(given), *([] if cursor is None else [("cursor", cursor)])])
                (await http.get(f"{url}/api/v1/runs", params=query)).raise_for_status()

            direct, over_http = await slowest(ask, starts), await slowest(get, starts)
            missed = max(direct[1], over_http[1]) > LIMIT_MS
            is_fast = is_fast and not missed
            figures = f"{direct[0]:7.1f} {direct[1]:7.1f}   {over_http[0]:8.1f} {over_http[1]:7.1f}"
            print(f"{name:30} {figures}{'   MISSED' if missed else ''}", flush=True)
            lines = Counter(line.strip() for line in await plans(wanted(given)))
            told += [f"\n{name}:", *(f"  {f'{count} x ' if count > 1 else ''}{line}" for line, count in lines.items())]
    print(f"\nWhat {database} does for it:", *told, sep="\n")
    return is_fast


async def on_sqlite(folder: Path, *, runs: int, samples: int) -> bool:
    path = folder / "lists.db"
    await filling.fill_sqlite(path, runs)

    async def plans(given: RunFilter) -> list[str]:
        with closing(sqlite3.connect(path)) as db:
            way = sqlite_listing.chosen_way(db, given)
            variables = {**sqlite_listing.given(given), **way.variables}
            statement = sqlite_listing.listing(way.query, len(way.statuses))
            told = [row[3] for row in db.execute(f"explain query plan {statement}", variables)]
            return [line for line in told if re.search(r"\brun_tags\b|\bruns\b|MERGE|B-TREE", line)]

    async with Client(f"sqlite:///{path}") as client:
        return await measure(client, f"SQLite {sqlite3.sqlite_version}", plans, runs=runs, samples=samples)


async def on_postgres(folder: Path, *, runs: int, samples: int) -> bool:
    server = PostgresServer(18, folder)
    try:
        await filling.fill_postgres(server.url, runs)
        store = cast(PostgresStore, open_store(server.url))

        async def plans(given: RunFilter) -> list[str]:
            connection = await connect(store.address, "plans")
            try:
                await connection.execute(f"begin; {postgres_listing.LISTING}")
                way = await postgres_listing.chosen_way(connection, given)
                query = postgres_listing.listing(way.query, len(way.statuses))
                values = query.arguments({**postgres_listing.given(given), **way.variables})
                rows = await connection.fetch(f"explain (costs off) {query.sql}", *values)
                told = [re.sub(r" runs_\d+$", "", row[0]) for row in rows]
                return [line for line in told if re.search(r"Scan|Sort$|Append", line)]
            finally:
                await connection.close()

        async with Client(store) as client:
            return await measure(client, "Postgres 18", plans, runs=runs, samples=samples)
    finally:
        server.end()


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lists", description="Pages of very many runs.")
    parser.add_argument("--runs", type=int, default=1_000_000, help="how many runs the stores have (1000000)")
    parser.add_argument("--samples", type=int, default=40, help="how many pages of each kind (40)")
    parser.add_argument("--on", choices=("sqlite", "postgres"), help="only one of the databases")
    options = parser.parse_args()
    print(f"{datetime.now(UTC):%Y-%m-%d}, {LIMIT_MS} ms at most")
    is_fast = True
    for name, on_database in (("sqlite", on_sqlite), ("postgres", on_postgres)):
        if options.on in (None, name):
            with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
                is_fast &= await on_database(Path(folder), runs=options.runs, samples=options.samples)
    return 0 if is_fast else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
