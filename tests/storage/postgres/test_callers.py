"""A user for callers' own transactions: it can start runs and emit messages in them, and nothing else at all."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Client, Engine, workflow
from perdure.api.hierarchies import hierarchy_rows
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import Misuse, RunExists, RunNotFound, StoreBroken
from perdure.http import make_token, tokens
from perdure.kernel.status import Status
from perdure.storage import open_store
from perdure.storage.postgres import caller_grants, schema, upgrade
from tests.storage.postgres.meddler import meddler, schema_of
from tests.storage.postgres.server import Servers
from tests.storage.postgres.test_rights import make_roles

DOCS = Path(__file__).resolve().parents[3] / "docs"
CALLER = "shop_caller"
BOOKINGS = Topic("callers.bookings", dict[str, str])


@workflow(name="callers.ship")
async def ship(order: str) -> str:
    return f"shipped {order}"


@workflow(name="callers.other")
async def other_workflow(order: str) -> str:
    return order


def booking() -> Operation[Any]:
    operation = Operation("callers.book", BOOKINGS)

    @operation.step
    async def book(scope: Scope, order: dict[str, str]) -> None:
        scope.return_value("by", order["id"])

    return operation


async def make_caller(url: str) -> str:
    """The owner's schema with a user for callers; that user's URL."""
    owner_url, _ = await make_roles(url)
    async with meddler(url) as meddling:
        if not await meddling.fetchval("select exists (select 1 from pg_roles where rolname = $1)", CALLER):
            await meddling.execute(f"create role {CALLER} login")
        await meddling.execute("create table if not exists public.caller_orders (id text)")
        await meddling.execute(f"grant select, insert on public.caller_orders to {CALLER}")
    await upgrade(owner_url, runtime_role="shop_runtime", caller_role=CALLER)
    return url.replace("postgres@", f"{CALLER}@")


@asynccontextmanager
async def as_caller(url: str) -> AsyncGenerator[Any]:
    connection: Any = await asyncpg.connect(url.partition("?")[0])
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_run_is_there_with_the_callers_commit_and_not_after_a_rollback(url: str) -> None:
    caller_url = await make_caller(url)
    async with Engine(url, workflows=[ship]) as engine, as_caller(caller_url) as caller:
        rolled_back = caller.transaction()
        await rolled_back.start()
        lost = await engine.start(ship("o-1"), id="o-1", tags={"a": "b"}, connection=caller)
        await rolled_back.rollback()
        with pytest.raises(RunNotFound):
            await lost.status()
        async with caller.transaction():
            await caller.execute("insert into public.caller_orders (id) values ('o-1')")
            run = await engine.start(ship("o-1"), id="o-1", tags={"a": "b"}, actor="ann", connection=caller)
        assert await run.result() == "shipped o-1"
        first = (await engine.handle("o-1").audit())[0]
        assert (first.became, first.actor) == (Status.CREATED, "ann")
        assert [found.id for found in (await engine.runs.list(tags={"a": "b"})).runs] == ["o-1"]
        async with caller.transaction():
            again = await engine.start(ship("o-1"), id="o-1", connection=caller)
            with pytest.raises(RunExists, match="with the arguments"):
                await engine.start(ship("o-2"), id="o-1", connection=caller)
        assert await again.result() == "shipped o-1"


async def test_a_message_is_handled_after_the_callers_commit(url: str) -> None:
    caller_url = await make_caller(url)
    async with Engine(url, workflows=[booking()]), Client(url) as client, as_caller(caller_url) as caller:
        lost = caller.transaction()
        await lost.start()
        gone = await client.emit(BOOKINGS, {"id": "m-0"}, id="m-0", connection=caller)
        await lost.rollback()
        assert (await hierarchy_rows(client.session, gone.id)).events == []
        async with caller.transaction():
            root = await client.emit(BOOKINGS, {"id": "m-1"}, id="m-1", tags={"a": "b"}, connection=caller)
        await root.finished()
        assert await root.returned("by", str) == ["m-1"]


async def test_of_a_run_of_another_workflow_the_caller_learns_only_the_name(url: str) -> None:
    caller_url = await make_caller(url)
    async with Client(url) as client, as_caller(caller_url) as caller, caller.transaction():
        await client.start(other_workflow("a secret"), id="hidden")
        with pytest.raises(RunExists) as raised:
            await client.start(ship("o"), id="hidden", connection=caller)
        assert "callers.other" in str(raised.value)
        assert "a secret" not in str(raised.value)
        assert await caller.fetchval("select 1") == 1


START = (
    "select state from {schema}.start_v2('{engine}', extract(epoch from transaction_timestamp())::text, 'mine', 'w',"
    " '', '{model}', true, '{tags}', null, 'ann', 1, '{{}}')"
)
EMIT = (
    "select state from {schema}.emit_v2('{engine}', extract(epoch from transaction_timestamp())::text,"
    " 0, '{root}', 'e', 1, null, 'm', 't', '1', 1, 'ann', array['r'], array['{name}'], array['{{}}'], array['1'])"
)


@pytest.mark.parametrize(
    "attempt",
    [
        "insert into {schema}.records values ('perdure.api-token', 'me', 1, '', 'me', 1, '{{}}')",
        "insert into {schema}.perdure_tokens values ('me', 1, '', 'me', 1, null, '{{}}')",
        "insert into {schema}.perdure_sessions (id, until, actor, at, body) values ('me', 1, 'me', 1, '{{}}')",
        "select * from {schema}.perdure_tokens",
        "select * from {schema}.perdure_sessions",
        "select * from {schema}.records",
        "insert into {schema}.journal values ('o-1', 1, '1', 'step', 's', '1', null, 1, 1, 1)",
        "insert into {schema}.runs (id) values ('mine')",
        "insert into {schema}.audit values ('o-1', 9, 1, null, 'x', 'y', 'z', '', 1)",
        "insert into {schema}.mail (run_id, sender, op, at) values ('o-1', 'me', '{{}}', 1)",
        "insert into {schema}.messages values ('m', 't', '1', 1)",
        "update {schema}.runs set status = 'succeeded'",
        "delete from {schema}.runs",
        "select id, input from {schema}.runs",
        "select * from {schema}.journal",
        "select * from {schema}.engines",
        "select nextval('{schema}.blocks')",
        "update {schema}.perdure_schema set version = 1",
        "create table {schema}.mine (id text)",
        "alter function {schema}.start_v2 set search_path to public",
        "select {schema}.put_record_v1('perdure.api-token', 'me', '', 'me', 1, '{{}}')",
        "select {schema}.insert_runs_v1('{{}}')",
        "select {schema}.start_v1('{engine}', extract(epoch from transaction_timestamp())::text, '()', '()')",
        "select {schema}.insert_created_v1('r', 'w', '', 'function', true, 'o-1', '', '', '{{}}', null, 'me', 1, '1')",
        "grant select on {schema}.runs to " + CALLER,
        "set role shop_owner",
        "set role shop_runtime",
    ],
)
async def test_the_caller_can_do_nothing_else(url: str, attempt: str) -> None:
    caller_url = await make_caller(url)
    async with Client(url) as client, as_caller(caller_url) as caller:
        statement = attempt.format(schema=f'"{schema_of(url)}"', engine=client.session.coordinator.engine.id)
        await caller.execute(f'set search_path = "{schema_of(url)}"')
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await caller.execute(statement)


@pytest.mark.parametrize(
    "attempt",
    [
        START.replace("{model}", "operation"),
        START.replace("{model}", "function").replace("{tags}", "[1]"),
        START.replace("{model}", "function").replace("{tags}", '{{"a": 1}}'),
        START.replace("{model}", "function").replace("{tags}", "no json"),
        EMIT.replace("{root}", "there").replace("{name}", "x"),
        EMIT.replace("{root}", "root").replace("{name}", "nobody"),
    ],
)
async def test_the_functions_write_nothing_but_what_a_start_or_an_emission_is(url: str, attempt: str) -> None:
    caller_url = await make_caller(url)
    async with Client(url) as client, as_caller(caller_url) as caller:
        await client.start(other_workflow("o"), id="there")
        values = {
            "schema": f'"{schema_of(url)}"',
            "engine": client.session.coordinator.engine.id,
            "model": "",
            "tags": "{}",
        }
        with pytest.raises(asyncpg.InvalidParameterValueError):
            async with caller.transaction():
                await caller.execute(attempt.format(**values))
        assert [run.id for run in (await client.runs.list()).runs] == ["there"]


NOW = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
LONG = "repeat('x', 501)"
GOOD_START = {
    "new_id": "'mine'",
    "new_workflow": "'w'",
    "its_version": "''",
    "its_model": "'function'",
    "is_known": "true",
    "its_tags": "'{}'",
    "its_deadline": "null",
    "its_actor": "'ann'",
    "now": NOW,
    "its_input": "'{}'",
}
GOOD_EMISSION = {
    "book": "(select 1)",
    "root": "'root'",
    "event_id": "'e'",
    "emitted_at": NOW,
    "its_context": "null",
    "new_message": "'m'",
    "its_topic": "'callers.bookings'",
    "its_payload": "'1'",
    "now": NOW,
    "its_actor": "'ann'",
    "run_ids": "array['r']",
    "names": "array['callers.book']",
    "tags": "array['{}']",
    "inputs": "array['1']",
}


def call(function: str, given: dict[str, str], url: str, engine: str) -> str:
    arguments = {"engine": f"'{engine}'", "began": "extract(epoch from transaction_timestamp())::text", **given}
    text = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    return f'select state from "{schema_of(url)}".{function}({text})'


@pytest.mark.parametrize(
    "wrong",
    [
        {"new_id": LONG},
        {"new_id": "''"},
        {"new_id": "null"},
        {"new_workflow": LONG},
        {"its_version": LONG},
        {"its_actor": LONG},
        {"its_actor": "''"},
        {"is_known": "null"},
        {"its_model": "null"},
        {"now": "1"},
        {"now": "-1"},
        {"now": "null"},
        {"now": f"{NOW} + 90000000000"},
        {"now": "9223372036854775807"},
        {"its_deadline": "9223372036854775807"},
        {"its_deadline": "-1"},
        {"its_tags": "null"},
        {"its_tags": "json_build_object(" + LONG + ", 'v')::text"},
        {"its_tags": "json_build_object('k', " + LONG + ")::text"},
        {"its_tags": '\'{"k": ""}\''},
        {"its_input": "repeat('x', 67108865)"},
        {"its_input": "null"},
    ],
)
async def test_a_start_by_hand_has_the_bounds_of_any_other(url: str, wrong: dict[str, str]) -> None:
    caller_url = await make_caller(url)
    async with Client(url) as client, as_caller(caller_url) as caller:
        engine = client.session.coordinator.engine.id
        with pytest.raises(asyncpg.InvalidParameterValueError):
            async with caller.transaction():
                await caller.fetchval(call("start_v2", GOOD_START | wrong, url, engine))
        assert (await client.runs.list()).runs == []
        async with caller.transaction():
            assert await caller.fetchval(call("start_v2", GOOD_START, url, engine)) == "inserted"
        [run] = (await client.runs.list()).runs
        assert run.id == "mine"


@pytest.mark.parametrize(
    "wrong",
    [
        {"root": LONG},
        {"root": "'a/b'"},
        {"root": "'a b'"},
        {"event_id": LONG},
        {"new_message": LONG},
        {"its_actor": LONG},
        {"its_payload": "repeat('x', 67108865)"},
        {"its_context": "repeat('x', 1048577)"},
        {"now": "1"},
        {"emitted_at": "9223372036854775807"},
        {"run_ids": "array['r', 's']", "names": "array['callers.book', 'callers.book']", "tags": "array['{}', '{}']",
         "inputs": "array['1', '1']"},
        {"run_ids": "array['r', 's']"},
        {"tags": "array['{}', '{}']"},
        {"inputs": "array[]::text[]"},
        {"inputs": "array[null]"},
        {"run_ids": "array['a/b']"},
        {"run_ids": "array[" + LONG + "]"},
        {"tags": "array['[]']"},
        {"tags": "array[null]"},
    ],
)  # fmt: skip
async def test_an_emission_by_hand_has_the_bounds_of_any_other(url: str, wrong: dict[str, str]) -> None:
    caller_url = await make_caller(url)
    async with Engine(url, workflows=[booking()]) as engine, as_caller(caller_url) as caller, meddler(url) as meddling:
        me = engine.session.coordinator.engine.id
        version = f'select version from "{schema_of(url)}".handler_book'
        good = GOOD_EMISSION | {"book": str(await meddling.fetchval(version))}
        with pytest.raises(asyncpg.InvalidParameterValueError):
            async with caller.transaction():
                await caller.fetchval(call("emit_v2", good | wrong, url, me))
        assert (await engine.runs.list()).runs == []
        made = "changed"
        while made == "changed":  # The engine announces its handlers meanwhile, which changes the registry.
            good["book"] = str(await meddling.fetchval(version))
            async with caller.transaction():
                made = await caller.fetchval(call("emit_v2", good, url, me))
        assert made == "inserted"


async def test_tables_of_the_session_do_not_stand_in_for_ours(url: str) -> None:
    """The functions have the owner's rights: a table or a function of the caller's own must not be met in them."""
    caller_url = await make_caller(url)
    async with Client(url) as client, as_caller(caller_url) as caller:
        await caller.execute("create temp table runs (id text, workflow text, input text)")
        await caller.execute("create temp table engines (id text)")
        await caller.execute("set search_path = pg_temp, public")
        async with caller.transaction():
            run = await client.start(ship("o"), id="real", connection=caller)
        assert await run.status() == Status.CREATED
        assert await caller.fetchval("select count(*) from pg_temp.runs") == 0


async def test_a_user_that_is_neither_cannot_execute_the_functions(url: str) -> None:
    await make_caller(url)
    async with meddler(url) as meddling:
        if not await meddling.fetchval("select exists (select 1 from pg_roles where rolname = 'shop_stranger')"):
            await meddling.execute("create role shop_stranger login")
        await meddling.execute(f'grant usage on schema "{schema_of(url)}" to shop_stranger')
    async with Client(url) as client, as_caller(url.replace("postgres@", "shop_stranger@")) as stranger:
        async with stranger.transaction():
            with pytest.raises(Misuse, match="execute on its functions start_v2 and emit_v2"):
                await client.start(ship("o"), connection=stranger)
        for name in ("start_v2", "emit_v2"):
            query = "select has_function_privilege(oid, 'execute') from pg_proc where pronamespace = $1::regnamespace"
            allowed = await stranger.fetchval(f"{query} and proname = $2", f'"{schema_of(url)}"', name)
            assert allowed is False


async def test_a_user_that_could_insert_runs_can_start_them_after_the_migration(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights that were given as earlier versions said are not lost, and `caller_role` then takes what is too much."""
    with monkeypatch.context() as earlier:
        known = {number: text for number, text in schema.MIGRATIONS.items() if number < 16}
        earlier.setattr(schema, "MIGRATIONS", known)
        earlier.setattr(schema, "SCHEMA_VERSION", max(known))
        owner_url, _ = await make_roles(url)
        await upgrade(owner_url)
    name = schema_of(url)
    async with meddler(url) as meddling:
        if not await meddling.fetchval("select exists (select 1 from pg_roles where rolname = $1)", CALLER):
            await meddling.execute(f"create role {CALLER} login")
        await meddling.execute(f'grant usage on schema "{name}" to {CALLER}')
        await meddling.execute(f'grant select, insert on all tables in schema "{name}" to {CALLER}')
    await upgrade(owner_url)
    async with Client(url) as client, as_caller(url.replace("postgres@", f"{CALLER}@")) as caller:
        async with caller.transaction():
            run = await client.start(ship("o"), connection=caller)
        assert await run.status() == Status.CREATED
        await upgrade(owner_url, caller_role=CALLER)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await caller.execute(f'select * from "{name}".runs')
        async with caller.transaction():
            run = await client.start(ship("o"), connection=caller)
        assert await run.status() == Status.CREATED


async def test_the_users_of_two_tenants_see_nothing_of_each_other(url: str, postgres_servers: Servers) -> None:
    """A schema and a user for each."""
    other_url = postgres_servers.fresh()
    async with meddler(url) as meddling:
        for role in ("tenant_a", "tenant_b"):
            if not await meddling.fetchval("select exists (select 1 from pg_roles where rolname = $1)", role):
                await meddling.execute(f"create role {role} login")
    await upgrade(url, runtime_role="tenant_a")
    await upgrade(other_url, runtime_role="tenant_b")
    mine, theirs = url.replace("postgres@", "tenant_a@"), other_url.replace("postgres@", "tenant_b@")
    async with Engine(mine, workflows=[ship]) as a, Engine(theirs, workflows=[ship]) as b:
        assert await (await a.start(ship("a"), id="one")).result() == "shipped a"
        assert await (await b.start(ship("b"), id="one")).result() == "shipped b"
    for user, store in ((mine, other_url), (theirs, url)):
        async with as_caller(user) as stranger:
            for table in ("runs", "journal", "perdure_tokens", "records"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await stranger.execute(f'select * from "{schema_of(store)}".{table}')
        with pytest.raises(StoreBroken, match="rights"):
            await open_store(store.replace("postgres@", user.partition("//")[2].partition("@")[0] + "@")).open()


async def test_one_role_cannot_be_for_engines_and_for_callers(url: str) -> None:
    with pytest.raises(Misuse, match="cannot be both"):
        await upgrade(url, runtime_role="shop_runtime", caller_role="shop_runtime")


async def test_the_user_for_engines_sees_tokens_and_starts_by_connections_of_its_own(url: str) -> None:
    await make_caller(url)
    runtime_url = url.replace("postgres@", "shop_runtime@")
    async with Client(runtime_url) as client, as_caller(runtime_url) as own:
        await make_token(client, "deploy", "read")
        assert [token.name for token in await tokens(client)] == ["deploy"]
        async with own.transaction():
            run = await client.start(ship("o"), connection=own)
        assert await run.status() == Status.CREATED


def test_the_docs_have_the_grants_as_they_are() -> None:
    blocks = re.findall(r"^```sql\n(.*?)^```$", (DOCS / "postgres.md").read_text(), re.DOTALL | re.MULTILINE)
    assert caller_grants("shop_web") in blocks
