"""A store that fails under a transactional step: the step runs again in a new transaction, and that is no attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure import Engine, Limits, Retry, current_step, resource
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import RunFailed, ScopeFailed
from perdure.models.functions.context import CurrentStep
from perdure.storage.postgres import connection as connections
from perdure.storage.postgres import upgrade
from perdure.testing import Environment
from tests.storage.postgres.meddler import schema_of
from tests.storage.postgres.proxy import Moment, proxy_to
from tests.transactions.notes import PostgresWorld, Script, SqliteWorld

TIMES = 5  # more often than any policy here tries
END_SESSION = "select pg_terminate_backend(pg_backend_pid())"
PAY = Topic("pay", int)


async def ends_session(me: CurrentStep) -> None:
    """The statement itself is cut off."""
    await me.connection.execute(END_SESSION)


async def ends_session_and_raises_its_own(me: CurrentStep) -> None:
    try:
        await me.connection.execute(END_SESSION)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        raise LookupError("what the step makes of it") from None


async def ends_session_and_goes_on(me: CurrentStep) -> None:
    """As if nothing had been: the result cannot be staged."""
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await me.connection.execute(END_SESSION)


async def is_ended_while_idle(me: CurrentStep) -> None:
    """Somebody else ends the session; the step uses it afterwards."""
    await ended_by_another(me)
    await me.connection.execute("select 1")


async def is_ended_while_idle_at_its_end(me: CurrentStep) -> None:
    await ended_by_another(me)


async def ended_by_another(me: CurrentStep) -> None:
    driver: Any = asyncpg
    pid = await me.connection.fetchval("select pg_backend_pid()")
    other = await driver.connect(resource(Script).url)
    try:
        await other.execute("select pg_terminate_backend($1, 10000)", pid)
    finally:
        await other.close()


BREAKING = [
    ends_session,
    ends_session_and_raises_its_own,
    ends_session_and_goes_on,
    is_ended_while_idle,
    is_ended_while_idle_at_its_end,
]


def some_times(breaks: Callable[[CurrentStep], Any], script: Script) -> Callable[[CurrentStep], Any]:
    async def act(me: CurrentStep) -> None:
        if script.begun <= TIMES:
            await breaks(me)

    return act


async def fresh(world: PostgresWorld) -> str:
    url = await world.fresh()
    world.script.url = url.partition("?")[0]
    return url


@pytest.mark.parametrize("breaks", BREAKING)
async def test_a_connection_that_breaks_in_a_step_is_no_attempt(
    postgres_world: PostgresWorld, breaks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world, url = postgres_world, await fresh(postgres_world)
    world.script.act = some_times(breaks, world.script)
    caplog.set_level(logging.INFO, "perdure")
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
        await env.check()
    assert world.script.begun == TIMES + 1
    assert await world.numbers(url) == [7]
    assert await world.staged(url) == 0
    # One line for the outage, and one for its end.
    warnings = [record.getMessage() for record in caplog.records if "store failed during" in record.getMessage()]
    assert len(warnings) == 1
    assert "step 'note' of run r" in warnings[0]
    assert "Check the database" in warnings[0]
    assert any("committed, after 5 failures of the store" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("word", ["insert into", "stage_v2", "COMMIT"])
async def test_a_way_to_the_server_that_is_cut_is_no_attempt(
    postgres_world: PostgresWorld, word: str, moment: Moment
) -> None:
    """In the body, when its result is staged, and at the commit; before the server hears, and before it is heard."""
    world, url = postgres_world, await fresh(postgres_world)
    async with proxy_to(url, urlsplit(url).port or 0) as (proxy, detour):
        options: dict[str, Any] = {"poll_s": 0.5, "limits": Limits(grace_s=0), **world.options}

        async def act(_: CurrentStep) -> None:
            if proxy.cuts < TIMES and word != "insert into":
                proxy.cut("step", word, moment)

        world.script.act = act
        async with Engine(detour, workflows=world.program.workflows, **options) as engine:
            proxy.cut("step", word, moment)
            assert await engine.run(world.program.several(2), id="r") == 3
            assert [entry.attempts for entry in (await engine.handle("r").history()).journal] == [1, 1]
        assert proxy.cuts >= 1
    assert await world.numbers(url) == [1, 2]
    assert await world.staged(url) == 0


# ---------------------------------------------------------------------------------------------------------------------
# Operations


def noted(script: Script, **options: Any) -> Operation[int]:
    """A step that notes its message, between one that did before it and its rollback."""
    pay = Operation("pay", PAY)

    async def note(number: int) -> None:
        await current_step().connection.execute(f"insert into {script.table} (number) values ($1)", number)

    @pay.step(transactional=True, name="reserve")
    async def reserve(scope: Scope, number: int) -> None:
        await note(number)

    @reserve.rollback
    async def release(scope: Scope, number: int, cause: Failure) -> None:
        await note(-number)

    @pay.step(transactional=True, name="take", **options)
    async def take(scope: Scope, number: int) -> None:
        script.begun += 1
        await note(number + 1)
        done = script.act(current_step())
        if done is not None:
            await done

    return pay


@pytest.mark.parametrize("retry", [None, Retry(attempts=3, initial=timedelta(milliseconds=1))])
@pytest.mark.parametrize("breaks", BREAKING)
async def test_a_connection_that_breaks_in_an_operation_rolls_nothing_back(
    postgres_world: PostgresWorld, breaks: Any, retry: Retry | None
) -> None:
    world, url = postgres_world, await fresh(postgres_world)
    world.script.act = some_times(breaks, world.script)
    async with Environment([noted(world.script, retry=retry)], url, **world.options) as env:
        await (await env.engine.emit(PAY, 1, id="m")).finished()
        await env.check()
    assert world.script.begun == TIMES + 1
    assert await world.numbers(url) == [1, 2]
    assert await world.staged(url) == 0


async def test_what_is_done_in_any_case_is_done_once_the_store_works(postgres_world: PostgresWorld) -> None:
    world, url = postgres_world, await fresh(postgres_world)
    pay = Operation("pay", PAY)
    ends: list[str] = []

    @pay.step(transactional=True)
    async def take(scope: Scope, number: int) -> None:
        world.script.begun += 1
        if world.script.begun <= TIMES:
            await current_step().connection.execute(END_SESSION)
        raise LookupError("its own failure")

    @take.finally_
    async def tidy(scope: Scope, number: int) -> None:
        ends.append("tidied")
        if len(ends) == 1:
            await current_step().connection.execute(END_SESSION)

    async with Environment([pay], url, **world.options) as env:
        with pytest.raises(ScopeFailed, match="its own failure"):
            await (await env.engine.emit(PAY, 1, id="m")).finished()
        await env.check()
    # Once in a transaction that was lost, and once in the one that counts.
    assert (world.script.begun, ends) == (TIMES + 2, ["tidied", "tidied"])


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_operation_whose_commit_is_cut_is_looked_up(postgres_world: PostgresWorld, moment: Moment) -> None:
    world, url = postgres_world, await fresh(postgres_world)
    async with proxy_to(url, urlsplit(url).port or 0) as (proxy, detour):
        options: dict[str, Any] = {"poll_s": 0.5, "limits": Limits(grace_s=0), **world.options}

        async def act(_: CurrentStep) -> None:
            if proxy.cuts < TIMES:
                proxy.cut("step", "COMMIT", moment)

        world.script.act = act
        async with Engine(detour, workflows=[noted(world.script)], **options) as engine:
            await (await engine.emit(PAY, 1, id="m")).finished()
        assert proxy.cuts == (TIMES if moment == "before" else 1)
    assert world.script.begun == (TIMES + 1 if moment == "before" else 1)
    assert await world.numbers(url) == [1, 2]
    assert await world.staged(url) == 0


# ---------------------------------------------------------------------------------------------------------------------
# What stays a failure of the step


async def failure_of(world: PostgresWorld, act: Any) -> BaseException | None:
    url = await fresh(world)
    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(world.program.one(7))
        await env.check()
    assert await world.numbers(url) == []
    return failed.value.__cause__


async def test_a_constraint_that_is_violated_is_the_steps_failure(postgres_world: PostgresWorld) -> None:
    async def act(me: CurrentStep) -> None:
        await me.connection.execute("create temporary table once (id int primary key)")
        await me.connection.execute("insert into once values (1), (1)")

    assert isinstance(await failure_of(postgres_world, act), asyncpg.UniqueViolationError)
    assert postgres_world.script.begun == 3


async def test_a_trigger_that_refuses_at_the_commit_is_the_steps_failure(postgres_world: PostgresWorld) -> None:
    async def act(me: CurrentStep) -> None:
        table = postgres_world.script.table
        await me.connection.execute(
            f"create function refuse_{table}() returns trigger language plpgsql as"
            " $$ begin raise exception 'not today'; end $$"
        )
        await me.connection.execute(
            f"create constraint trigger refuse after insert on {table} deferrable initially deferred"
            f" for each row execute function refuse_{table}()"
        )
        await me.connection.execute(f"insert into {table} values (8)")

    assert "not today" in str(await failure_of(postgres_world, act))
    assert postgres_world.script.begun == 3


async def test_writes_in_a_transaction_that_the_step_made_read_only_are_its_failure(
    postgres_world: PostgresWorld,
) -> None:
    async def act(me: CurrentStep) -> None:
        await me.connection.execute("set transaction read only")
        await me.connection.execute(f"delete from {postgres_world.script.table}")

    assert isinstance(await failure_of(postgres_world, act), asyncpg.ReadOnlySQLTransactionError)
    assert postgres_world.script.begun == 3


async def test_another_database_that_breaks_is_the_steps_failure(postgres_world: PostgresWorld) -> None:
    async def act(me: CurrentStep) -> None:
        driver: Any = asyncpg
        other = await driver.connect(resource(Script).url)
        try:
            await other.execute(END_SESSION)
        finally:
            other.terminate()

    assert isinstance(await failure_of(postgres_world, act), (asyncpg.PostgresError, OSError))
    assert postgres_world.script.begun == 3


async def test_a_transaction_that_a_step_leaves_idle_for_too_long_is_its_failure(
    postgres_world: PostgresWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would run again for ever. The server ends the session; the step waits for that."""
    monkeypatch.setattr(connections, "step_rest_s", lambda _address: 0.2)
    monkeypatch.setattr("perdure.storage.postgres.steps.step_rest_s", lambda _address: 0.2)

    async def act(me: CurrentStep) -> None:
        is_closed = me.connection.is_closed
        while not is_closed():
            await asyncio.sleep(0.01)
        await me.connection.execute("select 1")

    failure = await failure_of(postgres_world, act)
    assert "closed" in str(failure)
    assert postgres_world.script.begun == 3


# ---------------------------------------------------------------------------------------------------------------------
# The server has no space, the disk is full


@pytest.mark.parametrize("code", ["53100", "53300", "58030", "40001"])  # no space, no connections, I/O, serialization
async def test_what_the_server_says_about_itself_is_no_attempt(postgres_world: PostgresWorld, code: str) -> None:
    world, url = postgres_world, await fresh(postgres_world)
    refusals = 0

    async def act(me: CurrentStep) -> None:
        nonlocal refusals
        if refusals < TIMES:
            refusals += 1
            await me.connection.execute(f"do $$ begin raise 'not now' using errcode = '{code}'; end $$")

    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
    assert await world.numbers(url) == [7]


async def test_too_many_connections_are_no_attempt(
    postgres_world: PostgresWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The step's connection is the one too many, until there may be more."""
    world, url = postgres_world, await fresh(postgres_world)
    role = f"crowded_{schema_of(url)}"
    await world.ask(url, f"create role {role} login")
    await world.ask(url, f"grant all on {world.script.table} to {role}")
    await upgrade(url, runtime_role=role)
    async with Environment(world.program.workflows, url.replace("postgres@", f"{role}@"), **world.options) as env:
        await world.ask(url, f"alter role {role} connection limit 1")
        running = asyncio.ensure_future(env.engine.run(world.program.one(7), id="r"))
        while "too many connections" not in caplog.text:
            await asyncio.sleep(0.01)
        assert world.script.begun == 0
        await world.ask(url, f"alter role {role} connection limit -1")
        assert await running == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
    assert await world.numbers(url) == [7]


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_full_disk_is_no_attempt_on_sqlite(sqlite_world: SqliteWorld, swallows: bool) -> None:
    """SQLite itself says so, of a file that may have no more pages."""
    world, url = sqlite_world, await sqlite_world.fresh()

    def act(me: CurrentStep) -> None:
        connection = me.connection
        if world.script.begun > TIMES:
            connection.execute("pragma max_page_count = 1000000")
            return
        connection.execute("pragma max_page_count = 1")  # No fewer than there are.
        try:
            connection.execute("create table big (text)")
            connection.execute("insert into big values (zeroblob(1000000))")
        except Exception as error:
            if swallows:
                raise LookupError("what the step makes of it") from error
            raise

    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
        await env.check()
    assert world.script.begun == TIMES + 1
    assert await world.numbers(url) == [7]


async def test_a_full_disk_rolls_no_operation_back_on_sqlite(sqlite_world: SqliteWorld) -> None:
    world, url = sqlite_world, await sqlite_world.fresh()
    pay = Operation("pay", PAY)

    @pay.step(transactional=True)
    def take(scope: Scope, number: int) -> None:
        connection = current_step().connection
        world.script.begun += 1
        connection.execute(f"insert into {world.script.table} values (?)", (number,))
        if world.script.begun > TIMES:
            connection.execute("pragma max_page_count = 1000000")
            return
        connection.execute("pragma max_page_count = 1")
        connection.execute("create table big (text)")
        connection.execute("insert into big values (zeroblob(1000000))")

    async with Environment([pay], url, **world.options) as env:
        await (await env.engine.emit(PAY, 1, id="m")).finished()
        await env.check()
    assert world.script.begun == TIMES + 1
    assert await world.numbers(url) == [1]
