"""W1 and W2 on Postgres 18, beside the same rows with no engine around them; each on a server of its own, fsync on.

The floor commits as a careful program on asyncpg does: in a transaction, one statement with arrays for each table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg

from bench import floor, steps
from bench.figures import Figures
from bench.floor import FINISH_RUNS, INSERT_AUDIT, INSERT_JOURNAL, INSERT_RUNS, Floor
from bench.group import OWNER, Rows
from perdure.storage import open_store
from tests.storage.postgres.server import PostgresServer

# What the floor on SQLite writes, for many rows at once.
STATEMENTS = {
    INSERT_RUNS: """
        insert into runs (
            id, workflow, workflow_version, model, status, version, revision, owner, claim, bond, undo, origin, born,
            tags, attempt, recoveries, created_at, started_at, updated_at, input
        )
        select id, 'sequence', '', 'function', 'running', 1, 1, 'floor', 1, '', 0, '', 0, '{}', 1, 0, a, b, c, input
        from unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[]) as new (id, a, b, c, input)
    """,
    FINISH_RUNS: """
        update runs
        set status = 'succeeded', version = 2, revision = 2, owner = null, updated_at = a, completed_at = b, output = c
        from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) as new (a, b, c, id)
        where runs.id = new.id and owner = 'floor' and version = 1
    """,
    INSERT_JOURNAL: """
        insert into journal (run_id, seq, position, kind, name, value, attempts, started_at, at, digest)
        select run_id, seq, place, 'step', 'small', value, 1, started_at, at, digest
        from unnest($1::text[], $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::text[])
            as new (run_id, seq, place, value, started_at, at, digest)
    """,
    INSERT_AUDIT: """
        insert into audit (run_id, seq, version, was, became, cause, actor, details, at)
        select run_id, seq, version, was, became, cause, actor, '', at
        from unnest(
            $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[]
        ) as new (run_id, seq, version, was, became, cause, actor, at)
    """,
}


class PostgresFloor(Floor):
    """The same runs; only where their rows go is another place."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begin()

    async def write(self, rows: Rows) -> None:
        async with self._connection.transaction():
            await self._connection.execute(f"update engines set batch = batch + 1 where id = '{OWNER}'")
            for statement, many in rows.of.items():
                if many:
                    await self._connection.execute(STATEMENTS[statement], *map(list, zip(*many, strict=True)))

    def close(self) -> None:
        self._committer.cancel()


async def measure_floor(folder: Path, **sizes: int) -> Figures:
    server = PostgresServer(18, folder)
    try:
        return await measure_floor_on(server.url, "perdure", **sizes)
    finally:
        server.end()


async def measure_floor_on(url: str, schema: str, **sizes: int) -> Figures:
    store = open_store(f"{url}?schema={schema}")
    await store.open()
    await store.close()
    driver: Any = asyncpg
    connection = await driver.connect(url, server_settings={"search_path": schema, "jit": "off"})
    await connection.execute(f"insert into engines values ('{OWNER}', 1, true, 0, '', 0, '[]', 0)")
    limit = PostgresFloor(connection)
    figures = await floor.measure_floor(limit, **sizes)
    limit.close()
    await connection.close()
    return figures


async def measure(folder: Path, **sizes: int) -> Figures:
    server = PostgresServer(18, folder)
    try:
        return await steps.measure_on(server.url, **sizes)
    finally:
        server.end()
