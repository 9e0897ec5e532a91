"""What the driver is told of the types that commits are made of: the same as it would find out, for less."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import pytest
from asyncpg import introspection

from perdure.storage.postgres import PostgresStore
from perdure.storage.postgres.connection import Session, connect
from perdure.storage.postgres.queries import QUERIES
from perdure.testing.conformance.base import a_run, insert
from tests.storage.postgres.meddler import author_on, meddler
from tests.storage.postgres.server import VERSIONS, Servers

# What the driver reads of a type; it asks for more, and the order is that of what needs what.
READ = ("oid", "ns", "name", "kind", "basetype", "elemdelim", "attrtypoids", "attrnames")


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_driver_is_told_what_it_would_find_out(postgres_servers: Servers, version: int) -> None:
    url = postgres_servers.fresh(version)
    async with author_on(url), meddler(url) as other:
        oids = await other.fetchval(
            "select array_agg(oid) from pg_type where typnamespace = current_schema()::regnamespace"
        )
        assert len(oids) > 20
        query: Any = introspection
        its_own = {row["oid"]: row for row in await other.fetch(query.INTRO_LOOKUP_TYPES, oids)}
        rows = await other.fetch(QUERIES["types"].sql, oids)
        ours = {row["oid"]: row for row in rows}
        assert len(rows) == len(ours)
        assert ours.keys() >= set(oids)
        for oid, row in ours.items():
            assert [row[name] for name in READ] == [its_own[oid][name] for name in READ], row["name"]
            if row["elemdelim"] is not None:
                assert row["elemtype"] == its_own[oid]["elemtype"], row["name"]
                assert row["elemtype_name"] == its_own[oid]["elemtype_name"], row["name"]
        # A type comes after all that it is made of.
        order = [row["oid"] for row in rows]
        for oid, row in ours.items():
            parts = [*(row["attrtypoids"] or []), *([row["elemtype"]] if row["elemtype"] else [])]
            assert all(order.index(part) < order.index(oid) for part in parts), row["name"]


async def test_a_first_commit_does_not_make_the_driver_search_the_catalog(url: str) -> None:
    async with author_on(url) as author:
        address = cast(PostgresStore, author.store).address
        asked: list[str] = []
        original = asyncpg.connect

        async def watched(*args: Any, **options: Any) -> Any:
            connection = await original(*args, **options)
            connection.add_query_logger(lambda record: asked.append(record.query))
            return connection

        asyncpg.connect = watched
        try:
            await author.commit(insert(a_run(owner="e-1")))
        finally:
            asyncpg.connect = original
        assert QUERIES["types"].sql in asked
        assert not [query for query in asked if "typeinfo_tree" in query]
        session = cast(Session, await connect(address, "test"))
        assert session._connection._intro_query == QUERIES["types"].sql
        await session.close()
