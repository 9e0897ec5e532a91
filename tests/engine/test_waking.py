"""Overdue runs that nobody has in memory: each is read once, goes on before it is claimed, and is written once.
Whatever happens to it between the read and the commit counts as if it had never run ahead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from perdure import Client, Engine, Event, Workflow, receive, resource, sleep, step, workflow
from perdure.engine import AnyClient
from perdure.errors import StoreBusy
from perdure.kernel.batch import Batch, Committed
from perdure.models.functions import unclaimed_runs
from perdure.models.functions.replay import replay
from perdure.models.functions.runner import LiveRun
from perdure.ports import Journal, LoadedRun, Store
from perdure.testing import CRASH_POINTS, Environment, Fault
from perdure.testing.faults import Point
from perdure.testing.proxy import StoreProxy
from perdure.views import RunView

HOUR = timedelta(hours=1)


class Ring(Event, event_name="waking.ring", on_target_terminated="dead_letter"):
    """What a run may wait for once it has slept."""


class Seen:
    """What steps have done."""

    def __init__(self) -> None:
        self.steps: list[str] = []


@step
async def note(what: str) -> str:
    resource(Seen).steps.append(what)
    return what


@workflow(name="waking.sleeper")
async def sleeper() -> str:
    await sleep(HOUR)
    return "slept"


@workflow(name="waking.early_riser")
async def early_riser() -> str:
    await sleep(HOUR)
    return await note("up")


@workflow(name="waking.listener")
async def listener() -> str:
    await sleep(HOUR)
    await receive(Ring)
    return "heard"


@workflow(name="waking.several")
async def several() -> list[str]:
    """Three sleeps at once, two of which are overdue when the run is woken, and one after all of them."""
    order: list[str] = []

    async def one(name: str, hours: float) -> None:
        await sleep(timedelta(hours=hours))
        order.append(name)

    await asyncio.gather(one("third", 30), one("second", 1.5), one("first", 1))
    await sleep(HOUR)
    return order


@workflow(name="waking.failing")
async def failing() -> str:
    await sleep(HOUR)
    raise ValueError("overslept")


WORKFLOWS: list[Workflow[Any, Any]] = [sleeper, early_riser, listener, several, failing]


class Meddled(StoreProxy):
    """A store in which something happens right after runs were read to be woken; counts reads and rows of runs."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counted: Counter[str] = Counter()
        self.meddle: Callable[[], Awaitable[object]] | None = None

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        self.counted["reads"] += 1
        return await self.inner.load(ids)

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        self.counted["reads"] += 1
        return await self.inner.journals(ids)

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        self.counted["reads"] += 1
        found = await self.inner.load_whole(ids)
        if self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            await meddle()
        return found

    async def commit(self, batch: Batch) -> Committed:
        committed = await self.inner.commit(batch)
        self.counted["commits"] += 1
        self.counted["rows"] += len(batch.runs)
        return committed


class World:
    """An engine that left runs asleep and died; the next one finds them overdue."""

    def __init__(self, make_store: Callable[[], Store], **options: Any) -> None:
        self.make_store = make_store
        self.seen = Seen()
        self.store: Meddled
        self._meddle: Callable[[], Awaitable[object]] | None = None
        resources = {Seen: lambda: self.seen}
        self.env = Environment(
            WORKFLOWS, make_store, watch=self._watch, autojump_s=None, resources=resources, **options
        )

    def _watch(self, store: Store) -> Meddled:
        self.store = Meddled(store)
        self.store.meddle, self._meddle = self._meddle, None
        return self.store

    async def leave(self, *calls: Any) -> list[str]:
        ids = [f"r-{number}" for number, _ in enumerate(calls)]
        for id, call in zip(ids, calls, strict=True):
            await self.env.engine.start(call, id=id)
        await self.env.quiet()
        self.env.kill()
        self.env.clock.move_to(self.env.clock.now() + 2 * 3_600_000_000)
        return ids

    @asynccontextmanager
    async def woken(self, meddle: Callable[[], Awaitable[object]] | None = None) -> AsyncIterator[Engine]:
        """The next engine, once all is quiet. `meddle` is called after the first read of those to be woken."""
        self._meddle = meddle
        await self.env.restart()
        await self.env.quiet()
        assert self.store.meddle is None, "nobody was read to be woken"
        yield self.env.engine

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AnyClient]:
        async with Client(self.make_store(), clock=self.env.clock, poll_s=None) as client:
            yield client


async def view(engine: AnyClient, id: str) -> RunView:
    found = await engine.runs.get(id)
    assert found is not None
    return found


async def timers_fired(engine: AnyClient, id: str) -> int:
    return sum(entry.kind == "timer" for entry in (await engine.handle(id).history()).journal)


async def test_many_overdue_sleepers_are_read_and_written_once(make_store: Callable[[], Store]) -> None:
    world = World(make_store)
    async with world.env:
        ids = await world.leave(*[sleeper() for _ in range(50)])
        async with world.woken() as engine:
            assert [await engine.handle(id).result() for id in ids] == ["slept"] * 50
            assert world.store.counted["reads"] == 1
            assert world.store.counted["rows"] == 50
            assert {await timers_fired(engine, id) for id in ids} == {1}
            await world.env.check()


async def test_what_a_run_does_after_its_sleep_begins_once_it_is_claimed(make_store: Callable[[], Store]) -> None:
    world = World(make_store)
    async with world.env:
        await world.leave(early_riser(), failing(), listener())
        seen: list[list[str]] = []

        async def look() -> None:
            seen.append([*world.seen.steps])

        async with world.woken(look) as engine:
            assert seen == [[]]
            assert await engine.handle("r-0").result() == "up"
            assert world.seen.steps == ["up"]
            assert (await view(engine, "r-1")).status == "failed"
            await engine.send(Ring(), to="r-2")
            assert await engine.handle("r-2").result() == "heard"
            await world.env.check()


async def test_code_that_runs_ahead_runs_in_no_task_of_the_process(
    make_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    def watched(live: LiveRun, *args: Any, **options: Any) -> Any:
        tasks.append(asyncio.current_task())
        return replay(live, *args, **options)

    monkeypatch.setattr(unclaimed_runs, "replay", watched)
    world = World(make_store)
    async with world.env:
        await world.leave(sleeper(), listener())
        async with world.woken() as engine:
            assert await engine.handle("r-0").result() == "slept"
            assert tasks
            assert not any(tasks)


async def test_timers_of_one_run_fire_one_after_the_other(make_store: Callable[[], Store]) -> None:
    world = World(make_store)
    async with world.env:
        await world.leave(several())
        async with world.woken() as engine:
            assert await timers_fired(engine, "r-0") == 2
            await world.env.advance(timedelta(hours=40))
            assert await engine.handle("r-0").result() == ["first", "second", "third"]
            assert await timers_fired(engine, "r-0") == 4
            await world.env.check()


@pytest.mark.parametrize("call", [sleeper, early_riser], ids=["that ends", "that goes on"])
@pytest.mark.parametrize("change", ["cancel", "pause", "tag"])
async def test_a_run_that_changes_between_the_read_and_the_commit_goes_on_from_what_it_is(
    change: str, call: Workflow[[], str], make_store: Callable[[], Store]
) -> None:
    world = World(make_store)
    async with world.env:
        await world.leave(call(), sleeper())

        async def meddle() -> None:
            async with world.client() as client:
                if change == "cancel":
                    assert await client.handle("r-0").cancel()
                elif change == "pause":
                    await client.handle("r-0").pause()
                else:
                    await client.handle("r-0").update(tags={"tenant": "acme"})

        async with world.woken(meddle) as engine:
            assert await engine.handle("r-1").result() == "slept"
            found = await view(engine, "r-0")
            if change == "cancel":
                assert found.status == "cancelled"
                assert await timers_fired(engine, "r-0") == 0
            elif change == "pause":
                assert (found.status, found.hold and found.hold.kind) == ("suspended", "paused")
                assert await timers_fired(engine, "r-0") == 0
                assert world.seen.steps == []
                await engine.handle("r-0").resume()
                await engine.handle("r-0").result()
                assert await timers_fired(engine, "r-0") == 1
            else:
                assert (found.status, found.tags) == ("succeeded", {"tenant": "acme"})
                assert await timers_fired(engine, "r-0") == 1
            assert len(world.seen.steps) == (call is early_riser and change != "cancel")
            await world.env.check()


@pytest.mark.parametrize("call", [sleeper, early_riser, listener])
async def test_an_event_that_comes_between_the_read_and_the_commit_is_not_lost(
    call: Workflow[[], str], make_store: Callable[[], Store]
) -> None:
    world = World(make_store)
    async with world.env:
        await world.leave(call())

        async def meddle() -> None:
            async with world.client() as client:
                await client.send(Ring(), to="r-0")

        async with world.woken(meddle) as engine:
            assert await engine.handle("r-0").result() == {sleeper: "slept", early_riser: "up", listener: "heard"}[call]
            assert not await engine.events.pending(to="r-0")
            assert len(await engine.dead_letters.list()) == (call is not listener)
            await world.env.check()


@pytest.mark.parametrize("count", [1, 20])
async def test_a_run_that_another_engine_has_taken_since_goes_on_there_alone(
    count: int, make_store: Callable[[], Store]
) -> None:
    world = World(make_store)
    async with world.env:
        ids = await world.leave(*[early_riser() for _ in range(count)])

        async def meddle() -> None:
            resources = {Seen: lambda: world.seen}
            options: dict[str, Any] = {"workflows": WORKFLOWS, "clock": world.env.clock, "resources": resources}
            async with Engine(make_store(), poll_s=None, **options) as other:
                for id in ids:
                    assert await other.handle(id).result() == "up"

        async with world.woken(meddle) as engine:
            assert {await timers_fired(engine, id) for id in ids} == {1}
            assert world.seen.steps == ["up"] * count
            await world.env.check()


async def test_a_store_that_cannot_be_read_for_a_while_delays_runs_and_loses_none(
    make_store: Callable[[], Store],
) -> None:
    world = World(make_store)
    async with world.env:
        ids = await world.leave(*[sleeper() for _ in range(10)])

        async def fail() -> None:
            raise StoreBusy("nobody can be read now")

        async with world.woken(fail) as engine:
            assert [await engine.handle(id).result() for id in ids] == ["slept"] * 10
            await world.env.check()


async def test_what_the_store_refuses_of_a_run_that_ran_ahead_holds_that_run_alone(
    make_store: Callable[[], Store],
) -> None:
    fault = Fault("refuse", when=lambda batch: any(entry.run_id == "r-3" for entry in batch.journal))
    world = World(make_store, fault=fault)
    async with world.env:
        ids = await world.leave(*[sleeper() for _ in range(10)])
        async with world.woken() as engine:
            for id in ids:
                if id != "r-3":
                    assert await engine.handle(id).result() == "slept"
            held = await view(engine, "r-3")
            assert (held.status, held.hold and held.hold.kind) == ("suspended", "blocked")
            fault.when = lambda _: False
            await engine.handle("r-3").resume()
            assert await engine.handle("r-3").result() == "slept"
            await world.env.check()


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_around_the_commit_that_claims_runs_and_goes_on_with_them(
    point: Point, make_store: Callable[[], Store]
) -> None:
    fault = Fault(point, when=lambda batch: any(entry.kind == "timer" for entry in batch.journal))
    world = World(make_store, fault=fault)
    async with world.env:
        ids = await world.leave(sleeper(), early_riser(), several())
        await world.env.restart()

        async def all_ended(env: Environment) -> None:
            for id in ids[:2]:
                await env.engine.handle(id).result()

        await world.env.survive(all_ended)
        assert fault.struck == 1
        assert {await timers_fired(world.env.engine, id) for id in ids[:2]} == {1}
        await world.env.advance(timedelta(hours=40))
        assert await world.env.engine.handle("r-2").result() == ["first", "second", "third"]
        await world.env.check()


async def test_engines_that_are_after_the_same_overdue_runs_share_them(
    make_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run ends once, whoever gets it, and a look that finds others ahead begins elsewhere."""
    monkeypatch.setattr("perdure.coordinator.sweep._AT_ONCE", 100)
    world = World(make_store)
    async with world.env:
        ids = await world.leave(*[sleeper() for _ in range(400)])
        stores = [Meddled(make_store()) for _ in range(3)]
        clock = world.env.clock
        engines = [Engine(store, workflows=WORKFLOWS, clock=clock, poll_s=None) for store in stores]
        await asyncio.gather(*[engine.open() for engine in engines])
        try:
            for id in ids:
                assert await engines[0].handle(id).result() == "slept"
            assert sum(store.counted["rows"] for store in stores) == 400
            assert {await timers_fired(engines[0], id) for id in ids} == {1}
        finally:
            await asyncio.gather(*[engine.shutdown(grace=0) for engine in engines])
        await world.env.restart()
        await world.env.check()
