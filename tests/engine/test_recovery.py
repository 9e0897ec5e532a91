"""Engines come and go, properly or not: what they leave is gone on with, by one engine at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Delivered, Engine, NamedEvent, Retry, current_step, receive, resource, sleep, step, workflow
from perdure.coordinator.recovery import _groups
from perdure.errors import EngineStopped
from perdure.kernel import ops
from perdure.ports import LoadedRun, Offer, Store
from perdure.runtime import Runtime
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment, YieldPoints
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from tests.engine.world import World, environment, hanging, steps, waiting
from tests.kernel.examples import a_run


class Gate:
    """Steps that wait for it, and how many of them began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.waits = asyncio.Event()
        self.open = asyncio.Event()


@step(retry=Retry.never())
async def pass_gate(name: str) -> str:
    gate = resource(Gate)
    gate.begun.append(name)
    gate.waits.set()
    await gate.open.wait()
    return name


@workflow
async def two_gates(name: str) -> list[str]:
    return [await pass_gate(f"{name}1"), await pass_gate(f"{name}2")]


# Shutting down.


async def test_a_graceful_shutdown_lets_steps_end_and_starts_nothing_new(source: StoreSource) -> None:
    gate = Gate()
    async with Environment([two_gates], source, autojump_s=None, resources={Gate: lambda: gate}) as env:
        await env.engine.start(two_gates("a"), id="r-1")
        await gate.waits.wait()
        shutdown = asyncio.ensure_future(env.engine.shutdown(grace=30))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped):
            await env.engine.start(two_gates("b"))
        gate.open.set()
        await shutdown
        assert gate.begun == ["a1"]
        env.kill()
        await env.restart()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert view.recoveries == 0  # It was released, not orphaned.
        assert await env.engine.handle("r-1").result() == ["a1", "a2"]
        assert gate.begun == ["a1", "a2"]
        assert await env.check() == 1


async def test_a_step_that_outlasts_the_grace_period_runs_again(source: StoreSource) -> None:
    gate = Gate()
    async with Environment([two_gates], source, autojump_s=None, resources={Gate: lambda: gate}) as env:
        await env.engine.start(two_gates("a"), id="r-1")
        await gate.waits.wait()
        await env.engine.shutdown(grace=timedelta(0))
        await env.engine.shutdown()
        env.kill()
        gate.open.set()
        await env.restart()
        assert await env.engine.handle("r-1").result() == ["a1", "a2"]
        assert gate.begun == ["a1", "a1", "a2"]


async def test_whoever_waits_is_told_of_the_shutdown(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(waiting())
        result = asyncio.ensure_future(run.result())
        await env.quiet()
        await env.engine.shutdown()
        with pytest.raises(EngineStopped, match="goes on when an engine has it again"):
            await result
        with pytest.raises(EngineStopped):
            await run.result()
        env.kill()


# Crashes.


async def test_a_killed_engine_leaves_a_store_from_which_all_goes_on(source: StoreSource) -> None:
    world = World()
    async with environment(source, world) as env:
        await env.engine.start(steps("a", "b"), id="finished")
        await env.engine.handle("finished").result()
        await env.engine.start(waiting(), id="asleep")
        await env.engine.start(hanging(), id="busy")
        await env.advance(0)
        env.kill()
        await env.restart()
        report = await env.engine.recover()
        assert report.total == 0  # Opening has done it already.
        await env.advance(timedelta(days=1))
        assert await env.engine.handle("asleep").result() == "waited"
        busy = await env.engine.runs.get("busy")
        assert busy is not None
        assert (busy.status, busy.recoveries) == ("running", 1)
        assert world.calls == ["a", "b", "before"]
        assert await env.check() == 3


async def test_a_recovery_says_what_it_found(source: StoreSource) -> None:
    async with environment(source) as env:
        for number in range(3):
            await env.engine.start(hanging(), id=f"busy-{number}")
        await env.engine.start(waiting(), id="asleep")
        await env.advance(0)
        await env.advance(timedelta(days=1, minutes=-5))
        await env.engine.start(waiting(), id="fast-asleep")  # It goes on much later, so nobody looks at it now.
        await env.advance(0)
        env.kill()
        reports = []
        original = Runtime.recover

        async def recover(runtime: Runtime) -> Any:
            reports.append(await original(runtime))
            return reports[-1]

        Runtime.recover = recover  # type: ignore[method-assign, assignment]
        try:
            await env.restart()
        finally:
            Runtime.recover = original  # type: ignore[method-assign]
        (report,) = reports
        assert (report.engines_marked_dead, report.resumed, report.waiting, report.held) == (1, 3, 1, 0)
        assert report.total == 4


async def test_a_created_run_is_claimed(source: StoreSource) -> None:
    async with environment(source) as env:
        op = ops.Start(run_id="r-1", at=env.clock.now(), workflow="steps", input='{"names":["a"]}', admit=False)
        await env.engine.session.coordinator.submit(op)
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.status, view.started_at) == ("created", None)
        await env.advance(60)
        assert (await env.engine.recover()).resumed == 1
        assert await env.engine.handle("r-1").result() == ["A"]
        history = await env.engine.handle("r-1").history()
        assert [row.became for row in history.audit] == ["created", "running", "succeeded"]


class SlowClaim(StoreProxy):
    """Its claims are done, and answered once the gate is open."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_done = asyncio.Event()

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        claimed = await super().claim(engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)
        self.is_done.set()
        await self.gate.wait()
        return claimed


async def test_a_recovery_that_is_cancelled_loses_nothing_that_it_has_claimed(
    source: StoreSource, make_store: Callable[[], Store]
) -> None:
    """Nobody else can claim it, and this engine must not forget that it has."""
    store = SlowClaim(make_store())
    async with Engine(store, workflows=[steps], poll_s=None, resources={World: World}) as engine:
        op = ops.Start(run_id="r-1", at=1, workflow="steps", input='{"names":["a"]}', admit=False)
        await engine.session.coordinator.submit(op)
        store.gate.clear()
        store.is_done.clear()
        recovering = asyncio.ensure_future(engine.recover())
        await store.is_done.wait()
        recovering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recovering
        store.gate.set()
        await engine.recover()
        assert await engine.handle("r-1").result() == ["A"]


async def test_a_run_whose_workflow_is_not_here_is_left_to_others(source: StoreSource) -> None:
    async with Environment([waiting], source, autojump_s=None) as env:
        await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        env.kill()
    async with Environment([steps], source, autojump_s=None) as env:
        assert (await env.engine.recover()).total == 0
        assert await env.engine.handle("r-1").status() == "suspended"


async def test_a_run_of_a_dead_engine_can_be_cancelled_without_its_workflow(source: StoreSource) -> None:
    async with Environment([waiting], source, autojump_s=None) as env:
        await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        env.kill()
    async with Environment([steps], source, autojump_s=None) as env:
        assert await env.engine.handle("r-1").cancel()


async def test_a_run_of_a_dead_engine_is_sent_something_and_woken_in_one_batch(source: StoreSource) -> None:
    async with Environment([waiting], source, autojump_s=None) as env:
        await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        env.kill()
    points = YieldPoints()
    async with Environment([waiting], source, autojump_s=None, probe=points) as env:
        commits = env.engine.engines.stats.commits
        with points.hold("batch.take") as held:
            sending = asyncio.ensure_future(env.engine.send(NamedEvent("news"), to="r-1"))
            await held.reached()
            env.engine.session.coordinator.enqueue(ops.Wake(run_id="r-1", at=env.clock.now()))
        await sending
        await env.quiet()
        assert env.engine.engines.stats.commits == commits + 1
        assert env.engine.session.coordinator.loaded("r-1") is not None


@workflow
async def hears_meanwhile() -> list[Any]:
    return list(await asyncio.gather(receive("news"), pass_gate("meanwhile")))


async def test_a_run_that_wins_an_event_just_before_it_is_taken_up_waits_for_that() -> None:
    gate, points, database = Gate(), YieldPoints(), MemoryDatabase()
    options: dict[str, Any] = {"autojump_s": None, "resources": {Gate: lambda: gate}}

    def store() -> MemoryStore:
        return MemoryStore(database)

    async with (
        Environment([hears_meanwhile], store, **options) as dying,
        Environment([hears_meanwhile], store, probe=points, **options) as env,
    ):
        await dying.engine.start(hears_meanwhile(), id="r-1")
        await gate.waits.wait()
        dying.kill()
        with points.hold("take.before_commit") as taking:
            with points.hold("send.before_commit") as held:
                sending = asyncio.ensure_future(env.engine.send(NamedEvent("news", 1)))
                await held.reached()
                recovering = asyncio.ensure_future(env.engine.recover())
                while env.engine.session.coordinator.loaded("r-1") is None:
                    await asyncio.sleep(0)
            await taking.reached()
            for _ in range(50):
                await asyncio.sleep(0)
            assert gate.begun == ["meanwhile"]  # It is not there yet.
        gate.open.set()
        assert await sending == Delivered(("r-1",))
        await recovering
        assert await env.engine.handle("r-1").result() == [1, "meanwhile"]
        assert gate.begun == ["meanwhile", "meanwhile"]


# Runs that kill their process.


@step
async def kill(name: str) -> str:
    if name in resource(World).broken:
        resource(World).calls.append(name)
        resource(Death).set()
        await asyncio.Event().wait()
    return name


class Death(asyncio.Event):
    """The process dies when this is set."""


@workflow
async def deadly(name: str) -> str:
    return await kill(name)


@workflow
async def long_step(name: str) -> str:
    return await pass_gate(name)


async def die_often(source: StoreSource, *, culprit_first: bool) -> None:
    world, death, gate = World(), Death(), Gate()
    world.broken.add("culprit")
    resources = {World: lambda: world, Death: lambda: death, Gate: lambda: gate}
    async with Environment([deadly, long_step], source, autojump_s=0.001, resources=resources) as env:

        async def start() -> None:
            for number in range(3):
                await env.engine.start(long_step(f"b{number}"), id=f"bystander-{number}")

        if not culprit_first:
            await start()
        await env.engine.start(deadly("culprit"), id="culprit")
        if culprit_first:
            await start()
        for _ in range(20):
            dying = asyncio.ensure_future(death.wait())
            held = asyncio.ensure_future(until_held(env, "culprit"))
            await asyncio.wait({dying, held}, return_when=asyncio.FIRST_COMPLETED)
            is_held = held.done()
            for task in (dying, held):
                task.cancel()
            if is_held:
                break
            death.clear()
            await env.restart()
        assert len(world.calls) == 6
        view = await env.engine.runs.get("culprit")
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, view.status) == ("poison", "running")
        assert "died 6 times in a row" in view.hold.reason
        assert [run.id for run in (await env.engine.runs.list(hold="poison")).runs] == ["culprit"]

        gate.open.set()
        for number in range(3):
            assert await env.engine.handle(f"bystander-{number}").result() == f"b{number}"
        world.broken.clear()
        assert await env.engine.handle("culprit").resume()
        assert await env.engine.handle("culprit").result() == "culprit"
        await env.check()


async def until_held(env: Environment, run_id: str) -> None:
    while True:
        view = await env.engine.runs.get(run_id)
        if view is not None and view.hold is not None:
            return
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("culprit_first", [True, False])
async def test_a_run_that_keeps_killing_its_process_is_held_and_nobody_else(culprit_first: bool) -> None:
    database = MemoryDatabase()
    await die_often(lambda: MemoryStore(database), culprit_first=culprit_first)


async def test_poison_is_held_in_sqlite_too(tmp_path: Path) -> None:
    await die_often(f"sqlite:///{tmp_path / 'runs.db'}", culprit_first=False)


@given(st.integers(1, 40), st.data())
def test_wherever_the_culprit_stands_nobody_is_blamed_as_often(count: int, data: st.DataObject) -> None:
    """All of them are at long steps, at the same moment, and look alike but for what kills the process."""
    culprit = f"r-{data.draw(st.integers(0, count - 1))}"
    blamed = {f"r-{number}": 2 for number in range(count)}
    deaths = 0
    while blamed[culprit] < 5:
        deaths += 1
        suspects = [LoadedRun(run=a_run(id=run_id, recoveries=times)) for run_id, times in blamed.items()]
        for group in _groups(data.draw(st.permutations(suspects))):
            for one in group:
                blamed[one.run.id] += 1
            if culprit in [one.run.id for one in group]:
                break
    assert deaths == 3
    assert [run_id for run_id, times in blamed.items() if times >= 5] == [culprit]


# Several engines on one store.


async def test_two_engines_do_not_take_each_others_runs(source: StoreSource) -> None:
    calls: list[str] = []

    @step
    async def note() -> str:
        calls.append(current_step().run_id)
        return "noted"

    @workflow
    async def flow() -> str:
        await sleep(60)
        return await note()

    async with (
        Environment([flow], source, autojump_s=None, poll_s=600.0) as one,
        Environment([flow], source, clock=one.clock, autojump_s=None, poll_s=600.0) as two,
    ):
        first = await one.engine.start(flow(), id="first")
        await two.engine.start(flow(), id="second")
        await one.quiet()
        await two.quiet()
        assert (await one.engine.recover()).total == (await two.engine.recover()).total == 0
        owners = {run.id: run.owner for run in (await one.engine.runs.list()).runs}
        assert len(set(owners.values())) == 2
        assert (await two.engine.handle("first").update(tags={"asked": "elsewhere"})).tags == {"asked": "elsewhere"}
        two.kill()
        report = await one.engine.recover()
        assert (report.engines_marked_dead, report.waiting) == (1, 1)
        one.clock.move_to(one.clock.now() + 60_000_000)
        assert await first.result() == "noted"
        assert await one.engine.handle("second").result() == "noted"
        assert sorted(calls) == ["first", "second"]


async def test_a_result_can_be_awaited_on_an_engine_that_does_not_have_the_run(source: StoreSource) -> None:
    gate = Gate()
    resources = {Gate: lambda: gate}
    async with (
        Environment([long_step], source, autojump_s=None, resources=resources) as one,
        Environment([long_step], source, autojump_s=None, resources=resources) as two,
    ):
        await one.engine.start(long_step("x"), id="r-1")
        await gate.waits.wait()
        elsewhere = asyncio.ensure_future(two.engine.handle("r-1").result())
        here = asyncio.ensure_future(one.engine.handle("r-1").result())
        await one.engine.handle("r-1").pause()
        gate.open.set()
        assert await two.engine.handle("r-1").resume()
        # Whoever began to wait where the run was before is not forgotten.
        assert [await here, await elsewhere] == ["x", "x"]


async def test_what_a_graceful_stop_releases_another_engine_takes(source: StoreSource) -> None:
    async with environment(source) as one:
        await one.engine.start(waiting(), id="r-1")
        await one.quiet()
        async with environment(source, clock=one.clock) as two:
            await one.engine.shutdown()
            report = await two.engine.recover()
            assert (report.engines_marked_dead, report.waiting) == (0, 0)  # Its time is far.
            await two.advance(timedelta(days=1))
            assert await two.engine.handle("r-1").result() == "waited"
        one.kill()
