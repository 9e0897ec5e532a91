"""Schemas: made, shared, kept apart, refused."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import SchemaTooNew, StoreBroken
from perdure.storage import open_store
from perdure.storage.postgres.schema import SCHEMA_VERSION
from perdure.testing.conformance.base import a_run, insert
from tests.storage.postgres.meddler import author_on, meddler, schema_of
from tests.storage.postgres.server import Servers


async def test_schemas_are_kept_apart(postgres_servers: Servers) -> None:
    async with author_on(postgres_servers.fresh()) as one, author_on(postgres_servers.fresh()) as two:
        await one.commit(insert(a_run()))
        assert await two.store.load(["r-1"]) == {}
        assert [engine.id for engine in await two.store.engines()] == ["e-1"]


async def test_many_that_open_a_new_schema_at_once_make_it_once(url: str) -> None:
    stores = [open_store(url) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    async with meddler(url) as other:
        assert await other.fetchval("select version from perdure_schema") == SCHEMA_VERSION
    for store in stores:
        await store.close()


async def test_a_schema_of_a_newer_perdure_is_refused(url: str) -> None:
    async with author_on(url), meddler(url) as other:
        await other.execute("update perdure_schema set version = version + 1")
    with pytest.raises(SchemaTooNew):
        await open_store(url).open()


@pytest.mark.parametrize("damage", ["update perdure_schema set version = 0", "delete from perdure_schema"])
async def test_a_schema_that_has_lost_its_version_is_refused_and_left_alone(url: str, damage: str) -> None:
    async with author_on(url), meddler(url) as other:
        await other.execute(damage)
        before = await other.fetch("select * from perdure_schema")
        with pytest.raises(
            StoreBroken, match=r"has lost its version: perdure_schema\.version is .*; restore it"
        ) as caught:
            await open_store(url).open()
        assert type(caught.value) is StoreBroken  # It does not pass: nobody tries again.
        assert await other.fetch("select * from perdure_schema") == before


async def test_somebody_elses_schema_is_left_alone(url: str) -> None:
    schema = schema_of(url)
    async with meddler(url) as other:
        await other.execute(f"create schema {schema}")
        await other.execute("create table customers (id text)")
        with pytest.raises(StoreBroken, match="schema of its own"):
            await open_store(url).open()
        assert len(await other.fetch("select 1 from pg_tables where schemaname = $1", schema)) == 1


async def test_a_user_without_rights_on_the_database_can_use_a_schema_made_for_it(url: str) -> None:
    schema = schema_of(url)
    async with meddler(url) as other:
        await other.execute(f"create role guest_{schema} login")
        await other.execute(f"create schema {schema} authorization guest_{schema}")
    guest_url = url.replace("postgres@", f"guest_{schema}@")
    async with author_on(guest_url) as guest:
        await guest.commit(insert(a_run()))
    with pytest.raises(StoreBroken, match="rights"):
        await open_store(guest_url.replace(schema, "elsewhere", 2).replace("guest_elsewhere", f"guest_{schema}")).open()


async def test_tables_that_are_gone_are_told(url: str) -> None:
    async with author_on(url) as author, meddler(url) as other:
        await other.execute("drop table journal")
        with pytest.raises(StoreBroken):
            await author.store.journal("r-1")
