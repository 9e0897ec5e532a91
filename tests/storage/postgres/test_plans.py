"""No query reads a whole table that grows, whatever Postgres knows of it: plans are made when it is empty, and kept.

Statements inside functions cannot be asked for; they find their rows by the same keys.
"""

from __future__ import annotations

import re
from typing import cast

import pytest

from perdure.storage.lists import ways
from perdure.storage.postgres import PostgresStore, artifacts, cooperation, queries, records, tasks
from perdure.storage.postgres.connection import connect
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.lists import LISTING, counting, listing
from perdure.storage.postgres.queries import Query
from tests.storage.listings import LISTINGS
from tests.storage.postgres.meddler import author_on
from tests.storage.postgres.server import VERSIONS, Servers

QUERIES = {**queries.QUERIES, **artifacts.QUERIES, **tasks.QUERIES, **records.QUERIES, **cooperation.QUERIES}

# What is read whole is short: living engines, mail that waits, events that many are about to get, held runs, handlers;
# or it is what was asked for.
SHORT_TABLES = ("mail", "handlers", "handler_book")
SHORT = ("engines_living", "engines_epoch_key", "heartbeats_pkey", "mail_pkey", "events_reached", "runs_held")
ASKED_FOR = {
    "queued_events": "events_queue",
    "letters": "dead_letters_pkey",
    "artifacts_all": "artifacts_pkey",
    "tasks_all": "tasks_pkey",
    "tasks_open_anywhere": "tasks_open",
}


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_query_reads_a_whole_table(postgres_servers: Servers, version: int) -> None:
    async with author_on(postgres_servers.fresh(version)) as author:
        connection = await connect(cast(PostgresStore, author.store).address, "plans")
        asked = {
            name: query for name, query in QUERIES.items() if re.match(r"(select|with|update|delete)\b", query.sql)
        }
        assert len(asked) > 40
        wrong: list[str] = []
        for name, query in asked.items():
            plan = await plan_of(connection, query)
            asked_for = ASKED_FOR.get(name)
            wrong += [
                f"{name}: {line.strip()}" for line in whole_reads(plan) if asked_for is None or asked_for not in line
            ]
        await connection.close()
        assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_way_to_list_runs_walks_an_index_in_order(postgres_servers: Servers, version: int) -> None:
    async with author_on(postgres_servers.fresh(version)) as author:
        connection = await connect(cast(PostgresStore, author.store).address, "plans")
        await connection.execute(f"begin; {LISTING}")
        for listed in LISTINGS:
            found = ways(listed.wanted)
            assert tuple(way.query for way in found) == listed.ways
            for way in found:
                plan = await plan_of(connection, listing(way.query, len(way.statuses)))
                text = "\n".join(plan)
                count = max(1, len(way.statuses))
                assert sum(listed.index(way.query) in line for line in plan if " Scan " in line) >= count, text
                assert not whole_reads(plan), text
                assert not [line for line in plan if "Sort  " in f"{line}  "], text
                assert not whole_reads(await plan_of(connection, counting(way.query, len(way.statuses))))
        await connection.close()


async def plan_of(connection: Connection, query: Query) -> list[str]:
    await connection.execute(f"prepare asked as {query.sql}")
    values = f"({', '.join('null' for _ in query.names)})" if query.names else ""
    plan = [row[0] for row in await connection.fetch(f"explain (costs off) execute asked{values}")]
    await connection.execute("deallocate asked")
    return plan


def whole_reads(plan: list[str]) -> list[str]:
    """Lines of a plan that read a table from one end to the other, by itself or through an index."""
    found: list[str] = []
    for line, after in zip(plan, [*plan[1:], ""], strict=True):
        is_whole = "Index" in line and " Scan " in line and "Index Cond" not in after
        _, _, read = f" {line} ".partition(" Seq Scan on ")
        if (read and read.split()[0] not in SHORT_TABLES) or (is_whole and not any(index in line for index in SHORT)):
            found.append(line)
    return found
