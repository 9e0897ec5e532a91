"""The process dies before and after every commit, those of steps among them: each step has happened once."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import current_step, step, workflow
from perdure.errors import InvariantViolated, Misuse, RunFailed
from perdure.models.functions.context import CurrentStep
from perdure.storage import open_store
from perdure.testing import CRASH_POINTS, Environment, Fault, Point, assert_exactly_once, check_store, fresh_urls
from perdure.testing import run_with_crashes as survive
from tests.transactions.notes import World

# An engine takes many connections to die and to come up again, so there it does so at some points only.
ON_POSTGRES: tuple[Point, ...] = CRASH_POINTS if os.environ.get("PERDURE_SOAK") else ("before", "before_effects")


def scenario_of(call: Callable[[], Any], ids: Callable[[], str] = lambda: "r") -> Callable[[Environment], Any]:
    async def scenario(env: Environment) -> Any:
        run = await env.engine.start(call(), id=ids())
        try:
            return await run.result()
        except RunFailed as failed:
            return str(failed.__cause__)

    return scenario


async def happens_once(world: World, call: Callable[[], Any], expected: list[int]) -> int:
    """How many trials there were, after each of which exactly these numbers are in the table."""
    url = await world.fresh()
    trials = 0

    def store() -> str:
        nonlocal trials
        trials += 1
        return url

    async def after(_: object) -> None:
        assert await world.numbers(url) == expected
        assert await world.staged(url) == 0
        await world.ask(url, f"delete from {world.script.table}")

    scenario = scenario_of(call, lambda: f"r-{trials}")
    points = CRASH_POINTS if world.kind == "sqlite" else ON_POSTGRES
    report = await survive(
        scenario, workflows=world.program.workflows, store=store, after=after, points=points, **world.options
    )
    assert report.restarts > 0
    return report.trials


def not_at_first(me: CurrentStep) -> None:
    if me.attempt == 1:
        raise OSError("not at first")


async def test_steps_in_a_row(world: World) -> None:
    trials = await happens_once(world, lambda: world.program.several(2), [1, 2])
    # Its start, and two commits for each step.
    assert trials == 5 * len(CRASH_POINTS if world.kind == "sqlite" else ON_POSTGRES)


async def test_steps_at_once(world: World) -> None:
    await happens_once(world, lambda: world.program.together(2), [1, 2])


async def test_a_step_that_is_tried_again_after_an_hour(world: World) -> None:
    world.script.act = not_at_first
    await happens_once(world, lambda: world.program.slowly(7), [7])


async def test_a_step_and_its_compensation(world: World) -> None:
    await happens_once(world, lambda: world.program.undone(7), [-7, 7])


async def test_steps_of_a_run_that_continues(world: World) -> None:
    await happens_once(world, lambda: world.program.onward(2), [1, 2])


@pytest.mark.parametrize("point", ["unknown", "unknown_lost"])
async def test_a_timeout_while_the_outcome_is_unknown_waits_until_it_is_known(world: World, point: Point) -> None:
    """The step may have been committed: it must not be called failed before that is known."""
    url = await world.fresh()
    fault = Fault(point, 2, times=1_000_000)
    async with Environment(world.program.workflows, url, fault=fault, autojump_s=None, **world.options) as env:
        run = await env.engine.start(world.program.all_in_time(7), id="r")
        while fault.struck < 2:
            await asyncio.sleep(0)
        env.clock.move_to(env.clock.now() + 3_600_000_000)
        await asyncio.sleep(0)
        fault.times = 0
        if point == "unknown":
            assert await run.result() == 7
        else:
            with pytest.raises(RunFailed, match="did not finish within 60"):
                await run.result()
        await env.check()
    assert await world.numbers(url) == ([7] if point == "unknown" else [])


# ---------------------------------------------------------------------------------------------------------------------
# The same for users


@step(transactional=True)
def pay(amount: int) -> int:
    connection = current_step().connection
    connection.execute("create table if not exists payments (amount integer)")
    connection.execute("insert into payments values (?)", (amount,))
    return amount


@step
def pay_carelessly(url: str, amount: int) -> int:
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("create table if not exists payments (amount integer)")
        connection.execute("insert into payments values (?)", (amount,))
    return amount


@workflow
async def paying(amount: int) -> int:
    return await pay(amount)


@workflow
async def paying_carelessly(url: str, amount: int) -> int:
    return await pay_carelessly(url, amount)


def payments(url: str) -> int:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        found: int = connection.execute("select count(*) from payments").fetchone()[0]
        return found


async def count_payments(url: str) -> int:
    return payments(url)


@pytest.mark.parametrize("count", [payments, count_payments])
async def test_users_can_see_that_it_happens_once(quick_path: Path, count: Any) -> None:
    report = await assert_exactly_once(
        scenario_of(lambda: paying(5)),
        workflows=[paying],
        store=fresh_urls(f"sqlite:///{quick_path}/bank.db"),
        count=count,
    )
    assert report.result == 5
    assert report.commits == 3
    assert report.trials == 15


async def test_users_are_told_if_it_happens_twice(quick_path: Path) -> None:
    urls: list[str] = []
    fresh = fresh_urls(f"sqlite:///{quick_path}/bank.db")

    def store() -> str:
        urls.append(fresh())
        return urls[-1]

    with pytest.raises(AssertionError, match="it happened 2 times, not 1") as failed:
        await assert_exactly_once(
            scenario_of(lambda: paying_carelessly(urls[-1].removeprefix("sqlite:///"), 5)),
            workflows=[paying_carelessly],
            store=store,
            count=payments,
        )
    assert "with a fault" in "".join(failed.value.__notes__)


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("sqlite:///a/b.db", r"sqlite:///a/b-\w{12}-1\.db"),
        ("sqlite:////a.b/c", r"sqlite:////a\.b/c-\w{12}-1\.db"),
        ("postgresql://u@h/d", r"postgresql://u@h/d\?schema=test_\w{12}_1"),
        ("postgresql://u@h/d?lease=3", r"postgresql://u@h/d\?lease=3&schema=test_\w{12}_1"),
    ],
)
def test_fresh_urls_are_new_each_time(url: str, pattern: str) -> None:
    fresh = fresh_urls(url)
    assert re.fullmatch(pattern, first := fresh())
    assert first != fresh()
    assert first != fresh_urls(url)()


def test_there_are_no_fresh_urls_in_memory() -> None:
    with pytest.raises(Misuse, match="need a store on SQLite"):
        fresh_urls("memory://")


async def test_what_must_not_be_staged_is_found(world: World) -> None:
    url = await world.fresh()
    async with Environment(world.program.workflows, url, **world.options) as env:
        await env.engine.run(world.program.one(7), id="r")
    schema = "" if world.kind == "sqlite" else url.rpartition("schema=")[2] + "."
    columns = "run_id, position, name, claim, attempt, value, started_at, at"
    await world.ask(url, f"insert into {schema}staged ({columns}) values ('r', '1', 'note', 9, 1, '7', 1, 1)")
    store = open_store(url)
    await store.open()
    try:
        with pytest.raises(InvariantViolated) as wrong:
            await check_store(store)
    finally:
        await store.close()
    for part in ("has finished, but what ['note'] came to is staged", "and in its journal", "with the claim 9"):
        assert part in str(wrong.value)
