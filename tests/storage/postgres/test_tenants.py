"""Two tenants on one server, each with a role and a schema of its own: neither reads, calls or changes anything of the
other's. What a database shares between all its users (notifications, advisory locks) tells nothing, and breaks nothing;
with a database for each tenant there is not even that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure import Engine, Event, receive, workflow
from perdure.errors import StoreError
from perdure.storage import open_store
from perdure.storage.postgres.hints import channel_of
from tests.storage.postgres.meddler import meddler, schema_of, until_somebody_waits
from tests.storage.postgres.server import Servers

ENGINE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
DENIED = (asyncpg.InsufficientPrivilegeError,)


class TenantPaid(Event, event_name="tenants.paid"):
    amount: int


@workflow(name="tenants-is-paid")
async def is_paid(secret: str) -> int:
    return (await receive(TenantPaid)).amount


async def tenant(url: str, role: str) -> str:
    """The URL of a tenant: a role that owns a schema of its own, and may nothing else."""
    async with meddler(url) as admin:
        if not await admin.fetchval("select exists (select 1 from pg_roles where rolname = $1)", role):
            await admin.execute(f"create role {role} login")
        await admin.execute(f'create schema "{schema_of(url)}" authorization {role}')
    return url.replace("postgres@", f"{role}@")


@pytest.fixture
def urls(postgres_servers: Servers) -> tuple[str, str]:
    """Of two tenants in one database."""
    fresh = [f"{postgres_servers.fresh()}&lease=60" for _ in range(2)]
    return asyncio.run(_tenants(fresh))


async def _tenants(fresh: list[str]) -> tuple[str, str]:
    return await tenant(fresh[0], "tenant_a"), await tenant(fresh[1], "tenant_b")


@asynccontextmanager
async def both(urls: tuple[str, str]) -> AsyncGenerator[tuple[Engine, Engine]]:
    async with Engine(urls[0], workflows=[is_paid]) as first, Engine(urls[1], workflows=[is_paid]) as second:
        yield first, second


async def test_a_tenant_sees_no_row_and_calls_no_function_of_another(urls: tuple[str, str]) -> None:
    theirs = schema_of(urls[1])
    async with both(urls) as (_, second), meddler(urls[0]) as me:
        await second.start(is_paid("b's secret"), id="r-1")
        tables = await me.fetch("select tablename from pg_tables where schemaname = $1", theirs)
        functions = await me.fetch(
            "select proname, pronargs from pg_proc join pg_namespace as n on n.oid = pronamespace and nspname = $1",
            theirs,
        )
        sequences = await me.fetch("select sequencename from pg_sequences where schemaname = $1", theirs)
        assert len(tables) > 10
        assert len(functions) > 10
        statements = [f'select * from "{theirs}".{table[0]}' for table in tables]
        statements += [f'insert into "{theirs}".{table[0]} default values' for table in tables]
        statements += [f'delete from "{theirs}".{table[0]}' for table in tables]
        statements += [f"select nextval('\"{theirs}\".{sequence[0]}')" for sequence in sequences]
        statements += [
            f'select "{theirs}".{name}({", ".join(["null"] * count)})' for name, count in map(tuple, functions)
        ]
        statements += [f'create table "{theirs}".mine (id text)', f'drop schema "{theirs}" cascade']
        statements += ["set role tenant_b", "set session authorization tenant_b", "alter role tenant_b superuser"]
        for statement in statements:
            with pytest.raises(DENIED):
                await me.execute(statement)
        with pytest.raises(StoreError):
            await open_store(urls[1].replace("tenant_b@", "tenant_a@")).open()


async def test_a_tenant_sees_no_statement_of_another(urls: tuple[str, str]) -> None:
    async with both(urls) as (_, second), meddler(urls[0]) as me:
        await second.start(is_paid("b's secret"))
        rows = await me.fetch("select query, application_name from pg_stat_activity where usename = 'tenant_b'")
        assert len(rows) > 0
        assert {row["query"] for row in rows} == {"<insufficient privilege>"}
        assert all(re.fullmatch(r"perdure [a-z ]+|", row["application_name"]) for row in rows)


async def test_events_of_the_same_name_do_not_cross(urls: tuple[str, str]) -> None:
    async with both(urls) as (first, second):
        mine, theirs = await first.start(is_paid("a"), id="r-1"), await second.start(is_paid("b"), id="r-1")
        await first.send(TenantPaid(amount=1))
        assert await mine.result() == 1
        await second.send(TenantPaid(amount=2))
        assert await theirs.result() == 2
        assert [run.id for run in (await first.runs.list()).runs] == ["r-1"]


async def test_who_listens_to_another_s_channel_learns_ids_of_engines_only(urls: tuple[str, str]) -> None:
    """A channel is the database's: whoever may connect can listen to it."""
    heard: list[str] = []
    async with both(urls) as (_, second), meddler(urls[0]) as me:
        await me.add_listener(channel_of(schema_of(urls[1])), lambda *given: heard.append(given[3]))
        runs = [await second.start(is_paid("b's secret"), id=f"b's run {number}") for number in range(5)]
        async with Engine(urls[1], workflows=[]) as other:
            for run in runs:
                await other.send(TenantPaid(amount=1), to=run.id)
        for run in runs:
            await run.result()
        while not heard:
            await asyncio.sleep(0.01)
    assert all(name == "*" or ENGINE_ID.fullmatch(name) for name in heard), heard


async def test_who_notifies_another_s_engines_wakes_them_and_no_more(urls: tuple[str, str]) -> None:
    channel = channel_of(schema_of(urls[1]))
    async with both(urls) as (_, second), meddler(urls[0]) as me:
        run = await second.start(is_paid("b"))
        engine = (await second.engines.list())[0].id
        for payload in ("", "*", engine, "x" * 7999, '{"a":1}', "\x1b[2J", "'; drop table runs; --"):
            await me.executemany("select pg_notify($1, $2)", [(channel, payload)] * 50)
        await second.send(TenantPaid(amount=7), to=run.id)
        assert await run.result() == 7


async def test_locks_of_another_are_numbers_and_holding_one_delays_it_only(urls: tuple[str, str]) -> None:
    """An advisory lock is the database's, too: somebody who guesses the name of an event can take its lock."""
    async with both(urls) as (_, second), meddler(urls[0]) as me:
        run = await second.start(is_paid("b"), id="r-1")
        key = await me.fetchval("select hashtextextended($1 || ':tenants.paid', 0)", schema_of(urls[1]))
        await me.execute("select pg_advisory_lock($1)", key)
        sending = asyncio.ensure_future(second.send(TenantPaid(amount=3)))
        await until_somebody_waits(me, "advisory")
        columns = await me.fetch("select classid, objid, objsubid from pg_locks where locktype = 'advisory'")
        assert all(isinstance(value, int) for row in columns for value in row.values())
        assert not sending.done()
        await me.execute("select pg_advisory_unlock($1)", key)
        await sending
        assert await run.result() == 3


async def test_in_a_database_of_its_own_a_tenant_shares_nothing(postgres_servers: Servers) -> None:
    server = postgres_servers.fresh().partition("?")[0]
    async with meddler(server) as admin:
        for name in ("tenant_c", "tenant_d"):
            await admin.execute(f"create role {name} login")
            await admin.execute(f"create database {name} owner {name}")
            await admin.execute(f"revoke all on database {name} from public")
    try:
        await _alone(server)
    finally:
        async with meddler(server) as admin:
            for name in ("tenant_c", "tenant_d"):
                await admin.execute(f"drop database {name} with (force)")
                await admin.execute(f"drop role {name}")


async def _alone(server: str) -> None:
    mine, theirs = (
        server.replace("postgres@", f"{name}@").replace("/postgres", f"/{name}") + "?lease=60"
        for name in ("tenant_c", "tenant_d")
    )
    heard: list[Any] = []
    async with both((mine, theirs)) as (_, second), meddler(mine) as me:
        with pytest.raises(DENIED):
            await asyncpg.connect(theirs.partition("?")[0].replace("tenant_d@", "tenant_c@"))
        await me.add_listener(channel_of("perdure"), lambda *given: heard.append(given[3]))
        key = await me.fetchval("select hashtextextended('perdure:tenants.paid', 0)")
        await me.execute("select pg_advisory_lock($1)", key)  # the same number, and another lock
        own = {one.id for one in await second.engines.list()}
        run = await second.start(is_paid("d"))
        await second.send(TenantPaid(amount=4))
        assert await run.result() == 4
        assert not own & set(heard)
