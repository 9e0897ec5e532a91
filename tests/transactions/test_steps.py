"""A transactional step's own writes and its result: both are there, or neither is."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, Retry, current_step, step, workflow
from perdure.errors import (
    CommitRefused,
    InvalidDefinition,
    MaxRetriesExceeded,
    Misuse,
    RunCancelled,
    RunFailed,
    UnstorableValue,
)
from perdure.kernel.rows import Staged
from perdure.models.functions.context import CurrentStep
from perdure.ports import StepPlace, Store
from perdure.testing import Environment, Fault, StoreProxy
from tests.transactions.notes import QUICK, Program, Script, World, async_step, plain_step


def at_first(error: BaseException) -> Any:
    def act(me: CurrentStep) -> None:
        if me.attempt == 1:
            raise error

    return act


def always(error: BaseException) -> Any:
    def act(_: CurrentStep) -> None:
        raise error

    return act


class Pausing(StoreProxy):
    """Tells when a step's transaction is committed, and then waits before anybody hears of it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.committed = asyncio.Event()
        self.go_on = asyncio.Event()

    async def transact(self, place: StepPlace, body: Any, /) -> Staged:
        staged = await super().transact(place, body)
        self.committed.set()
        await self.go_on.wait()
        return staged


async def test_writes_and_result_are_committed_once(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.several(3), id="r") == 6
        journal = (await env.engine.handle("r").history()).journal
        assert [(entry.name, entry.attempts) for entry in journal] == [("note", 1)] * 3
        await env.check()
    assert await world.numbers(url) == [1, 2, 3]
    assert await world.staged(url) == 0


async def test_many_at_once_each_have_their_own_transaction(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.together(20)) == 210
        await env.check()
    assert await world.numbers(url) == [*range(1, 21)]


async def test_a_failed_attempt_leaves_nothing_and_the_next_is_made_by_policy(world: World) -> None:
    url = await world.fresh()
    world.script.act = at_first(OSError("not at first"))
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == world.script.begun == 2
    assert await world.numbers(url) == [7]


async def test_an_hour_between_attempts_is_durable_and_changes_nothing(world: World) -> None:
    url = await world.fresh()
    world.script.act = at_first(OSError("not at first"))
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.slowly(7)) == 7
        await env.check()
    assert await world.numbers(url) == [7]


async def test_a_step_that_fails_for_good_leaves_nothing(world: World) -> None:
    url = await world.fresh()
    world.script.act = always(LookupError("never"))
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(world.program.one(7))
        assert isinstance(failed.value.__cause__, LookupError)
        assert isinstance(failed.value.__cause__.__cause__, MaxRetriesExceeded)
        await env.check()
    assert world.script.begun == 3
    assert await world.numbers(url) == []


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
async def test_whatever_a_step_raises_is_its_failure_alone(world: World, error: BaseException) -> None:
    url = await world.fresh()
    world.script.act = always(error)
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(world.program.one(7))
        world.script.act = lambda _: None
        assert await env.engine.run(world.program.one(8)) == 8
    assert await world.numbers(url) == [8]


@pytest.mark.parametrize("value", [object(), "x" * 2000, "not a number"], ids=["unstorable", "too large", "other type"])
async def test_a_result_that_cannot_be_stored_rolls_back_and_is_not_tried_again(world: World, value: object) -> None:
    url = await world.fresh()
    world.script.act = lambda _: value
    async with Environment(world.program.workflows, url, limits=Limits(payload_bytes_max=1000), **world.options) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(world.program.one(7))
        assert isinstance(failed.value.__cause__, UnstorableValue)
    assert world.script.begun == 1
    assert await world.numbers(url) == []


class Reversing:
    """A codec that has to be used."""

    def encode(self, text: str) -> str:
        asyncio.get_running_loop()  # It is called on the loop, whoever wants it.
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


class Broken(Reversing):
    is_broken = True

    def encode(self, text: str) -> str:
        if self.is_broken and text == "7":
            raise RuntimeError("no key")
        return super().encode(text)


async def test_results_go_through_the_codec(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, codec=Reversing(), **world.options) as env:
        assert await env.engine.run(world.program.one(17), id="r") == 17
        assert (await env.engine.session.store.journal("r"))[1][0].value == "71"


async def test_a_codec_that_fails_sets_the_run_aside_until_it_works_again(world: World) -> None:
    url = await world.fresh()
    codec = Broken()
    async with Environment(world.program.workflows, url, codec=codec, **world.options) as env:
        run = await env.engine.start(world.program.several(7), id="r")
        await env.quiet()
        held = await env.engine.runs.get("r")
        assert held is not None
        assert held.hold is not None
        assert "no key" in held.hold.reason
        assert await world.numbers(url) == [1, 2, 3, 4, 5, 6]
        codec.is_broken = False
        await env.engine.handle("r").resume()
        assert await run.result() == 28
        await env.check()
    assert await world.numbers(url) == [*range(1, 8)]


async def test_what_the_database_refuses_at_the_end_is_a_failure(world: World) -> None:
    url = await world.fresh()
    parent, child = f"{world.script.table}_p", f"{world.script.table}_c"
    await world.ask(url, f"create table {parent} (id integer primary key)")
    await world.ask(url, f"create table {child} (id integer references {parent} (id) deferrable initially deferred)")
    world.script.act = lambda me: me.connection.execute(f"insert into {child} values (5)") and None
    if world.kind == "postgres":
        world.script.act = lambda me: _ignored(me.connection.execute(f"insert into {child} values (5)"))
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(world.program.one(7))
        assert isinstance(failed.value.__cause__, CommitRefused)
        await env.check()
    assert world.script.begun == 3
    assert await world.numbers(url) == []


async def _ignored(awaited: Any) -> None:
    await awaited


async def test_what_it_appends_to_a_stream_comes_with_it(world: World) -> None:
    url = await world.fresh()
    world.script.act = lambda me: me.append("log", f"attempt {me.attempt}")
    async with Environment(world.program.workflows, url, **world.options) as env:
        await env.engine.run(world.program.one(7), id="r")
        assert [item.value async for item in env.engine.handle("r").stream("log")] == ["attempt 1"]


# ---------------------------------------------------------------------------------------------------------------------
# Cancelled, withdrawn, taken away


async def test_a_run_that_is_cancelled_after_the_commit_keeps_what_was_written(world: World) -> None:
    url = await world.fresh()
    stores: list[Pausing] = []

    def pausing(store: Store) -> Store:
        stores.append(Pausing(store))
        return stores[-1]

    async with Environment(world.program.workflows, url, watch=pausing, **world.options) as env:
        run = await env.engine.start(world.program.one(7), id="r")
        await stores[0].committed.wait()
        assert await world.staged(url) == 1
        assert await env.engine.handle("r").cancel()
        stores[0].go_on.set()
        with pytest.raises(RunCancelled):
            await run.result()
        await env.check()
    assert await world.numbers(url) == [7]
    assert await world.staged(url) == 0


async def test_a_step_that_is_withdrawn_after_its_commit_leaves_nothing_staged_in_the_end(world: World) -> None:
    url = await world.fresh()
    stores: list[Pausing] = []

    def pausing(store: Store) -> Store:
        stores.append(Pausing(store))
        return stores[-1]

    async with Environment(
        world.program.workflows, url, watch=pausing, autojump_s=None, **world.options
    ) as env:  # fmt: skip
        run = await env.engine.start(world.program.given_up(7), id="r")
        await stores[0].committed.wait()
        await env.advance(timedelta(minutes=2))
        assert await run.result() == "too late"
        stores[0].go_on.set()
        await env.check()
    assert await world.numbers(url) == [7]
    assert await world.staged(url) == 0


async def test_a_timeout_after_the_commit_comes_too_late(world: World) -> None:
    url = await world.fresh()
    stores: list[Pausing] = []

    def pausing(store: Store) -> Store:
        stores.append(Pausing(store))
        return stores[-1]

    async with Environment(
        world.program.workflows, url, watch=pausing, autojump_s=None, **world.options
    ) as env:  # fmt: skip
        for call in (world.program.in_time(7), world.program.all_in_time(8)):
            run = await env.engine.start(call)
            await stores[0].committed.wait()
            await env.advance(timedelta(minutes=2))
            stores[0].go_on.set()
            assert await run.result() in (7, 8)
            stores[0].committed.clear()
            stores[0].go_on.clear()
    assert await world.numbers(url) == [7, 8]


# ---------------------------------------------------------------------------------------------------------------------
# Compensation, continuing, retrying


async def test_compensations_can_be_transactional(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(world.program.undone(7))
        await env.check()
    assert await world.numbers(url) == [-7, 7]


async def test_a_run_that_continues_does_each_of_its_steps_once(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        assert await env.engine.run(world.program.onward(4)) == 1
        await env.check()
    assert await world.numbers(url) == [1, 2, 3, 4]


async def test_a_retry_repeats_only_what_is_archived(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(world.program.then_fails(7), id="r")
        with pytest.raises(RunFailed):
            await (await env.engine.handle("r").retry()).result()
        assert await world.numbers(url) == [7]
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Where it cannot be


@workflow
async def wrong_for_sqlite() -> int:
    return await async_step()(1)


@workflow
async def wrong_for_postgres() -> int:
    return await plain_step()(1)


@pytest.mark.parametrize(
    ("called", "kind", "message"),
    [
        (wrong_for_sqlite, "sqlite", "make it a plain `def`"),
        (wrong_for_postgres, "postgres", "make it an `async def`"),
        (wrong_for_sqlite, "memory", "use a store on SQLite"),
        (wrong_for_postgres, "memory", "use a store on SQLite"),
    ],
)
async def test_a_step_that_does_not_fit_the_store_fails_at_once(
    called: Any, kind: str, message: str, request: pytest.FixtureRequest
) -> None:
    script = Script("none")
    url = "memory://" if kind == "memory" else await request.getfixturevalue(f"{kind}_world").fresh()
    async with Environment([called], url, resources={Script: lambda: script}) as env:
        with pytest.raises(RunFailed, match=message) as failed:
            await env.engine.run(called(), id="r")
        assert isinstance(failed.value.__cause__, Misuse)
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.attempts == 1
    assert script.begun == 0


def _work() -> None: ...


def test_a_transactional_step_has_no_process_of_its_own() -> None:
    with pytest.raises(InvalidDefinition, match="leave out process=True"):
        step(transactional=True, process=True)(_work)


async def test_other_steps_have_no_connection() -> None:
    @step(retry=Retry.never())
    async def ordinary() -> None:
        _ = current_step().connection

    @workflow
    async def asks() -> None:
        await ordinary()

    async with Environment([asks]) as env:
        with pytest.raises(RunFailed, match="make it transactional"):
            await env.engine.run(asks())


async def test_other_code_at_the_position_of_a_staged_result_sets_the_run_aside(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A process died with the result staged; the next one has other code."""
    url = await world.fresh()
    stores: list[Pausing] = []

    def pausing(store: Store) -> Store:
        stores.append(Pausing(store))
        return stores[-1]

    async with Environment(world.program.workflows, url, watch=pausing, **world.options) as env:
        await env.engine.start(world.program.one(7), id="r")
        await stores[0].committed.wait()
        env.kill()
    make = plain_step if world.kind == "sqlite" else async_step
    other = make(retry=QUICK).options(name="another")

    @workflow(name="one")
    async def changed(number: int) -> int:
        return await other(number)

    async with Environment([changed], url, **world.options) as env:
        await env.quiet()
        held = await env.engine.runs.get("r")
        assert held is not None
        assert held.hold is not None
        assert "step 'note' was done, the code asks for step 'another'" in held.hold.reason
    async with Environment(Program(make).workflows, url, **world.options) as env:
        await env.engine.handle("r").resume()
        assert await env.engine.handle("r").result() == 7
        await env.check()
    assert world.script.begun == 1
    assert await world.numbers(url) == [7]


async def test_a_busy_store_is_asked_again_and_that_is_no_attempt(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    url = await world.fresh()
    caplog.set_level(logging.ERROR, "perdure")
    fault = Fault("busy", 2, times=5)
    async with Environment(world.program.workflows, url, fault=fault, **world.options) as env:
        assert await env.engine.run(world.program.one(7), id="r") == 7
        (entry,) = (await env.engine.handle("r").history()).journal
        assert (entry.attempts, world.script.begun, fault.struck) == (1, 1, 5)
