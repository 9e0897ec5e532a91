"""A parent that failed with a child which it had started: a retry by hand retries the child as well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Event,
    Limits,
    Retry,
    Workflow,
    current_step,
    receive,
    resource,
    run_of,
    sleep,
    start,
    step,
    workflow,
)
from perdure.errors import ChildFailed, ConcurrentModification, DeadlineExceeded, RunFailed, RunNotRetryable
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

Open = Callable[..., Environment]


class Bank:
    """What was asked of it, by idempotency key, and whether it answers."""

    def __init__(self) -> None:
        self.is_open = False
        self.asked: list[tuple[str, str]] = []


@step(retry=Retry.never())
async def ask(what: str) -> str:
    bank = resource(Bank)
    bank.asked.append((what, current_step().idempotency_key))
    if what != "balance" and not bank.is_open:
        raise ConnectionError("closed")
    return what


@workflow(name="kids.pays")
async def pays(what: str) -> str:
    await ask("balance")
    return await ask(what)


@workflow(name="kids.starts")
async def starts(detached: bool = False) -> str:
    return await (await start(pays("rent"), id="child", detached=detached)).result()


@workflow(name="kids.awaits")
async def awaits() -> str:
    return await pays("rent")


@workflow(name="kids.starts_several")
async def starts_several(count: int) -> list[str]:
    handles = [await start(pays(str(number))) for number in range(count)]
    return list(await asyncio.gather(*[handle.result() for handle in handles]))


@workflow(name="kids.starts_deep")
async def starts_deep() -> str:
    return await (await start(starts(), id="middle")).result()


@workflow(name="kids.accepts")
async def accepts() -> str:
    child = await start(pays("rent"), id="child")
    try:
        await child.result()
    except ChildFailed:
        return await ask("fee")
    return "paid"


@workflow(name="kids.looks_on")
async def looks_on() -> str:
    return str(await run_of("child").result())


@workflow(name="kids.leaves")
async def leaves() -> str:
    await start(pays("rent"), id="child")
    await start(pays("tip"), id="loose", detached=True)
    await sleep(1)
    return await ask("fee")


class Signed(Event, event_name="kids.signed"):
    by: str


@workflow(name="kids.signs")
async def signs() -> str:
    await ask("balance")
    return (await receive(Signed)).by


@workflow(name="kids.starts_signs")
async def starts_signs(depth: int) -> str:
    call = starts_signs(depth - 1) if depth else signs()
    return await (await start(call, id=f"child-{depth}")).result()


@workflow(name="kids.raises")
async def raises() -> str:
    """Fails by itself, though its child has failed before, and is not waited for any more."""
    child = await start(pays("rent"), id="child")
    await sleep(1)
    if not await ask_open():
        raise ValueError("closed")
    return await child.result()


@step(name="kids.ask_open")
async def ask_open() -> bool:
    return resource(Bank).is_open


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def opened(source: StoreSource, bank: Bank) -> Open:
    known: list[Workflow[Any, Any]] = [
        pays, starts, awaits, starts_several, starts_deep, accepts, leaves, looks_on,
        signs, starts_signs, raises,
    ]  # fmt: skip
    return lambda **options: Environment(known, source, resources={Bank: lambda: bank}, **options)


async def fails(env: Environment, call: Any, id: str = "r") -> None:
    with pytest.raises(RunFailed):
        await (await env.engine.start(call, id=id)).result()


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("live_runs_max", [1, 100])
async def test_a_started_child_goes_on_where_it_failed(
    opened: Open, bank: Bank, detached: bool, live_runs_max: int
) -> None:
    """What the child had done stays done, and what it does again has the key that it had."""
    async with opened(limits=Limits(live_runs_max=live_runs_max)) as env:
        await fails(env, starts(detached))
        with pytest.raises(RunFailed):
            await (await env.engine.handle("r").retry()).result()
        await env.restart()
        bank.is_open = True
        assert await (await env.engine.handle("r").retry()).result() == "rent"
        child = await env.engine.runs.get("child")
        assert child is not None
        assert (child.status, child.attempt) == ("succeeded", 3)
        assert bank.asked == [("balance", "child:1"), *[("rent", "child:2")] * 3]
        await env.check()


async def test_an_awaited_child_is_another_run_after_a_retry_with_keys_of_its_own(opened: Open, bank: Bank) -> None:
    """Other executions have other keys, whoever asked for them; all attempts of one have the same."""
    async with opened() as env:
        await fails(env, awaits())
        bank.is_open = True
        assert await (await env.engine.handle("r").retry()).result() == "rent"
        children = [run.id for run in (await env.engine.runs.list(workflow="kids.pays")).runs]
        assert len(children) == 2
        assert [what for what, _ in bank.asked] == ["balance", "rent"] * 2
        assert {key for _, key in bank.asked} == {f"{child}:{place}" for child in children for place in (1, 2)}
        await env.check()


async def test_all_that_failed_are_retried_and_theirs(opened: Open, bank: Bank) -> None:
    async with opened() as env:
        await fails(env, starts_several(3), "several")
        await fails(env, starts_deep(), "deep")
        bank.is_open = True
        assert await (await env.engine.handle("several").retry()).result() == ["0", "1", "2"]
        assert await (await env.engine.handle("deep").retry()).result() == "rent"
        assert (await env.engine.runs.list(status="failed")).runs == []
        await env.check()


async def test_two_who_retry_at_once_retry_once(opened: Open, bank: Bank) -> None:
    async with opened() as env:
        await fails(env, starts())
        bank.is_open = True
        answers = await asyncio.gather(*[env.engine.handle("r").retry() for _ in range(3)], return_exceptions=True)
        assert not any(isinstance(answer, ConcurrentModification) for answer in answers)
        assert await env.engine.handle("r").result() == "rent"
        assert bank.asked == [("balance", "child:1"), *[("rent", "child:2")] * 2]
        await env.check()


async def test_a_failure_that_the_parent_came_to_terms_with_stays(opened: Open, bank: Bank) -> None:
    async with opened() as env:
        await fails(env, accepts())
        bank.is_open = True
        with pytest.raises(RunNotRetryable, match="retry the parent"):
            await env.engine.handle("child").retry()
        assert await (await env.engine.handle("r").retry()).result() == "fee"
        child = await env.engine.runs.get("child")
        assert child is not None
        assert child.status == "failed"


async def test_a_child_that_nobody_awaits_is_retried_unless_it_is_detached(opened: Open, bank: Bank) -> None:
    async with opened() as env:
        await fails(env, leaves())
        await env.settle()
        bank.is_open = True
        assert await (await env.engine.handle("r").retry()).result() == "fee"
        await env.settle()
        assert [await env.engine.handle(id).status() for id in ("child", "loose")] == ["succeeded", "failed"]
        assert await (await env.engine.handle("loose").retry()).result() == "tip"
        await env.check()


async def test_a_retry_that_is_refused_retries_no_child(opened: Open, bank: Bank) -> None:
    async with opened() as env:
        await fails(env, starts())
        view = await env.engine.runs.get("r")
        assert view is not None
        with pytest.raises(ConcurrentModification):
            await env.engine.handle("r").retry(expected_version=view.version + 1)
        child = await env.engine.runs.get("child")
        assert child is not None
        assert (child.status, child.attempt) == ("failed", 1)


async def test_a_run_that_others_only_look_at_can_be_retried(opened: Open, bank: Bank) -> None:
    """A run that waits for another one, which it has not started, does not take the failure from its owner."""
    async with opened() as env:
        await fails(env, pays("rent"), "child")
        await fails(env, looks_on())
        bank.is_open = True
        assert await (await env.engine.handle("child").retry()).result() == "rent"
        assert await (await env.engine.handle("r").retry()).result() == "rent"
        await env.check()


@pytest.mark.parametrize("restarts", [False, True])
async def test_started_children_whose_time_was_up_with_their_parents_are_retried_with_it(
    opened: Open, bank: Bank, restarts: bool
) -> None:
    """A cancelled run cannot be retried: its parent would be handed that for ever."""
    async with opened() as env:
        run = await env.engine.start(starts_signs(1), id="r", deadline=timedelta(hours=1))
        if restarts:
            await env.quiet()
            await env.restart()
            run = env.engine.handle("r")
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        for id in ("child-1", "child-0"):
            child = await env.engine.runs.get(id)
            assert child is not None
            assert child.status == "failed"
            with pytest.raises(RunFailed) as failed:
                await env.engine.handle(id).result()
            assert isinstance(failed.value.__cause__, DeadlineExceeded)
        await env.engine.handle("r").retry()
        await env.quiet()
        await env.engine.send(Signed(by="ann"), to="child-0")
        assert await env.engine.handle("r").result() == "ann"
        assert bank.asked == [("balance", "child-0:1")]
        await env.check()


async def test_a_retried_family_has_as_much_time_as_before_and_ends_with_it(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(starts_signs(0), id="r", deadline=timedelta(hours=1))
        with pytest.raises(RunFailed):
            await run.result()
        began = env.clock.now()
        await env.engine.handle("r").retry()
        with pytest.raises(RunFailed, match="deadline"):
            await env.engine.handle("r").result()
        assert env.clock.now() - began == 3_600_000_000
        await env.settle()
        assert await env.engine.handle("child-0").status() == "failed"
        await env.check()


async def test_a_child_that_failed_is_retried_with_a_parent_whose_failure_belongs_to_no_entry(
    opened: Open, bank: Bank
) -> None:
    async with opened() as env:
        await fails(env, raises())
        bank.is_open = True
        with pytest.raises(RunFailed, match="closed"):  # Its own code has seen that the bank is closed.
            await (await env.engine.handle("r").retry()).result()
        assert await env.engine.handle("child").result() == "rent"
        await env.check()


async def test_a_retry_survives_a_crash_at_every_commit(fresh: Callable[[], StoreSource], bank: Bank) -> None:
    def store() -> StoreSource:
        bank.is_open = False
        return fresh()

    async def scenario(env: Environment) -> str:
        await env.engine.start(starts(), id="r")
        await env.settle()
        if await env.engine.handle("r").status() == "failed":
            bank.is_open = True
            await env.engine.handle("r").retry()
        result: str = await env.engine.handle("r").result()
        return result

    await run_with_crashes(scenario, workflows=[pays, starts], store=store, resources={Bank: lambda: bank})
    assert {key for what, key in bank.asked if what == "rent"} == {"child:2"}
