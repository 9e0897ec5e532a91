"""The tools for tests: virtual time, restarts, faults, and the checker of what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Retry, Workflow, current_step, resource, sleep, step, workflow
from perdure.cooperation import Operation, Topic
from perdure.errors import CommitRefused, EngineStopped, InvalidDefinition, InvariantViolated, Misuse, RunFailed
from perdure.kernel.rows import Engine, Wait
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import CRASH_POINTS, Environment, Fault, VirtualClock, check_store, run_with_crashes
from perdure.testing.environment import WatchedStore
from perdure.testing.proxy import StoreProxy

DAY = timedelta(days=1)


@step(retry=Retry.never())
async def work() -> str:
    return "worked"


@step(retry=Retry(attempts=3, initial=timedelta(milliseconds=500)))
async def work_at_last() -> int:
    if current_step().attempt < 3:
        raise OSError
    return current_step().attempt


@step(timeout=timedelta(hours=1), retry=Retry.never())
async def hang() -> None:
    await asyncio.Event().wait()


@step(retry=Retry.never())
async def take(days: int) -> int:
    await resource(VirtualClock).sleep(days * DAY)
    return days


@step(retry=Retry.never())
def work_in_a_thread() -> str:
    return "threaded"


@workflow
async def month() -> str:
    await sleep(30 * DAY)
    return await work()


@workflow
async def retrying() -> int:
    return await work_at_last()


@workflow
async def hanging() -> None:
    await hang()


@workflow
async def longest_of(days: list[int]) -> int:
    return max(await asyncio.gather(*[take(one) for one in days]))


@workflow
async def threaded() -> str:
    await sleep(DAY)
    return await work_in_a_thread()


@workflow
async def for_ever() -> None:
    while True:
        await sleep(1)


WORKFLOWS: list[Workflow[Any, Any]] = [month, retrying, hanging, longest_of, threaded, for_ever]


async def test_a_month_passes_at_once() -> None:
    async with Environment(WORKFLOWS) as env:
        before, cpu = env.clock.time, time.process_time()
        assert await env.engine.run(month()) == "worked"
        assert env.clock.time - before == 30 * DAY
        assert time.process_time() - cpu < 1


async def test_short_pauses_between_attempts_are_virtual_too() -> None:
    async with Environment(WORKFLOWS) as env:
        before = env.clock.time
        assert await env.engine.run(retrying()) == 3
        assert timedelta(seconds=1.4) < env.clock.time - before < timedelta(seconds=1.6)


async def test_a_step_that_hangs_runs_into_its_timeout() -> None:
    async with Environment(WORKFLOWS, autojump_s=0.001) as env:
        before = env.clock.time
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(hanging())
        assert isinstance(failed.value.__cause__, TimeoutError)
        assert env.clock.time - before == timedelta(hours=1)


async def test_steps_can_take_virtual_time() -> None:
    async with Environment(WORKFLOWS) as env:
        before = env.clock.time
        assert await env.engine.run(longest_of([3, 1, 2])) == 3
        assert env.clock.time - before == 3 * DAY
        journal = (await env.engine.handle((await env.engine.runs.list()).runs[0].id).history()).journal
        assert [entry.value for entry in journal] == [1, 2, 3]


async def test_steps_in_threads_are_waited_for() -> None:
    async with Environment(WORKFLOWS) as env:
        assert await env.engine.run(threaded()) == "threaded"


async def test_time_stands_still_while_the_test_itself_acts() -> None:
    async with Environment(WORKFLOWS) as env:
        run = await env.engine.start(month())
        for _ in range(3):
            assert await run.status() in ("running", "suspended")
        assert await env.engine.handle(run.id).cancel()
        await env.settle()
        assert await run.status() == "cancelled"
        assert env.clock.time == VirtualClock().time  # Nobody waits for the end of the month any more.


async def test_without_autojump_time_passes_only_when_told() -> None:
    async with Environment(WORKFLOWS, autojump_s=None) as env:
        run = await env.engine.start(month())
        await env.settle()
        assert await run.status() == "suspended"
        await env.advance(29 * DAY)
        assert await run.status() == "suspended"
        await env.advance(DAY)
        assert await run.status() == "succeeded"
        assert env.clock.time == VirtualClock().time + 30 * DAY


async def test_advance_stops_at_every_timer_on_the_way() -> None:
    async with Environment(WORKFLOWS, autojump_s=None) as env:
        run = await env.engine.start(for_ever(), id="r")
        await env.advance(10.5)
        at = [entry.at - VirtualClock().time for entry in (await env.engine.handle("r").history()).journal]
        assert at == [timedelta(seconds=second) for second in range(1, 11)]
        await run.cancel()


async def test_what_never_comes_to_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.testing.clock._JUMPS_MAX", 20)
    async with Environment(WORKFLOWS) as env:
        await env.engine.start(for_ever())
        with pytest.raises(Misuse, match="jumps of the clock"):
            await env.settle()


async def test_time_never_goes_back() -> None:
    async with Environment(WORKFLOWS) as env:
        with pytest.raises(Misuse):
            await env.advance(-1)
        with pytest.raises(Misuse):
            env.clock.move_to(0)


async def test_a_restart_takes_no_virtual_time_and_the_run_goes_on() -> None:
    async with Environment(WORKFLOWS) as env:
        run = await env.engine.start(month(), id="r")
        await env.quiet()
        before, old = env.clock.time, env.engine
        await env.restart()
        assert env.clock.time == before
        assert env.engine is not old
        with pytest.raises(EngineStopped):
            await run.result()  # Its engine is gone.
        assert await env.engine.handle("r").result() == "worked"
        assert await env.check() == 1


async def test_callbacks_fire_in_order_and_a_cancelled_one_does_not() -> None:
    clock, fired = VirtualClock(), list[str]()
    start = clock.now()
    clock.call_at(start + 2, lambda: fired.append("late"))
    clock.call_at(start + 1, lambda: fired.append("first"))
    clock.call_at(start + 1, lambda: fired.append("second"))
    clock.call_at(start - 5, lambda: fired.append("overdue"))
    gone = clock.call_at(start + 1, lambda: fired.append("never"))
    gone.cancel()
    gone.cancel()
    await asyncio.sleep(0)
    assert fired == ["overdue"]
    clock.move_to(start + 1)
    await asyncio.sleep(0)
    assert fired == ["overdue", "first", "second"]
    assert clock.next_at == start + 2


# ---------------------------------------------------------------------------------------------------------------------
# Faults


async def test_a_scenario_is_killed_at_every_commit() -> None:
    async def scenario(env: Environment) -> str:
        return await (await env.engine.start(month(), id="r")).result()

    report = await run_with_crashes(scenario, workflows=WORKFLOWS)
    assert report.result == "worked"
    assert report.trials == report.commits * len(CRASH_POINTS)
    assert report.restarts == report.commits * 3


async def test_a_scenario_that_a_crash_changes_is_reported_with_the_commit() -> None:
    async def careless(env: Environment) -> int:
        await (await env.engine.start(month())).result()  # Without an id it starts another one.
        return len((await env.engine.runs.list()).runs)

    with pytest.raises(AssertionError, match="the result is 2 instead of 1") as wrong:
        await run_with_crashes(careless, workflows=WORKFLOWS)
    assert wrong.value.__notes__ == ["with a fault 'before_effects' at commit 1 of 4"]


async def test_a_busy_store_and_a_refusal() -> None:
    busy = Fault("busy", 2, times=3)
    async with Environment(WORKFLOWS, fault=busy) as env:
        assert await env.engine.run(month()) == "worked"
        assert env.engine.engines.stats.resends == busy.struck == 3
    async with Environment(WORKFLOWS, fault=Fault("refuse", when=lambda batch: "bad" in batch.runs)) as env:
        with pytest.raises(CommitRefused):
            await env.engine.start(month(), id="bad")
        assert await env.engine.run(month(), id="good") == "worked"


def test_a_fault_drawn_by_lot_is_the_same_for_the_same_seed() -> None:
    one, other = Fault.random(7), Fault.random(7)
    assert (one.point, one.commit) == (other.point, other.commit)
    with pytest.raises(Misuse, match="no fault 'sometimes'"):
        Fault("sometimes")  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# What must never be stored


def lose_an_entry(database: MemoryDatabase) -> None:
    del database.journal["r"][1]


def lose_an_audit_row(database: MemoryDatabase) -> None:
    del database.audit["r"][2]


def change_the_status(database: MemoryDatabase) -> None:
    stored = database.runs["r"]
    database.runs["r"] = replace(stored, run=replace(stored.run, status="failed"))


def keep_an_owner(database: MemoryDatabase) -> None:
    stored = database.runs["r"]
    database.runs["r"] = replace(stored, run=replace(stored.run, owner="e"))


def keep_a_wait(database: MemoryDatabase) -> None:
    database.tables.waits["r"] = {"1": {0: Wait(run_id="r", position="1", kind="timer", name="sleep", due_at=1)}}


def repeat_a_position(database: MemoryDatabase) -> None:
    database.journal["r"][2] = replace(database.journal["r"][2], position=database.journal["r"][1].position)


def skip_a_transition(database: MemoryDatabase) -> None:
    database.audit["r"][2] = replace(database.audit["r"][2], became="created")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose_an_entry, "not 1 to 1 in order"),
        (lose_an_audit_row, "not 1 to 4 in order"),
        (change_the_status, "is failed at version 4, but succeeded"),
        (keep_an_owner, "has owner e"),
        (keep_a_wait, "has finished, but waits"),
        (repeat_a_position, "several entries for one position"),
        (skip_a_transition, "cannot go from running to created"),
    ],
)
async def test_the_checker_finds_what_is_wrong(harm: Callable[[MemoryDatabase], None], message: str) -> None:
    database = MemoryDatabase()
    async with Environment(WORKFLOWS, lambda: MemoryStore(database)) as env:
        await env.engine.run(month(), id="r")
        assert await env.check() == 1
    harm(database)
    store = MemoryStore(database)
    await store.open()
    with pytest.raises(InvariantViolated, match=message):
        await check_store(store)


async def test_a_suspended_run_that_waits_for_nothing_is_found() -> None:
    database = MemoryDatabase()
    async with Environment(WORKFLOWS, lambda: MemoryStore(database), autojump_s=None) as env:
        await env.engine.start(month(), id="r")
        await env.settle()
        assert await env.check() == 1
        database.tables.waits.clear()
        with pytest.raises(InvariantViolated, match="waits for nothing"):
            await env.check()
        database.tables.waits["r"] = {"9": {0: Wait(run_id="r", position="9", kind="beat", name="a step that runs")}}
        with pytest.raises(InvariantViolated, match="waits for nothing"):
            await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# The store that is watched


class SlowStore(StoreProxy):
    """Says which engines there are once for each time that it is told to."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.turns = asyncio.Semaphore(0)

    async def engines(self, *, living: bool = False) -> list[Engine]:
        await self.turns.acquire()
        return await super().engines(living=living)


async def test_a_watched_store_is_idle_when_all_that_it_was_asked_is_answered() -> None:
    slow = SlowStore()
    store = WatchedStore(slow, ended=lambda: None)
    await store.open()
    await store.idle()
    asked = [asyncio.ensure_future(store.engines()) for _ in range(2)]
    await asyncio.sleep(0)
    idle = asyncio.ensure_future(store.idle())
    slow.turns.release()
    await asked[0]
    assert store.in_flight == 1
    assert not idle.done()
    slow.turns.release()
    await asked[1]
    await idle
    await store.close()


async def test_a_watched_store_is_idle_when_who_asked_has_gone() -> None:
    store = WatchedStore(SlowStore(), ended=lambda: None)
    asked = asyncio.ensure_future(store.engines())
    await asyncio.sleep(0)
    idle = asyncio.ensure_future(store.idle())
    await asyncio.sleep(0)
    assert not idle.done()
    asked.cancel()
    await idle


class SlowToRead(MemoryStore):
    """Reading takes so many turns of the loop that an idle environment would move the clock."""

    async def audit(self, run_id: str) -> list[Any]:
        for _ in range(1_000):
            await asyncio.sleep(0)
        return [*await super().audit(run_id)]


async def test_no_time_passes_while_what_is_stored_is_checked() -> None:
    database = MemoryDatabase()
    async with Environment([month], lambda: SlowToRead(database)) as env:
        await env.engine.start(month(), id="r-1")
        await env.quiet()
        before = env.clock.now()
        assert await env.check() == 1
        assert env.clock.now() == before
        await env.settle()
        assert await env.engine.handle("r-1").result() == "worked"


async def test_an_engine_that_cannot_be_opened_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidDefinition, match="has no steps"):
        async with Environment([Operation("place", Topic("orders", dict[str, Any]))]):
            pass
    for _ in range(50):
        await asyncio.sleep(0)
    assert not caplog.records
