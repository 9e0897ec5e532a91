"""Transactional steps on Postgres: each on a connection of its own while it runs; the fence comes last."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from perdure import Engine, Limits
from perdure.errors import Misuse, RunCancelled, RunFailed
from perdure.models.functions.context import CurrentStep
from perdure.storage import open_store
from perdure.storage.postgres.steps import LANES
from perdure.testing import Environment
from tests.fleet.conftest import until
from tests.storage.postgres.proxy import Moment, proxy_to
from tests.transactions.notes import PostgresWorld


@pytest.fixture
def world(postgres_world: PostgresWorld) -> PostgresWorld:
    return postgres_world


async def outcome(world: PostgresWorld, act: Any) -> tuple[BaseException | None, list[int]]:
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


class Stage:
    """Where the first body that comes waits until it is told to go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def act(self, _: CurrentStep) -> None:
        if not self.reached.is_set():
            self.reached.set()
            await self.go_on.wait()


@pytest.mark.parametrize("ending", ["commit", "commit; begin", "rollback", "rollback; begin"])
async def test_a_step_that_ends_its_transaction_is_found_out(world: PostgresWorld, ending: str) -> None:
    async def act(me: CurrentStep) -> None:
        await me.connection.execute(ending)

    failure, numbers = await outcome(world, act)
    assert isinstance(failure, Misuse)
    assert "ended its transaction itself" in str(failure)
    assert numbers == ([7] if "commit" in ending else [])
    assert world.script.begun == 1


@pytest.mark.parametrize("name", ["close", "terminate", "reset"])
async def test_the_connection_stays_the_stores(world: PostgresWorld, name: str) -> None:
    async def act(me: CurrentStep) -> None:
        await getattr(me.connection, name)()

    failure, numbers = await outcome(world, act)
    assert isinstance(failure, Misuse)
    assert numbers == []


async def test_a_connection_is_of_no_use_after_its_step(world: PostgresWorld) -> None:
    kept: list[Any] = []

    async def act(me: CurrentStep) -> None:
        kept.append(me.connection)

    await outcome(world, act)
    with pytest.raises(Misuse, match="has ended"):
        await kept[0].fetch("select 1")


async def test_transactions_inside_are_savepoints(world: PostgresWorld) -> None:
    async def fail(me: CurrentStep) -> None:
        async with me.connection.transaction():
            await me.connection.execute(f"insert into {world.script.table} values (8)")
            await me.connection.execute("select 1 / 0")

    async def act(me: CurrentStep) -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await fail(me)
        async with me.connection.transaction():
            await me.connection.execute(f"insert into {world.script.table} values (9)")

    assert await outcome(world, act) == (None, [7, 9])


async def test_an_error_that_is_swallowed_ends_the_transaction_all_the_same(world: PostgresWorld) -> None:
    async def act(me: CurrentStep) -> None:
        with pytest.raises(asyncpg.DivisionByZeroError):
            await me.connection.execute("select 1 / 0")

    failure, numbers = await outcome(world, act)
    assert "aborted" in str(failure)
    assert numbers == []


async def test_what_a_step_leaves_under_way_is_its_failure(world: PostgresWorld) -> None:
    left: list[asyncio.Task[Any]] = []

    async def act(me: CurrentStep) -> None:
        left.append(asyncio.ensure_future(me.connection.execute("select pg_sleep(1)")))
        await asyncio.sleep(0.05)

    failure, numbers = await outcome(world, act)
    assert "another operation is in progress" in str(failure)
    assert numbers == []
    await asyncio.gather(*left, return_exceptions=True)


async def test_what_a_step_sets_for_its_session_is_gone_in_the_next(world: PostgresWorld) -> None:
    found: list[str] = []

    async def act(me: CurrentStep) -> None:
        found.append(await me.connection.fetchval("show application_name"))
        await me.connection.execute("set application_name = 'mine'")
        await me.connection.execute("select pg_advisory_lock(17)")

    url = await world.fresh()
    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        await env.engine.run(world.program.several(3))
    assert found == ["perdure step"] * 3


async def test_no_more_connections_are_opened_than_there_may_be(world: PostgresWorld) -> None:
    most = 0

    async def act(me: CurrentStep) -> None:
        nonlocal most
        count = "select count(*) from pg_stat_activity where application_name = 'perdure step' and backend_start >= $1"
        most = max(most, await me.connection.fetchval(count, began))

    url = await world.fresh()
    began = (await world.ask(url, "select now()"))[0][0]
    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        await env.engine.run(world.program.together(LANES * 5))
    assert 1 <= most <= LANES


async def test_a_run_that_is_cancelled_while_its_step_runs_keeps_nothing(world: PostgresWorld) -> None:
    url, stage = await world.fresh(), Stage()
    world.script.act = stage.act
    async with Environment(world.program.workflows, url, **world.options) as env:
        run = await env.engine.start(world.program.one(7), id="r")
        await stage.reached.wait()
        assert await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await env.check()
    assert await world.numbers(url) == []
    assert await world.staged(url) == 0


async def test_a_step_that_takes_too_long_is_cancelled_and_rolled_back(world: PostgresWorld) -> None:
    url, stage = await world.fresh(), Stage()
    world.script.act = stage.act
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.in_time(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 2
    assert await world.numbers(url) == [7]


async def test_a_step_that_will_not_be_cancelled_is_rolled_back_all_the_same(world: PostgresWorld) -> None:
    url, stage = await world.fresh(), Stage()

    async def act(me: CurrentStep) -> None:
        try:
            await stage.act(me)
        except asyncio.CancelledError:
            stage.go_on.set()

    world.script.act = act
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.in_time(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 2
    assert await world.numbers(url) == [7]


async def test_an_engine_that_was_taken_for_dead_commits_nothing_and_the_other_does(world: PostgresWorld) -> None:
    """The first stands still in its step while it is declared dead and the run is taken over; then it goes on."""
    url, stage = await world.fresh(), Stage()
    world.script.act = stage.act
    options: dict[str, Any] = {"poll_s": 0.05, "limits": Limits(grace_s=0), **world.options}
    # It does not look around, so that it hears of its death when it comes to commit.
    deaf: dict[str, Any] = {**options, "poll_s": None}
    async with Engine(url, workflows=world.program.workflows, **deaf) as first:
        await first.start(world.program.one(7), id="r")
        await stage.reached.wait()
        observer = open_store(url)
        await observer.open()
        claim = (await observer.load(["r"]))["r"].run.claim
        await observer.retire(first.session.coordinator.engine.id)
        async with Engine(url, workflows=world.program.workflows, **options) as second:

            async def is_taken() -> bool:
                # Not by its owner: the second may have ended it by now, and then nobody owns it.
                return (await observer.load(["r"]))["r"].run.claim > claim

            await until(is_taken)
            stage.go_on.set()
            assert await second.handle("r").result() == 7
        await observer.close()
    assert world.script.begun == 2
    assert await world.numbers(url) == [7]
    assert await world.staged(url) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_connection_that_breaks_at_the_commit_leaves_no_doubt(world: PostgresWorld, moment: Moment) -> None:
    url = await world.fresh()
    async with proxy_to(url, urlsplit(url).port or 0) as (proxy, detour):
        options: dict[str, Any] = {"poll_s": 0.5, "limits": Limits(grace_s=0), **world.options}
        async with Engine(detour, workflows=world.program.workflows, **options) as engine:
            proxy.cut("step", "COMMIT", moment)
            assert await engine.run(world.program.several(2), id="r") == 3
            assert [entry.attempts for entry in (await engine.handle("r").history()).journal] == [1, 1]
        assert proxy.cuts == 1
    assert await world.numbers(url) == [1, 2]
    assert world.script.begun == (3 if moment == "before" else 2)
    assert await world.staged(url) == 0
