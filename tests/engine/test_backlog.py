"""What has piled up costs in proportion to its size, and new work does not wait for it. Counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Event, receive, sleep, step, workflow
from perdure.coordinator import sweep
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.status import FINISHED
from perdure.models.functions.define import Workflow
from perdure.ports import DueRun, Offer, Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from perdure.values.limits import Limits
from tests.cooperation.cost import Cost, counted

HOUR = timedelta(hours=1)
BATCH_OPS = Limits().batch_ops_max


class Reading(Event, event_name="backlog.reading"):
    """What one run has many of to read."""

    number: int


class WorkFound(Event, event_name="backlog.news", consume_on_read=False):
    """What many runs wait for."""


@step
async def small(number: int) -> int:
    return number


@workflow
async def sleeper(number: int) -> int:
    await sleep(HOUR)
    return number


@workflow
async def one_step(number: int) -> int:
    return await small(number)


@workflow
async def reader(count: int) -> int:
    await receive(Reading, where={"number": -1})
    return sum([(await receive(Reading)).number for _ in range(count)])


@workflow
async def waiter() -> None:
    await receive(WorkFound)


@workflow
async def long_one(count: int) -> int:
    total = sum([await small(number) for number in range(count)])
    await sleep(HOUR)
    return total


WORKFLOWS: list[Workflow[Any, Any]] = [sleeper, one_step, reader, waiter, long_one]


class Counting(StoreProxy):
    """Counts ops' traces in a store: commits, runs that ended in them, runs that were found due or read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counted: Counter[str] = Counter()

    async def commit(self, batch: Batch) -> Committed:
        self.counted["commits"] += 1
        committed = await self.inner.commit(batch)
        for write in batch.runs.values():
            self.counted["rows"] += 1
            if write.expected_version is None:
                self.counted[f"started {write.run.workflow}"] += 1
            if write.run.status in FINISHED:
                self.counted[f"ended {write.run.workflow}"] += 1
        return committed

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> list[DueRun]:
        found = await self.inner.due_runs(offers=offers, before=before, limit=limit)
        self.counted["found due"] += len(found)
        return found

    async def load(self, ids: Sequence[str]) -> Any:
        self.counted["read"] += len(ids)
        return await self.inner.load(ids)


class World:
    """An environment whose store counts, and in which time passes only where a test says so."""

    def __init__(self, source: StoreSource, **options: Any) -> None:
        self.store: Counting
        self.env = Environment(WORKFLOWS, source, watch=self._watch, autojump_s=None, **options)

    def _watch(self, store: Store) -> Counting:
        self.store = Counting(store)
        return self.store

    async def leave_sleepers(self, size: int) -> None:
        """Sleeping runs that nobody has in memory, all of them overdue for the engine that comes."""
        await asyncio.gather(*[self.env.engine.start(sleeper(number)) for number in range(size)])
        await self.env.quiet()
        self.env.kill()
        self.env.clock.move_to(self.env.clock.now() + 2 * 3_600_000_000)

    async def cost_of(self, work: Callable[[], Awaitable[object]]) -> Counter[str]:
        cost = Cost()
        with counted(cost):
            await work()
            await self.env.quiet()
        return self.store.counted + Counter(calls=cost.calls)


def assert_linear(small: Counter[str], large: Counter[str], *, times: int, slack: float = 1.3) -> None:
    for what, number in large.items():
        allowed = small[what] * times * slack + 100
        assert number <= allowed, f"{what}: {small[what]:,} became {number:,} at {times} times the size"


async def test_four_times_the_overdue_timers_cost_four_times_as_much(
    source: StoreSource, fresh: Callable[[], StoreSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_AT_ONCE", 250)  # so that several looks are needed for few runs
    costs: list[Counter[str]] = []
    for size, store in ((300, source), (1200, fresh())):
        world = World(store)
        async with world.env as env:
            await world.leave_sleepers(size)
            costs.append(await world.cost_of(env.restart))
            assert world.store.counted["ended sleeper"] == size
            assert world.store.counted["read"] <= size
            assert world.store.counted["found due"] <= 3 * size
    for cost in costs:
        del cost["found due"]  # bounded above: a look may find again what is on its way, so two sizes differ by chance
    assert_linear(*costs, times=4)


@pytest.mark.parametrize("where", ["in the store", "in memory"])
async def test_a_new_run_does_not_wait_for_all_overdue_timers(where: str, source: StoreSource) -> None:
    size = 3_000
    world = World(source)
    async with world.env as env:
        if where == "in the store":
            await world.leave_sleepers(size)
            await env.restart()
        else:
            await asyncio.gather(*[env.engine.start(sleeper(number)) for number in range(size)])
            await env.quiet()
            env.clock.move_to(env.clock.now() + 3_600_000_000)
        while not world.store.counted["ended sleeper"]:
            await asyncio.sleep(0)
        waited: list[tuple[int, int]] = []
        while not (ended := world.store.counted["ended sleeper"]) >= size:
            commits, rows = world.store.counted["commits"], world.store.counted["rows"]
            await env.engine.run(one_step(ended))
            waited.append((world.store.counted["commits"] - commits, world.store.counted["rows"] - rows))
        # Of a start and of a step: what is being committed then, what is next, and the wake-up in between.
        assert max(commits for commits, _ in waited) <= 8, waited
        # Three quarters of a batch are due timers; three eighths from the one on that has the start.
        assert max(rows for _, rows in waited) <= 3 * BATCH_OPS // 4 + 3 * 3 * BATCH_OPS // 8 + 10, waited


async def test_runs_that_have_begun_do_not_wait_for_all_that_are_to_begin(source: StoreSource) -> None:
    size = 3_000
    world = World(source)
    async with world.env as env:
        asking = asyncio.gather(*[env.engine.run(one_step(number)) for number in range(size)])
        while world.store.counted["started one_step"] < size:
            await asyncio.sleep(0)
        # A quarter of each batch at least is starts, and the rest goes to what has begun, as far as there is any.
        assert world.store.counted["ended one_step"] >= size * 3 // 4
        await asking


async def test_overdue_timers_do_not_wait_for_all_that_is_asked_from_outside(source: StoreSource) -> None:
    world = World(source)
    async with world.env as env:
        await asyncio.gather(*[env.engine.start(sleeper(number)) for number in range(300)])
        await env.quiet()
        asking = asyncio.gather(*[env.engine.run(one_step(number)) for number in range(4_000)])
        await asyncio.sleep(0)
        env.clock.move_to(env.clock.now() + 3_600_000_000)
        while not world.store.counted["ended one_step"] >= 3_000:
            await asyncio.sleep(0)
        assert world.store.counted["ended sleeper"] > 100
        await asking


async def test_four_times_the_events_to_read_cost_four_times_as_much(
    source: StoreSource, fresh: Callable[[], StoreSource]
) -> None:
    costs: list[Counter[str]] = []
    for size, store in ((200, source), (800, fresh())):
        world = World(store)
        async with world.env as env:

            async def read_all(env: Environment = env, size: int = size) -> None:
                run = await env.engine.start(reader(size))
                for number in range(size):
                    await env.engine.send(Reading(number=number), to=run.id)
                await env.engine.send(Reading(number=-1), to=run.id)
                assert await run.result() == sum(range(size))

            costs.append(await world.cost_of(read_all))
    assert_linear(*costs, times=4)


@pytest.mark.parametrize("where", ["in the store", "in memory"])
async def test_four_times_the_waiters_of_an_event_cost_four_times_as_much(
    where: str, source: StoreSource, fresh: Callable[[], StoreSource]
) -> None:
    costs: list[Counter[str]] = []
    for size, store in ((300, source), (1200, fresh())):
        world = World(store)
        async with world.env as env:
            await asyncio.gather(*[env.engine.start(waiter()) for _ in range(size)])
            await env.quiet()
            if where == "in the store":
                await env.restart()

            async def tell(env: Environment = env) -> None:
                await env.engine.send(WorkFound())

            world.store.counted.clear()
            costs.append(await world.cost_of(tell))
            assert world.store.counted["ended waiter"] == size
    assert_linear(*costs, times=4)


@pytest.mark.parametrize("part", ["live", "replayed", "shown"])
async def test_four_times_the_entries_of_a_journal_cost_four_times_as_much(
    part: str, source: StoreSource, fresh: Callable[[], StoreSource]
) -> None:
    costs: list[Counter[str]] = []
    for size, store in ((250, source), (1000, fresh())):
        world = World(store)
        async with world.env as env:

            async def live(env: Environment = env, size: int = size) -> None:
                await env.engine.start(long_one(size), id="long")

            async def replayed(env: Environment = env, size: int = size) -> None:
                await env.restart()
                await env.advance(HOUR)
                assert await env.engine.handle("long").result() == sum(range(size))

            async def shown(env: Environment = env, size: int = size) -> None:
                assert len((await env.engine.handle("long").history()).journal) >= size

            works = {"live": live, "replayed": replayed, "shown": shown}
            if part != "live":
                await live()
                await env.quiet()
                world.store.counted.clear()
            costs.append(await world.cost_of(works[part]))
    assert_linear(*costs, times=4)
