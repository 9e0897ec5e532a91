"""An owner that makes the tables, and a user for engines that can do what they need and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from perdure import Engine, Event, receive, workflow
from perdure.errors import StoreBroken
from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.postgres import grants, schema, upgrade
from perdure.testing.conformance import StoreConformance
from tests.storage.postgres.meddler import author_on, meddler, schema_of
from tests.storage.postgres.server import Servers

DOCS = Path(__file__).resolve().parents[3] / "docs"
ROLES = ("shop_owner", "shop_runtime")


class Paid(Event):
    amount: int


@workflow
async def is_paid(number: int) -> int:
    paid = await receive(Paid)
    return number + paid.amount


async def make_roles(url: str) -> tuple[str, str]:
    """The URLs of the owner, who may make schemas, and of the user for engines, who may not."""
    async with meddler(url) as other:
        for role in ROLES:
            if not await other.fetchval("select exists (select 1 from pg_roles where rolname = $1)", role):
                await other.execute(f"create role {role} login")
        await other.execute("grant create on database postgres to shop_owner")
    return url.replace("postgres@", "shop_owner@"), url.replace("postgres@", "shop_runtime@")


async def execute(url: str, sql: str) -> None:
    async with meddler(url) as other:
        await other.execute(sql)


async def test_an_engine_works_as_a_user_that_owns_nothing(url: str) -> None:
    owner_url, runtime_url = await make_roles(url)
    await upgrade(owner_url, runtime_role="shop_runtime")
    async with Engine(runtime_url, workflows=[is_paid]) as engine:
        run = await engine.start(is_paid(1), tags={"shop": "s"})
        await engine.send(Paid(amount=2), to=run.id)
        assert await run.result() == 3
        await engine.events.purge()


@pytest.mark.soak
class TestAsRuntimeRole(StoreConformance):
    """The port's promises need no more rights than those."""

    fails_in_steps = ("select pg_terminate_backend(pg_backend_pid())",)

    @pytest.fixture(autouse=True)
    def database(self, postgres_servers: Servers) -> Iterator[None]:
        url = postgres_servers.fresh()
        owner_url, self.url = asyncio.run(make_roles(url))
        asyncio.run(upgrade(owner_url, runtime_role="shop_runtime"))
        # What steps write to in these tests is a table of users' own, which they make there.
        asyncio.run(execute(url, "grant create on schema public to shop_runtime"))
        yield
        asyncio.run(execute(url, "revoke create on schema public from shop_runtime"))

    def make_store(self) -> Store:
        return open_store(self.url)


@pytest.mark.parametrize(
    "forbidden",
    [
        "drop table runs",
        "alter table runs add column mine text",
        "create table mine (id text)",
        "truncate runs",
        "update perdure_schema set version = 1",
        "alter function bury_v1() set search_path to public",
    ],
)
async def test_that_user_can_change_no_table(url: str, forbidden: str) -> None:
    owner_url, runtime_url = await make_roles(url)
    await upgrade(owner_url, runtime_role="shop_runtime")
    async with meddler(runtime_url) as runtime:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await runtime.execute(forbidden)


async def test_that_user_is_told_that_there_is_no_schema(url: str) -> None:
    _, runtime_url = await make_roles(url)
    with pytest.raises(StoreBroken, match=r"there is no schema .*, and this user has not the rights .*upgrade"):
        await open_store(runtime_url).open()


async def test_that_user_is_told_that_it_was_granted_nothing(url: str) -> None:
    owner_url, runtime_url = await make_roles(url)
    await upgrade(owner_url)
    with pytest.raises(StoreBroken, match=r"not all the rights that an engine needs; .*upgrade"):
        await open_store(runtime_url).open()


async def test_that_user_waits_for_its_owner_when_a_migration_is_needed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner_url, runtime_url = await make_roles(url)
    with monkeypatch.context() as earlier:
        earlier.setattr(schema, "MIGRATIONS", {1: schema.MIGRATIONS[1]})
        earlier.setattr(schema, "SCHEMA_VERSION", 1)
        await upgrade(owner_url, runtime_role="shop_runtime")
    with pytest.raises(StoreBroken, match=rf"has version 1, and this Perdure needs {schema.SCHEMA_VERSION}, .*upgrade"):
        await open_store(runtime_url).open()
    async with meddler(url) as other:
        assert await other.fetchval("select version from perdure_schema") == 1
    await upgrade(owner_url, runtime_role="shop_runtime")
    async with author_on(runtime_url) as author:
        await author.commit()


async def test_a_role_can_have_any_name(url: str) -> None:
    role = f'the "{schema_of(url)}"'
    async with meddler(url) as other:
        quoted = role.replace('"', '""')
        await other.execute(f'create role "{quoted}" login')
    await upgrade(url, runtime_role=role)
    await upgrade(url, runtime_role=role)


def test_the_docs_have_the_grants_as_they_are() -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```$", (DOCS / "postgres.md").read_text(), re.DOTALL | re.MULTILINE)
    assert grants("shop") in blocks
