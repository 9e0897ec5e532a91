"""What Postgres reads for one of many events that a run has yet to read, counted in rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from perdure.storage.postgres import PostgresStore
from perdure.storage.postgres.connection import connect
from perdure.storage.postgres.events import match, prepared
from perdure.testing.conformance.base import a_run, insert
from tests.storage.postgres.meddler import author_on, meddler
from tests.storage.postgres.server import VERSIONS

INSERT = """
    insert into events (
        number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, actor, at, fields, value
    )
    select n, 'e-' || n, 'r-1', case when n = 1 then '1' end, 0, false, true, 'a', 9, 'discard', '', 0, '{}', ''
    from generate_series(1, $1::bigint) as n
"""
COUNT = "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'events'::regclass"


async def rows_for(url: str, size: int, read: int) -> int:
    """How many events Postgres looks at where a run has read one that had won a position, and others ahead."""
    async with author_on(url) as author:
        await author.commit(insert(a_run("r-1")))
        async with meddler(url) as other:
            await other.execute(INSERT, size)
        connection = await connect(cast(PostgresStore, author.store).address, "counted")
        await connection.execute("begin")
        ids = [("r-1", f"e-{size - number}") for number in range(read)]
        batch = author.batch(events_read=ids, waits_dropped=[("r-1", "1")])
        state, base = await prepared(connection, batch)
        assert state == 0
        await match(connection, batch, base)
        counted: int = await connection.fetchval(COUNT)
        await connection.execute("rollback")
        await connection.close()
        return counted


@pytest.mark.parametrize("version", VERSIONS)
async def test_events_are_found_without_looking_at_the_others(version: int, empty_schema: Callable[..., str]) -> None:
    few = await rows_for(empty_schema(version), 100, 1)
    many = await rows_for(empty_schema(version), 2_000, 1)
    assert many <= few + 2
    together = await rows_for(empty_schema(version), 2_000, 128)
    assert together <= 128 * few
