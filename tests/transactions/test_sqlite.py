"""Transactional steps on SQLite: in the writer's thread, on a connection that only they have."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest

from perdure import NamedEvent, Retry, current_step, workflow
from perdure.errors import Misuse, QueueFull, RunFailed
from perdure.models.functions.context import CurrentStep
from perdure.testing import Environment
from tests.transactions.notes import SqliteWorld, plain_step


@pytest.fixture
def world(sqlite_world: SqliteWorld) -> SqliteWorld:
    return sqlite_world


async def outcome(world: SqliteWorld, act: Any) -> tuple[BaseException | None, list[int]]:
    """What a run fails with whose step does this, and what is left of its writes."""
    url = await world.fresh()
    world.script.act = act
    failure: BaseException | None = None
    async with Environment(world.program.workflows, url, **world.options) as env:
        try:
            await env.engine.run(world.program.one(7))
        except RunFailed as failed:
            failure = failed.__cause__
        await env.check()
    return failure, await world.numbers(url)


ENDING: dict[str, Any] = {
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "close()": lambda connection: connection.close(),
    "executescript()": lambda connection: connection.executescript("select 1"),
    "executescript() of a cursor": lambda connection: connection.cursor().executescript("select 1"),
    "with": lambda connection: connection.__enter__(),
    "COMMIT": lambda connection: connection.execute("commit"),
    "ROLLBACK": lambda connection: connection.execute("/* now */ rollback"),
    "BEGIN": lambda connection: connection.execute("begin"),
    "ATTACH": lambda connection: connection.execute("attach ':memory:' as other"),
    "a commit behind the cursor's back": lambda connection: connection.cursor().connection.commit(),
}


@pytest.mark.parametrize("how", ENDING)
async def test_a_step_cannot_end_its_transaction(world: SqliteWorld, how: str) -> None:
    failure, numbers = await outcome(world, lambda me: ENDING[how](me.connection))
    assert isinstance(failure, (Misuse, sqlite3.DatabaseError)), failure
    assert "transactional step" in str(failure) or "not authorized" in str(failure)
    assert numbers == []


@pytest.mark.parametrize("how", ENDING)
async def test_a_step_that_tried_to_and_goes_on_is_committed_as_ever(world: SqliteWorld, how: str) -> None:
    def act(me: CurrentStep) -> None:
        with pytest.raises((Misuse, sqlite3.DatabaseError)):
            ENDING[how](me.connection)

    assert await outcome(world, act) == (None, [7])


@pytest.mark.parametrize(
    "statement",
    [
        "update runs set status = 'succeeded'",
        "delete from journal",
        "insert into staged select * from staged",
        "drop table waits",
        "create index mine on runs (model)",
        "create trigger mine after insert on runs begin select 1; end",
        "alter table audit rename to mine",
    ],
)
async def test_tables_of_the_store_are_not_a_steps_to_write(world: SqliteWorld, statement: str) -> None:
    failure, numbers = await outcome(world, lambda me: me.connection.execute(statement))
    assert isinstance(failure, Misuse)
    assert "Perdure's own" in str(failure)
    assert numbers == []


async def test_a_column_may_have_the_name_of_a_table_of_the_store(world: SqliteWorld) -> None:
    def act(me: CurrentStep) -> None:
        me.connection.execute("create table mine (runs integer)")
        me.connection.execute("insert into mine (runs) values (1)")
        me.connection.execute("update mine set runs = runs + 1")
        assert me.connection.execute("select runs from mine").fetchall() == [(2,)]

    assert await outcome(world, act) == (None, [7])


async def test_reading_savepoints_factories_and_functions_work(world: SqliteWorld) -> None:
    def act(me: CurrentStep) -> None:
        connection = me.connection
        connection.row_factory = sqlite3.Row
        connection.create_function("double", 1, lambda number: number * 2)
        connection.execute("savepoint here")
        connection.executemany(f"insert into {world.script.table} values (?)", [(1,), (2,)])
        connection.execute("rollback to here")
        (row,) = connection.execute(f"select double(number) as twice from {world.script.table}")
        assert row["twice"] == 14
        assert connection.in_transaction
        assert connection.execute("select count(*) as runs from runs").fetchone()["runs"] == 1

    assert await outcome(world, act) == (None, [7])


async def test_what_else_a_connection_has_is_not_there(world: SqliteWorld) -> None:
    failure, _ = await outcome(world, lambda me: me.connection.set_authorizer(None))
    assert isinstance(failure, AttributeError)


async def test_a_connection_is_of_no_use_after_its_step(world: SqliteWorld) -> None:
    kept: list[Any] = []
    failure, _ = await outcome(world, lambda me: kept.extend((me.connection, me.connection.cursor())))
    assert failure is None
    for left in kept:
        with pytest.raises(Misuse, match="has ended"):
            left.execute("select 1")
    with pytest.raises(Misuse, match="has ended"):
        kept[0].cursor()
    with pytest.raises(Misuse, match="has ended"):
        _ = kept[0].in_transaction


async def test_a_step_whose_transaction_sqlite_rolled_back_cannot_go_on(world: SqliteWorld) -> None:
    def act(me: CurrentStep) -> None:
        me.connection.execute("create table mine (number integer unique on conflict rollback)")
        me.connection.execute("insert into mine values (1)")
        with pytest.raises(sqlite3.IntegrityError):
            me.connection.execute("insert into mine values (1)")
        with pytest.raises(Misuse, match="rolled the step's transaction back"):
            me.connection.execute("insert into mine values (2)")

    failure, numbers = await outcome(world, act)
    assert isinstance(failure, Misuse)
    assert numbers == []


async def test_foreign_keys_are_looked_at(world: SqliteWorld) -> None:
    def act(me: CurrentStep) -> None:
        me.connection.execute("create table parent (id integer primary key)")
        me.connection.execute("create table child (id integer references parent (id))")
        me.connection.execute("insert into child values (1)")

    failure, _ = await outcome(world, act)
    assert isinstance(failure, sqlite3.IntegrityError)


# ---------------------------------------------------------------------------------------------------------------------
# Nothing else can be written meanwhile


async def test_asking_the_engine_is_refused_instead_of_waiting_for_ever(world: SqliteWorld) -> None:
    url = await world.fresh()
    loop = asyncio.get_running_loop()
    async with Environment(world.program.workflows, url, **world.options) as env:
        asked: list[Any] = [
            lambda: env.engine.start(world.program.one(8)),
            lambda: env.engine.send(NamedEvent("hello", 1), to="r"),
            lambda: env.engine.handle("r").cancel(),
            lambda: env.engine.runs.get("r"),
        ]

        def act(_: CurrentStep) -> None:
            for ask in asked:
                with pytest.raises(Misuse, match="Do it in another step"):
                    asyncio.run_coroutine_threadsafe(ask(), loop).result(10)

        world.script.act = act
        assert await env.engine.run(world.program.one(7), id="r") == 7


async def test_what_a_step_has_set_off_may_ask_once_the_step_has_ended(world: SqliteWorld) -> None:
    url = await world.fresh()
    loop, left = asyncio.get_running_loop(), []
    has_ended = asyncio.Event()
    async with Environment(world.program.workflows, url, **world.options) as env:

        async def ask_later() -> Any:
            await has_ended.wait()
            return await env.engine.runs.get("r")

        def act(_: CurrentStep) -> None:
            left.append(asyncio.run_coroutine_threadsafe(ask_later(), loop))

        world.script.act = act
        assert await env.engine.run(world.program.one(7), id="r") == 7
        has_ended.set()
        assert (await asyncio.wrap_future(left[0])).id == "r"


async def test_nothing_can_be_awaited(world: SqliteWorld) -> None:
    def act(_: CurrentStep) -> None:
        waiting = asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="running"):
            asyncio.run(waiting)
        with closing(asyncio.new_event_loop()) as another, pytest.raises(RuntimeError, match="running"):
            another.run_until_complete(waiting)
        with pytest.raises(Misuse, match="nothing can be awaited"):
            asyncio.get_running_loop().create_task(waiting)
        waiting.close()

    assert await outcome(world, act) == (None, [7])


async def test_a_result_to_be_awaited_is_refused(world: SqliteWorld) -> None:
    failure, numbers = await outcome(world, lambda _: asyncio.sleep(0))
    assert isinstance(failure, Misuse)
    assert world.script.begun == 1
    assert numbers == []


async def test_more_than_can_wait_to_be_written_to_a_stream_is_refused(world: SqliteWorld) -> None:
    def act(me: CurrentStep) -> None:
        for _ in range(20):
            me.append("log", "x" * 900_000)

    failure, numbers = await outcome(world, act)
    assert isinstance(failure, QueueFull)
    assert numbers == []


async def test_a_step_that_takes_too_long_is_rolled_back_when_it_ends(world: SqliteWorld) -> None:
    url = await world.fresh()
    is_late = threading.Event()

    def act(me: CurrentStep) -> None:
        if me.attempt == 1:
            assert is_late.wait(60)
            assert current_step().attempt == 1

    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        began_at = env.clock.now()
        run = await env.engine.start(world.program.in_time(7), id="r")
        while env.clock.now() < began_at + 60_000_000:
            await asyncio.sleep(0.01)
        is_late.set()
        assert await run.result() == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 2
        await env.check()
    assert await world.numbers(url) == [7]
    assert world.script.begun == 2


async def test_a_step_that_waits_for_the_writer_is_not_begun_once_it_is_given_up(world: SqliteWorld) -> None:
    """The first of two holds the writer; the second runs out of time before its turn comes."""
    url = await world.fresh()
    first, second = plain_step(), plain_step(retry=Retry.never(), total_timeout=60)
    has_begun, may_end = threading.Event(), threading.Event()

    def act(_: CurrentStep) -> None:
        has_begun.set()
        assert may_end.wait(60)

    @workflow
    async def both() -> list[str]:
        ends = await asyncio.gather(first(1), second(2), return_exceptions=True)
        return [type(end).__name__ for end in ends]

    world.script.act = act
    async with Environment([both], url, autojump_s=None, **world.options) as env:
        run = await env.engine.start(both())
        assert await asyncio.to_thread(has_begun.wait, 60)
        env.clock.move_to(env.clock.now() + 61_000_000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        may_end.set()
        assert await run.result() == ["int", "StepTimedOut"]
    assert world.script.begun == 1
    assert await world.numbers(url) == [1]
