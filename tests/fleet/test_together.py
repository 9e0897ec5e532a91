"""Several engines on one store: each request reaches the run, wherever it is; each run is somewhere, whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Event, Limits, current_step, first, receive, resource, run_of, sleep, step, timer, workflow
from perdure.errors import ConcurrentModification, QueueFull, RunCancelled, RunFinished, RunNotWaiting
from perdure.kernel.rules.delivery import Delivered, Queued
from perdure.kernel.status import Status
from perdure.models.functions.define import Workflow
from perdure.ports import Store
from perdure.testing.control import kill
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import Sailing, until


class Paid(Event):
    amount: int


class Shipped(Event):
    order: str


class WorkFound(Event, consume_on_read=False, expire_after=timedelta(hours=1)):
    text: str


class Diary:
    def __init__(self) -> None:
        self.lines: list[str] = []


@step
async def note(text: str) -> str:
    resource(Diary).lines.append(f"{current_step().run_id}: {text}")
    return text


@workflow
async def waits() -> int:
    paid = await receive(Paid)
    await note(f"paid {paid.amount}")
    return paid.amount


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


@workflow
async def reads() -> str:
    return (await receive(WorkFound)).text


@workflow
async def child(text: str) -> str:
    return await note(text)


@workflow
async def parent(text: str) -> str:
    return "child said " + await child(text)


@workflow
async def follows(run_id: str) -> str:
    ended = await first(run_of(run_id), timer(hours=1))
    return type(ended).__name__


async def suspended(engine: Engine, *ids: str) -> None:
    async def are_all() -> bool:
        found = await engine.runs.get_many(ids)
        return len(found) == len(ids) and all(run.status == Status.SUSPENDED for run in found.values())

    await until(are_all)


async def test_requests_reach_a_run_wherever_it_is(fleet: Sailing) -> None:
    async with fleet() as ships:
        one = await ships.engine([waits, sleeps], resources={Diary: Diary})
        two = await ships.engine([sleeps])
        await one.start(waits(), id="r")
        await suspended(two, "r")
        view = await two.handle("r").update(tags={"by": "two"})
        assert view.tags == {"by": "two"}
        with pytest.raises(ConcurrentModification) as error:
            await two.handle("r").update(tags={}, expected_version=view.version + 7)
        assert (error.value.run_id, error.value.version) == ("r", view.version)
        with pytest.raises(RunNotWaiting):
            await two.send(Shipped(order="o"), to="r", strict=True)
        assert isinstance(await two.send(Shipped(order="o"), to="r"), Queued)
        assert await two.send(Paid(amount=3), to="r", key="once") == Delivered(("r",))
        assert await two.handle("r").result() == 3
        with pytest.raises(RunFinished):
            await two.send(Paid(amount=4), to="r")
        await one.start(sleeps(3600), id="s")
        await suspended(two, "s")
        assert await two.handle("s").cancel(reason="by two")
        assert not await two.handle("s").cancel()
        with pytest.raises(RunCancelled, match="by two"):
            await one.handle("s").result()


async def test_a_run_can_be_held_and_let_go_from_elsewhere(fleet: Sailing) -> None:
    async with fleet() as ships:
        one = await ships.engine([waits], resources={Diary: Diary})
        two = await ships.engine([])
        await one.start(waits(), id="r")
        await suspended(two, "r")
        assert await two.handle("r").pause()
        assert await two.handle("r").resume()
        await two.send(Paid(amount=1), to="r")
        assert await two.handle("r").result() == 1


async def test_too_many_events_for_a_run_are_refused_wherever_they_come_from(fleet: Sailing) -> None:
    async with fleet() as ships:
        one = await ships.engine([sleeps])
        two = await ships.engine([], limits=Limits(events_pending_max=1))
        await one.start(sleeps(3600), id="r")
        await two.send(Paid(amount=1), to="r")
        with pytest.raises(QueueFull) as error:
            await two.send(Paid(amount=2), to="r")
        assert error.value.pending == 1


async def test_a_broadcast_reaches_whoever_waits_wherever_it_is(fleet: Sailing) -> None:
    async with fleet() as ships:
        diary = Diary()
        engines = [await ships.engine([waits], resources={Diary: lambda: diary}) for _ in range(3)]
        for number, engine in enumerate(engines):
            await engine.start(waits(), id=f"r-{number}")
        await suspended(engines[0], "r-0", "r-1", "r-2")
        sent = await asyncio.gather(*(engines[2].send(Paid(amount=number)) for number in range(3)))
        assert sorted(answer.run_ids[0] for answer in sent if isinstance(answer, Delivered)) == ["r-0", "r-1", "r-2"]
        results = await asyncio.gather(*(engines[0].handle(f"r-{number}").result() for number in range(3)))
        assert sorted(results) == [0, 1, 2]
        assert len(diary.lines) == 3


async def test_a_retained_event_reaches_all_who_wait_wherever_they_are(fleet: Sailing) -> None:
    async with fleet() as ships:
        engines = [await ships.engine([reads]) for _ in range(2)]
        runs = [await engine.start(reads(), id=f"r-{number}") for number, engine in enumerate(engines)]
        await suspended(engines[0], "r-0", "r-1")
        await engines[0].send(WorkFound(text="tide"))
        assert [await run.result() for run in runs] == ["tide"] * 2


async def test_a_child_runs_where_its_code_is(fleet: Sailing) -> None:
    async with fleet() as ships:
        diary = Diary()
        one = await ships.engine([parent])
        await ships.engine([child], resources={Diary: lambda: diary})
        assert await (await one.start(parent("hello"), id="p")).result() == "child said hello"
        assert len(diary.lines) == 1


async def test_a_run_waits_for_the_end_of_one_elsewhere(fleet: Sailing) -> None:
    async with fleet() as ships:
        one = await ships.engine([follows])
        two = await ships.engine([waits], resources={Diary: Diary})
        await two.start(waits(), id="w")
        run = await one.start(follows("w"), id="f")
        await suspended(one, "w", "f")
        await two.send(Paid(amount=1), to="w")
        assert await run.result() == "RunEnded"


async def test_a_cancelled_parent_takes_its_children_along_wherever_they_are(fleet: Sailing) -> None:
    @workflow
    async def family() -> str:
        return await sleeps(3600)

    async with fleet() as ships:
        one = await ships.engine([family])
        two = await ships.engine([sleeps])
        await one.start(family(), id="p")

        async def has_slept() -> bool:
            runs = (await two.runs.list(parent="p")).runs
            return bool(runs) and runs[0].status == Status.SUSPENDED

        await until(has_slept)
        assert await two.handle("p").cancel()

        async def is_cancelled() -> bool:
            return (await two.runs.list(parent="p")).runs[0].status == Status.CANCELLED

        await until(is_cancelled)


async def test_who_leaves_hands_its_runs_over_at_once(fleet: Sailing) -> None:
    started = asyncio.Event()
    go_on = asyncio.Event()

    @step
    async def long() -> str:
        started.set()
        await go_on.wait()
        return "done"

    @workflow
    async def works() -> str:
        return await long()

    async with fleet() as ships:
        one = await ships.engine([works])
        two = await ships.engine([works], poll_s=3600.0)
        await one.start(works(), id="r")
        await started.wait()
        started.clear()
        await one.shutdown(grace=0)
        await started.wait()
        go_on.set()
        assert await two.handle("r").result() == "done"
        assert (await two.handle("r").status()) == Status.SUCCEEDED


async def test_what_a_killed_engine_leaves_is_taken_over(fleet: Sailing) -> None:
    async with fleet() as ships:
        diary = Diary()
        one = await ships.engine([waits, sleeps], resources={Diary: Diary})
        two = await ships.engine([waits, sleeps], resources={Diary: lambda: diary})
        await one.start(waits(), id="r")
        await one.start(sleeps(0.5), id="s")
        await suspended(two, "r", "s")
        kill(one)
        assert await two.handle("s").result() == "awake"
        await two.send(Paid(amount=5), to="r")
        assert await two.handle("r").result() == 5
        assert diary.lines == ["r: paid 5"]


async def test_mail_for_an_engine_that_dies_is_answered_by_another(fleet: Sailing) -> None:
    async with fleet() as ships:
        one = await ships.engine([waits], poll_s=None, resources={Diary: Diary})
        two = await ships.engine([waits], resources={Diary: Diary})
        await one.start(waits(), id="r")
        await suspended(two, "r")
        asking = asyncio.ensure_future(two.send(Paid(amount=2), to="r"))

        async def is_posted() -> bool:
            return bool(await two.session.store.mail((await two.session.store.engines())[0].id, 10))

        await until(is_posted)
        assert not asking.done()
        kill(one)
        assert await asking == Delivered(("r",))
        assert await two.handle("r").result() == 2


def version(number: str) -> Workflow[[], str]:
    @workflow(name="changing", version=number)
    async def changing() -> str:
        await receive(Paid)
        return f"version {number}"

    return changing


async def test_a_run_goes_on_with_the_version_that_it_was_started_as(fleet: Sailing) -> None:
    async with fleet() as ships:
        old, new = version("1"), version("2")
        one = await ships.engine([old])
        run = await one.start(old(), id="r")
        await suspended(one, "r")
        await one.shutdown()
        two = await ships.engine([new])
        await two.send(Paid(amount=1), to="r")
        view = await two.runs.get(run.id)
        assert view is not None
        assert view.stranded == "no engine has workflow 'changing' version '1'"
        assert [page.stranded for page in (await two.runs.list()).runs] == [view.stranded]
        three = await ships.engine([old, new])
        assert await three.handle("r").result() == "version 1"
        assert ((await two.runs.get("r")) or view).stranded is None


async def test_a_caller_who_gives_up_as_the_answer_comes_does_not_make_the_engine_deaf(
    fleet: Sailing, make_store: Callable[[], Store]
) -> None:
    class GivesUp(StoreProxy):
        asking: asyncio.Task[Delivered | Queued] | None = None

        async def collect(self, slots: Sequence[str]) -> dict[str, str]:
            found = await super().collect(slots)
            if found and self.asking is not None:
                self.asking.cancel()
                await asyncio.wait([self.asking])
            return found

    async with fleet() as ships:
        one = await ships.engine([waits], resources={Diary: Diary})
        store = GivesUp(make_store())
        async with Engine(store, workflows=[], poll_s=0.2) as two:
            for name in ("r-1", "r-2"):
                await one.start(waits(), id=name)
            await suspended(one, "r-1", "r-2")
            store.asking = asking = asyncio.create_task(two.send(Paid(amount=1), to="r-1"))
            with pytest.raises(asyncio.CancelledError):
                await asking
            store.asking = None
            assert await two.send(Paid(amount=2), to="r-2") == Delivered(("r-2",))
            assert [await one.handle(name).result() for name in ("r-1", "r-2")] == [1, 2]


async def test_a_bug_does_not_make_an_engine_deaf(fleet: Sailing, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet() as ships:
        one = await ships.engine([waits], resources={Diary: Diary})
        two = await ships.engine([])
        await one.start(waits(), id="r")
        await suspended(two, "r")
        failed = asyncio.Event()
        store = one.session.engine_store
        look = store.look

        async def fails_once(**asked: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise ValueError("a bug")
            return await look(**asked)

        monkeypatch.setattr(store, "look", fails_once)
        await failed.wait()
        await two.send(Paid(amount=1), to="r")
        assert await two.handle("r").result() == 1
