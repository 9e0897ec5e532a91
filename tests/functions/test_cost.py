"""What a run of a function costs that asks for very much: in proportion to that, counted in calls and in rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any

import pytest

from perdure import Event, NamedEvent, To, Workflow, current_run, first, receive, start, workflow
from perdure.kernel.batch import Batch, Committed
from perdure.models.functions import request_rows, runner
from perdure.models.functions.beginnings import Beginnings
from perdure.models.functions.loop import BEGINNING_CALLBACKS_AT_ONCE
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.waits import short_name
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from tests.cooperation.cost import Cost, counted

SMALL, LARGE = 150, 600


class Got(Event, event_name="cost.got"):
    number: int


@workflow(name="cost.each")
async def each(size: int) -> int:
    """A task for each number, which waits for the event with that number."""

    async def one(number: int) -> int:
        return (await receive(Got, where={"number": number})).number

    return sum(await asyncio.gather(*[one(number) for number in range(size)]))


@workflow(name="cost.any")
async def anything(size: int) -> int:
    """So many tasks, which wait for whichever event comes."""

    async def one() -> int:
        return (await receive(Got)).number

    return sum(await asyncio.gather(*[one() for _ in range(size)]))


@workflow(name="cost.later")
async def later(size: int) -> int:
    await receive("go")
    return await _each(size)


async def _each(size: int) -> int:
    async def one(number: int) -> int:
        return (await receive(Got, where={"number": number})).number

    return sum(await asyncio.gather(*[one(number) for number in range(size)]))


@workflow(name="cost.child")
async def child(number: int) -> int:
    return number


@workflow(name="cost.completed")
async def completed(size: int) -> int:
    """The ends of started children, as they come."""
    handles = [await start(child(number)) for number in range(size)]
    total = 0
    for ended in asyncio.as_completed([handle.result() for handle in handles]):
        total += await ended
    return total


@workflow(name="cost.firsts")
async def firsts(size: int) -> int:
    """The same, one wait for all that are left after the other."""
    left = {handle.id: handle for handle in [await start(child(number)) for number in range(size)]}
    total = 0
    while left:
        ended = await first(*left.values())
        total += ended.result()
        del left[ended.run_id]
    return total


@workflow(name="cost.gathers")
async def gathers(size: int) -> int:
    return sum(await asyncio.gather(*[child(number) for number in range(size)]))


@workflow(name="cost.starts")
async def starts(size: int) -> int:
    for number in range(size):
        await start(child(number))
    return size


ALL: list[Workflow[Any, Any]] = [each, anything, later, child, completed, firsts, gathers, starts]


class Rows(StoreProxy):
    """Counts rows of waits and events that are written, and the characters of names in journals."""

    def __init__(self, inner: Store, cost: Cost) -> None:
        super().__init__(inner)
        self._cost = cost

    async def commit(self, batch: Batch) -> Committed:
        self._cost.rows += len(batch.waits) + len(batch.events) + len(batch.waits_dropped)
        self._cost.bytes += sum(len(entry.name) for entry in batch.journal)
        return await self.inner.commit(batch)


async def costs(
    source: StoreSource, work: Callable[[Environment, int], Awaitable[None]], sizes: tuple[int, int]
) -> list[Cost]:
    cost = Cost()
    found: list[Cost] = []
    async with Environment(ALL, source, watch=lambda store: Rows(store, cost)) as env:
        await work(env, 1)
        for size in sizes:
            cost.calls = cost.rows = cost.bytes = 0
            with counted(cost):
                await work(env, size)
                await env.settle()
            found.append(copy(cost))
    return found


def assert_linear(small: Cost, large: Cost, times: int) -> None:
    for field in ("calls", "rows", "bytes"):
        was, became = getattr(small, field), getattr(large, field)
        assert became <= was * times * 1.3 + 100, f"{field}: {was:,} became {became:,} at {times} times the size"


@pytest.mark.parametrize("flow", [each, anything], ids=["by a filter", "whichever comes"])
@pytest.mark.parametrize("is_broadcast", [False, True], ids=["sent", "broadcast"])
async def test_events_to_as_many_tasks_of_one_run(source: StoreSource, flow: Any, is_broadcast: bool) -> None:
    async def work(env: Environment, size: int) -> None:
        run = await env.engine.start(flow(size))
        await env.settle()
        to = None if is_broadcast else run.id
        await env.engine.send_many([To(Got(number), to) for number in reversed(range(size))])
        assert await run.result() == sum(range(size))

    small, large = await costs(source, work, (SMALL, LARGE))
    assert_linear(small, large, LARGE // SMALL)


async def test_events_that_were_there_before_the_tasks_that_choose_them(source: StoreSource) -> None:
    async def work(env: Environment, size: int) -> None:
        run = await env.engine.start(later(size))
        await env.engine.send_many([To(Got(number), run.id) for number in reversed(range(size))])
        await env.engine.send(NamedEvent("go"), to=run.id)
        assert await run.result() == sum(range(size))

    # Beyond what is read ahead in one advance, which costs less for each.
    small, large = await costs(source, work, (300, 900))
    assert_linear(small, large, 3)


async def test_tasks_that_are_cancelled_after_their_events_came(source: StoreSource) -> None:
    """What was given to them is free again, and is offered to those that still wait."""

    @workflow(name="cost.gives_up")
    async def gives_up(size: int) -> str:
        tasks = [asyncio.ensure_future(receive(Got, where={"number": number})) for number in range(size)]
        await receive("give up")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return current_run().id

    async def work(env: Environment, size: int) -> None:
        run = await env.engine.start(gives_up(size))
        await env.settle()
        await env.engine.send_many([To(NamedEvent("give up"), run.id), *(To(Got(n), run.id) for n in range(size))])
        await run.result()

    ALL.append(gives_up)
    try:
        small, large = await costs(source, work, (SMALL, LARGE))
    finally:
        ALL.remove(gives_up)
    assert_linear(small, large, LARGE // SMALL)


@pytest.mark.parametrize("flow", [completed, gathers], ids=["as they come", "all of them"])
async def test_the_ends_of_children(source: StoreSource, flow: Any) -> None:
    async def work(env: Environment, size: int) -> None:
        assert await env.engine.run(flow(size)) == sum(range(size))

    small, large = await costs(source, work, (100, 400))
    assert_linear(small, large, 4)


async def test_the_first_of_many_runs_has_a_short_name_in_the_journal(source: StoreSource) -> None:
    """Each wait for the first of n runs has n rows while it waits. What stays in the journal is as short as for one."""

    async def work(env: Environment, size: int) -> None:
        assert await env.engine.run(firsts(size)) == sum(range(size))

    small, large = await costs(source, work, (25, 100))
    assert large.bytes <= small.bytes * 4 * 1.5


def test_short_names_tell_options_apart() -> None:
    assert short_name("a or b or timer") == "a or b or timer"
    many = " or ".join(["run"] * 40)
    assert short_name(many) == "run ×40"
    assert short_name(f"{many} or timer") == "run ×40 or timer"
    assert short_name(f"timer or {many}") == "timer or run ×40"
    assert short_name(short_name(many)) == "run ×40"
    assert len({short_name(" or ".join(["a"] * n + ["b"] * (30 - n))) for n in range(30)}) == 30


async def test_a_run_that_waited_under_the_long_name_of_earlier_versions_goes_on(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow(name="cost.twice")
    async def twice(size: int) -> int:
        handles = [await start(child(number)) for number in range(size)]
        ended = await first(*handles)
        await receive("go")
        return int(ended.result())

    async with Environment([twice, child], source) as env:
        with monkeypatch.context() as before:
            before.setattr("perdure.models.functions.waits.short_name", lambda name: name)
            run = await env.engine.start(twice(30), id="twice")
            await env.settle()
        names = [entry.name for entry in (await run.history()).journal if entry.kind == "wait"]
        assert names == [" or ".join(["run"] * 30)]
        await env.restart()
        await env.engine.send(NamedEvent("go"), to="twice")
        assert await env.engine.handle("twice").result() in range(30)


class Turns:
    """Counts what is done of a run that begins, in each turn of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.asks: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self._count(monkeypatch, LiveRun, "took", self.asks)
        for module in (request_rows, runner):
            self._count(monkeypatch, module, "start_of", self.rows)

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, counts: dict[int, int]) -> None:
        inner = getattr(owner, name)

        def counting(live: LiveRun, *args: Any) -> Any:
            if live.workflow.name != "cost.child":
                counts[self.now] = counts.get(self.now, 0) + 1
            return inner(live, *args)

        monkeypatch.setattr(owner, name, counting)

    async def count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


@pytest.mark.parametrize("flow", [gathers, starts], ids=["awaited", "started"])
async def test_a_parent_of_thousands_begins_in_turns(
    source: StoreSource, flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Turns(monkeypatch)
    async with Environment(ALL, source) as env:
        ticking = asyncio.create_task(turns.count())
        run = await env.engine.start(flow(2_000))
        await run.result()
        ticking.cancel()
    assert sum(turns.rows.values()) == 2_000
    assert max(turns.rows.values()) <= 2 * BEGINNING_CALLBACKS_AT_ONCE
    assert max(turns.asks.values()) <= 4 * BEGINNING_CALLBACKS_AT_ONCE


@pytest.mark.parametrize("flow", [gathers, starts], ids=["awaited", "started"])
@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_run_that_is_stopped_while_it_begins(
    source: StoreSource, flow: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()
    inner = Beginnings._go_on

    def counting(self: Beginnings, live: LiveRun, work: Any) -> None:
        inner(self, live, work)
        if live.id in self.open:
            began.set()

    monkeypatch.setattr(Beginnings, "_go_on", counting)
    async with Environment(ALL, source) as env:
        await env.engine.start(flow(2_000), id="parent")
        await began.wait()
        if how == "cancelled":
            assert await env.engine.handle("parent").cancel()
            await env.settle()
            assert await env.engine.handle("parent").status() == "cancelled"
            assert {run.status for run in (await env.engine.runs.list(workflow="cost.child")).runs} <= {"cancelled"}
        else:
            await env.restart()
            assert await env.engine.handle("parent").result() in (2_000, sum(range(2_000)))
            await env.settle()  # Children that were only started may be at work.
        await env.check()
