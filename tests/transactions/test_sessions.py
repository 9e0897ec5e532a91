"""Sessions of transactional steps that nobody hears of any more, and steps of engines that were taken for dead."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import Engine, Limits
from perdure.models.functions.context import CurrentStep
from perdure.storage import open_store
from perdure.storage.postgres import connection as connections
from perdure.storage.postgres import steps
from tests.storage.postgres.meddler import meddler, until_somebody_waits
from tests.storage.postgres.proxy import Moment, proxy_to
from tests.transactions.notes import PostgresWorld

DEAF: dict[str, Any] = {
    "poll_s": None,
    "limits": Limits(grace_s=0),
}  # It hears of its death when it asks the store for something.
KEEN: dict[str, Any] = {"poll_s": 0.05, "limits": Limits(grace_s=0)}
TIMES = 5  # more often than any policy here tries
SOON_S = 20.0  # far below the minute for which a server lets a step's transaction rest


@pytest.fixture
def world(postgres_world: PostgresWorld) -> PostgresWorld:
    return postgres_world


async def test_no_body_begins_after_its_run_has_ended_elsewhere(world: PostgresWorld) -> None:
    """The first engine is cut off while the answer to its proof is on its way, for longer than its lease. Another one
    takes the run over and ends it; then the answer arrives."""
    url = f"{await world.fresh()}&lease=2"
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=world.program.workflows, **world.options, **DEAF) as first,
    ):
        proxy.hold("step", "the-run")
        await first.start(world.program.one(7), id="the-run")
        await proxy.held.wait()
        async with Engine(url, workflows=world.program.workflows, **world.options, **KEEN) as second:
            assert await second.handle("the-run").result() == 7
            proxy.release()
            # It is heard of when the engine has found out that it was marked dead.
            assert await first.run(world.program.one(8), id="another") == 8
    assert world.script.begun == 2
    assert await world.numbers(url) == [7, 8]


async def test_an_engine_that_learns_in_a_step_that_it_is_dead_registers_anew_at_once(world: PostgresWorld) -> None:
    """Nothing else tells it: it looks for nothing, and commits nothing while the step is under way."""
    url = await world.fresh()

    async def act(me: CurrentStep) -> None:
        if world.script.begun == 1:
            async with meddler(url) as other:
                await other.execute("update engines set alive = false")

    world.script.act = act
    async with Engine(url, workflows=world.program.workflows, **world.options, **DEAF) as engine:
        async with asyncio.timeout(SOON_S):
            assert await engine.run(world.program.one(7), id="r") == 7
    assert world.script.begun == 2
    assert await world.numbers(url) == [7]


async def test_a_takeover_does_not_wait_for_the_transactions_of_a_dead_engine(world: PostgresWorld) -> None:
    """More of them than there are connections for steps, all with locks that the steps of the next engine need."""
    url, count = await world.fresh(), steps.LANES
    stood: list[str] = []
    all_stand, go_on = asyncio.Event(), asyncio.Event()
    await world.ask(url, f"insert into {world.script.table} select -number from generate_series(1, {count}) as number")

    async def act(me: CurrentStep) -> None:
        await me.connection.execute(f"delete from {world.script.table} where number = $1", -int(me.run_id))
        if len(stood) < count:
            stood.append(me.run_id)
            if len(stood) == count:
                all_stand.set()
            await go_on.wait()

    world.script.act = act
    async with Engine(url, workflows=world.program.workflows, **world.options, **DEAF) as first:
        for number in range(1, count + 1):
            await first.start(world.program.one(number), id=str(number))
        await all_stand.wait()
        observer = open_store(url)
        await observer.open()
        await observer.retire(first.session.coordinator.engine.id)
        async with asyncio.timeout(SOON_S):
            async with Engine(url, workflows=world.program.workflows, **world.options, **KEEN) as second:
                results = [await second.handle(str(number)).result() for number in range(1, count + 1)]
        assert results == [*range(1, count + 1)]
        await observer.close()
        go_on.set()
    assert await world.numbers(url) == [*range(1, count + 1)]
    assert await world.staged(url) == 0


async def test_an_engine_that_stands_still_before_its_commit_is_marked_dead_in_time(world: PostgresWorld) -> None:
    """The row of the engine is locked by then, and the server itself must give the transaction up."""
    url = f"{await world.fresh()}&lease=3"
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=world.program.workflows, **world.options, **DEAF) as first,
    ):
        proxy.hold("step", "COMMIT", "before")
        await first.start(world.program.one(7), id="r")
        await proxy.held.wait()
        async with asyncio.timeout(SOON_S):
            async with Engine(url, workflows=world.program.workflows, **world.options, **KEEN) as second:
                assert await second.handle("r").result() == 7
        proxy.release()
        assert await first.run(world.program.one(8), id="another") == 8
    assert await world.numbers(url) == [7, 8]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("word", ["BEGIN", "enter_step", "stage_v2", "COMMIT"])
async def test_a_way_that_falls_silent_without_a_word_is_given_up(
    world: PostgresWorld, word: str, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither end hears that the other is out of reach, as behind a firewall that forgets."""
    monkeypatch.setattr(steps, "_ANSWER_MIN_S", 0.5)
    url = f"{await world.fresh()}&lease=3"
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=world.program.workflows, **world.options, **KEEN) as engine,
    ):
        proxy.stall("step", word, moment)
        async with asyncio.timeout(SOON_S):
            assert await engine.run(world.program.several(2), id="r") == 3
        assert [entry.attempts for entry in (await engine.handle("r").history()).journal] == [1, 1]
        assert proxy.cuts == 1
    assert await world.numbers(url) == [1, 2]
    assert await world.staged(url) == 0


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_body_whose_answer_never_comes_runs_again_once_its_transaction_is_gone(
    world: PostgresWorld, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connections, steps):
        monkeypatch.setattr(module, "step_rest_s", lambda _address: 0.2)
    url = f"{await world.fresh()}&lease=3"
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=world.program.workflows, **world.options, **KEEN) as engine,
    ):
        proxy.stall("step", "insert into", moment)
        async with asyncio.timeout(SOON_S):
            assert await engine.run(world.program.several(2), id="r") == 3
        assert [entry.attempts for entry in (await engine.handle("r").history()).journal] == [1, 1]
    assert world.script.begun == 3
    assert await world.numbers(url) == [1, 2]


async def test_giving_way_in_a_deadlock_is_no_attempt(world: PostgresWorld) -> None:
    url = await world.fresh()
    await world.ask(url, f"insert into {world.script.table} values (-1), (-2)")
    change = f"update public.{world.script.table} set number = number where number = $1"

    async def act(me: CurrentStep) -> None:
        if world.script.begun > TIMES:
            return
        async with meddler(url) as other, meddler(url) as watcher:
            await other.execute("begin; set local deadlock_timeout = '60s'")  # It is not the one to give way.
            await other.execute(change, -1)
            await me.connection.execute(change, -2)
            crossing = asyncio.ensure_future(other.execute(change, -2))
            await until_somebody_waits(watcher)
            try:
                await me.connection.execute(change, -1)
            finally:
                other.terminate()
                await asyncio.wait([crossing])
                crossing.exception()

    world.script.act = act
    async with Engine(url, workflows=world.program.workflows, **world.options, **KEEN) as engine:
        assert await engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await engine.handle("r").history()).journal
        assert entry.attempts == 1
    assert world.script.begun == TIMES + 1
    assert await world.numbers(url) == [-2, -1, 7]
