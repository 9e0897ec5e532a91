"""A run reads what was sent to it before it asked: at once, many events in one commit, and each of them once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, Event, NamedEvent, Retry, continue_as, event, first, receive, step, timer, workflow
from perdure.api.events import To
from perdure.kernel.batch import Batch, Committed
from perdure.models.functions import events as event_classes
from perdure.models.functions.define import Workflow
from perdure.models.functions.read_ahead import CHARS_MAX, EVENTS_MAX
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from tests.crash.ledger import Ledger


class Item(Event, event_name="ahead.item", on_target_terminated="dead_letter"):
    number: int
    text: str = ""


class Go(Event, event_name="ahead.go"):
    """Begin to read."""


@step(retry=Retry.never())
async def double(number: int) -> int:
    return 2 * number


@workflow(name="ahead.reads")
async def reads(count: int) -> list[int]:
    await receive(Go)
    return [(await receive(Item)).number for _ in range(count)]


@workflow(name="ahead.chooses")
async def chooses() -> list[int]:
    await receive(Go)
    chosen = [(await receive(Item, where={"number": number})).number for number in (3, 1)]
    return [*chosen, (await receive(Item)).number]


@workflow(name="ahead.together")
async def together() -> list[int]:
    await receive(Go)
    return [item.number for item in await asyncio.gather(*[receive(Item) for _ in range(3)])]


@workflow(name="ahead.either")
async def either() -> list[str]:
    await receive(Go)
    found: list[str] = []
    for _ in range(3):
        match await first(Item, event("ahead.other"), timer(0)):
            case Item(number=number):
                found.append(str(number))
            case NamedEvent(value=value):
                found.append(value)
            case _:
                found.append("time")
    return found


@workflow(name="ahead.works")
async def works(count: int) -> int:
    await receive(Go)
    return sum([await double((await receive(Item)).number) for _ in range(count)])


@workflow(name="ahead.continues")
async def continues(left: int, total: int) -> int:
    if total == 0:
        await receive(Go)
    total += (await receive(Item)).number
    if left > 1:
        await continue_as(continues(left - 1, total))
    return total


WORKFLOWS: list[Workflow[Any, Any]] = [reads, chooses, together, either, works, continues]


COUNTS = {"ahead.reads": 5, "ahead.works": 3, "ahead.continues": 3}


async def send(env: Environment, numbers: range | tuple[int, ...], **options: Any) -> None:
    for number in numbers:
        await env.engine.send(Item(number=number), to="r", **options)


@pytest.mark.parametrize("count", [1, 100, 2 * EVENTS_MAX + 10])
async def test_many_events_are_read_in_one_commit(count: int, source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        run = await env.engine.start(reads(count), id="r")
        await env.quiet()
        await env.engine.send_many([To(Item(number=number), "r") for number in range(count)])
        before = len(ledger.batches)
        await env.engine.send(Go(), to="r")
        assert await run.result() == list(range(count))
        # The one that says go; what it has won with what is read then; and a wait between two such lots.
        assert len(ledger.batches) - before <= 2 + count // EVENTS_MAX
        assert await env.engine.dead_letters.list() == []
        entries = (await env.engine.handle("r").history()).journal
        assert [entry.seq for entry in entries] == list(range(1, count + 2))
        await env.check()


async def test_what_is_left_unread_goes_where_its_policy_says(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(reads(2), id="r")
        await send(env, range(4))
        await env.engine.send(Go(), to="r")
        assert await run.result() == [0, 1]
        assert sorted(letter.value["number"] for letter in await env.engine.dead_letters.list()) == [2, 3]


async def test_filters_choose_and_the_others_stay_in_their_order(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(chooses(), id="r")
        await send(env, range(5))
        await env.engine.send(Go(), to="r")
        assert await run.result() == [3, 1, 0]


async def test_tasks_that_ask_together_get_one_each(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(together(), id="r")
        await send(env, (7, 8))
        await env.engine.send(Go(), to="r")
        await env.quiet()
        await send(env, (9,))
        assert await run.result() == [7, 8, 9]


async def test_the_earliest_sent_of_several_names_wins_and_a_timer_that_is_due_does_not(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(either(), id="r")
        await send(env, (1,))
        await env.engine.send(NamedEvent("ahead.other", "other"), to="r")
        await env.engine.send(Go(), to="r")
        assert await run.result() == ["1", "other", "time"]


async def test_what_was_sent_to_the_run_is_read_before_broadcasts_that_came_first(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        await env.engine.send(Item(number=1))
        run = await env.engine.start(reads(2), id="r")
        await send(env, (2,))
        await env.engine.send(Go(), to="r")
        assert await run.result() == [2, 1]


async def test_a_step_between_two_events_takes_one_commit_for_both(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        run = await env.engine.start(works(20), id="r")
        await send(env, range(20))
        before = len(ledger.batches)
        await env.engine.send(Go(), to="r")
        assert await run.result() == 2 * sum(range(20))
        assert len(ledger.batches) - before <= 20 + 3


async def test_a_run_that_continues_reads_on(source: StoreSource) -> None:
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(continues(10, 0), id="r")
        await send(env, range(1, 11))
        await env.engine.send(Go(), to="r")
        assert await run.result() == sum(range(1, 11))
        await env.check()


async def test_large_events_do_not_make_one_large_batch(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        run = await env.engine.start(reads(8), id="r")
        for number in range(8):
            await env.engine.send(Item(number=number, text="x" * (CHARS_MAX // 3)), to="r")
        await env.engine.send(Go(), to="r")
        assert await run.result() == list(range(8))
        # The event that was waited for, and as many more as reach the bound.
        sizes = [sum(len(entry.value or "") for entry in batch.journal) for batch in ledger.batches]
        assert max(sizes) <= CHARS_MAX * 2


@pytest.mark.parametrize("program", [reads(5), works(3), continues(3, 0)], ids=["reads", "works", "continues"])
async def test_each_is_read_once_whenever_the_process_dies(program: Any, fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> tuple[Any, list[int]]:
        run = await env.engine.start(program, id="r")
        await env.engine.send_many([To(Item(number=number), "r", str(number)) for number in range(1, 8)])
        await env.engine.send_many([To(Go(), "r", "go")])
        result = await run.result()
        return result, sorted(letter.value["number"] for letter in await env.engine.dead_letters.list())

    report = await run_with_crashes(scenario, workflows=WORKFLOWS, store=fresh)
    assert report.result[1] == sorted(set(range(1, 8)) - set(range(1, 1 + COUNTS[program.workflow.name])))
    assert report.commits >= 4


class Held(StoreProxy):
    """A store that takes commits one by one, each when it is let, once `is_held`."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_held = False
        self.waiting = 0
        self._lets = asyncio.Semaphore(0)

    async def commit(self, batch: Batch) -> Committed:
        if self.is_held:
            self.waiting += 1
            await self._lets.acquire()
            self.waiting -= 1
        return await super().commit(batch)

    def let(self) -> None:
        self._lets.release()

    def let_all(self) -> None:
        self.is_held = False
        self.let()


async def turns() -> None:
    """Let everything happen that waits for no commit."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_an_uncommitted_wait_will_win_is_not_read_by_another_task() -> None:
    """The first task's wait is on its way to the store when the event is found; the second task asks then."""
    finish: dict[str, asyncio.Event] = {}

    @step(retry=Retry.never())
    async def until(name: str) -> None:
        finish[name] = asyncio.Event()
        await finish[name].wait()

    @workflow(name="ahead.in-turn")
    async def in_turn() -> dict[str, int]:
        async def one(name: str) -> tuple[str, int]:
            await until(name)
            return name, (await receive(Item)).number

        return dict(await asyncio.gather(one("first"), one("second")))

    store = Held()
    async with Engine(store, workflows=[in_turn]) as engine:
        run = await engine.start(in_turn(), id="r")
        while len(finish) < 2:
            await asyncio.sleep(0)
        store.is_held = True
        sending = asyncio.ensure_future(engine.send(Item(number=1), to="r"))
        while not store.waiting:
            await asyncio.sleep(0)
        finish["first"].set()  # Its wait queues behind the commit that brings the event.
        await turns()
        store.let()
        await sending
        while not store.waiting:
            await asyncio.sleep(0)
        finish["second"].set()
        await turns()
        store.let_all()
        await engine.send(Item(number=2), to="r")
        assert await run.result() == {"first": 1, "second": 2}


async def test_what_does_not_fit_is_set_aside_and_the_next_one_is_read(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_classes, "_KINDS", {})
    async with Environment(WORKFLOWS, source) as env:
        run = await env.engine.start(reads(2), id="r")
        await send(env, (1,))
        await env.engine.send(NamedEvent("ahead.item", {"number": "many"}), to="r")
        await send(env, (2,))
        await env.engine.send(Go(), to="r")
        assert await run.result() == [1, 2]
        assert [letter.value["number"] for letter in await env.engine.dead_letters.list()] == ["many"]
