"""Runs that are retried by hand: what failed happens again, with what it had read, and with all the time it had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Event,
    NamedEvent,
    Retry,
    receive,
    resource,
    sleep,
    step,
    task,
    workflow,
)
from perdure.errors import RunFailed
from perdure.graph import Graph, all_of, child, human, wait
from perdure.testing import Environment, run_with_crashes
from perdure.testing.clock import VirtualClock
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)
MONTH = timedelta(days=30)


class Item(Event):
    name: str
    size: int = 0


class Kept(Event, on_target_terminated="dead_letter"):
    name: str


class Notice(Event, consume_on_read=False, delivery="all"):
    number: int


class Weather:
    """Whether what can fail does."""

    def __init__(self) -> None:
        self.is_bad = True


@step(retry=Retry.never())
async def risky() -> str:
    if resource(Weather).is_bad:
        raise ConnectionError("no answer")
    return "done"


@workflow
async def reads_after_failing(wanted: int) -> list[Any]:
    """Its step fails first; then it reads, and fails for that in the end."""
    read: list[Any] = []
    failed: ConnectionError | None = None
    try:
        read.append(await risky())
    except ConnectionError as error:
        failed = error
    for _ in range(wanted):
        read.append(await receive("item"))  # noqa: PERF401
    got = await receive(Item, where={"size": 3})
    read.append(got.name)
    if failed is not None:
        raise failed
    return read


@workflow
async def reads_notices() -> list[int]:
    """Its step fails after the first of them; it reads another one, and fails for that."""
    read = [(await receive(Notice)).number]
    failed: ConnectionError | None = None
    try:
        await risky()
    except ConnectionError as error:
        failed = error
    read.append((await receive(Notice)).number)
    if failed is not None:
        raise failed
    return [*read, (await receive(Notice)).number]


async def failed(env: Environment, call: Any, **options: Any) -> None:
    run = await env.engine.start(call, id="r", **options)
    with pytest.raises(RunFailed):
        await run.result()


@pytest.mark.parametrize("target", ["r", None], ids=["targeted", "broadcast"])
async def test_what_was_read_by_entries_set_aside_is_read_again_in_order(
    source: StoreSource, target: str | None
) -> None:
    weather = Weather()
    async with Environment([reads_after_failing], source, resources={Weather: lambda: weather}) as env:
        run = await env.engine.start(reads_after_failing(3), id="r")
        for text in ("a", "b", "c"):
            await env.engine.send(NamedEvent("item", text), to=target)
        await env.engine.send(Item(name="small", size=1), to=target)
        await env.engine.send(Item(name="big", size=3), to=target)
        with pytest.raises(RunFailed):
            await run.result()
        weather.is_bad = False
        # Long after: what was read once does not expire.
        await env.advance(MONTH * 12)
        assert await (await env.engine.handle("r").retry()).result() == ["done", "a", "b", "c", "big"]
        await env.check()


async def test_it_is_read_again_as_often_as_the_run_is_retried_and_on_another_engine(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([reads_after_failing], source, resources={Weather: lambda: weather}) as env:
        run = await env.engine.start(reads_after_failing(2), id="r")
        for text in ("a", "b"):
            await env.engine.send(NamedEvent("item", text), to="r")
        await env.engine.send(Item(name="big", size=3), to="r")
        for _ in range(3):
            with pytest.raises(RunFailed):
                await run.result()
            run = await env.engine.handle("r").retry()
            await env.restart()
            run = env.engine.handle("r")
        with pytest.raises(RunFailed):
            await run.result()
        weather.is_bad = False
        assert await (await env.engine.handle("r").retry()).result() == ["done", "a", "b", "big"]


async def test_a_retried_run_reads_no_retained_event_twice(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([reads_notices], source, resources={Weather: lambda: weather}) as env:
        for number in range(4):
            await env.engine.send(Notice(number))
        await failed(env, reads_notices())
        with pytest.raises(RunFailed):
            await (await env.engine.handle("r").retry()).result()
        weather.is_bad = False
        # The first was read before the failure, the second after it, and the second is read again.
        assert await (await env.engine.handle("r").retry()).result() == [0, 1, 2]
        await env.check()


async def test_a_crash_at_any_commit_of_a_retry_loses_nothing_that_was_read(fresh: Callable[[], StoreSource]) -> None:
    weather = Weather()

    async def scenario(env: Environment) -> list[Any]:
        weather.is_bad = True
        run = await env.engine.start(reads_after_failing(2), id="r")
        view = None
        for text in ("a", "b"):
            if (view := await env.engine.runs.get("r")) is not None and view.attempt == 1 and view.status != "failed":
                await env.engine.send(NamedEvent("item", text), to="r", key=text)
        if view is not None and view.attempt == 1 and view.status != "failed":
            await env.engine.send(Item(name="big", size=3), to="r", key="big")
        if view is not None and view.attempt == 1:
            with pytest.raises(RunFailed):
                await run.result()
            weather.is_bad = False
            await env.engine.handle("r").retry()
        weather.is_bad = False
        return await run.result()

    report = await run_with_crashes(
        scenario, workflows=[reads_after_failing], store=fresh, resources={Weather: lambda: weather}
    )
    assert report.result == ["done", "a", "b", "big"]


@workflow
async def drops_what_it_read() -> str:
    """After its retry it no longer reads."""
    try:
        return await risky()
    except ConnectionError:
        await receive(Kept)
        raise


async def test_what_a_retried_run_does_not_read_again_goes_where_its_policy_says(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([drops_what_it_read], source, resources={Weather: lambda: weather}) as env:
        run = await env.engine.start(drops_what_it_read(), id="r")
        await env.quiet()
        await env.engine.send(Kept(name="k"), to="r")
        with pytest.raises(RunFailed):
            await run.result()
        weather.is_bad = False
        assert await (await env.engine.handle("r").retry()).result() == "done"
        (letter,) = await env.engine.dead_letters.list()
        assert letter.name == "Kept"


async def test_a_broadcast_that_a_retried_run_does_not_read_again_is_there_for_others(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([drops_what_it_read], source, resources={Weather: lambda: weather}) as env:
        run = await env.engine.start(drops_what_it_read(), id="r")
        await env.quiet()
        await env.engine.send(Kept(name="k"))
        with pytest.raises(RunFailed):
            await run.result()
        weather.is_bad = False
        assert await (await env.engine.handle("r").retry()).result() == "done"
        assert len(await env.engine.events.pending(name="Kept")) == 1


# Time.


@workflow
async def receives() -> str:
    return f"got {await receive('word', timeout=HOUR)}"


@workflow
async def receives_late() -> str:
    """It fails long after its time was up, and in other words."""
    try:
        return f"got {await receive('word', timeout=HOUR)}"
    except TimeoutError as error:
        await sleep(HOUR)
        raise LookupError("nobody spoke") from error


@workflow
async def within_asyncio() -> str:
    async with asyncio.timeout(3600):
        return f"got {await receive('word')}"


@workflow
async def cleans_up() -> str:
    try:
        async with asyncio.timeout(3600):
            await asyncio.sleep(10)
            return f"got {await receive('word')}"
    finally:
        await asyncio.sleep(10)


@workflow
async def waits_for_it() -> str:
    return f"got {await asyncio.wait_for(receive('word'), 3600)}"


@workflow
async def listener() -> str:
    return f"got {await receive('word')}"


@workflow
async def within_child() -> str:
    async with asyncio.timeout(3600):
        return await listener()


@workflow
async def asks() -> str:
    return f"got {await task(queue='desk', schema=str, timeout=HOUR)}"


def waiting_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("waiting_graph")
    graph.node("hear", wait("word"), timeout=3600)
    graph.output("'got ' + nodes.hear")
    return graph


def slow_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("slow_graph", timeout=3600)
    graph.node("hear", wait("word"))
    graph.output("'got ' + nodes.hear")
    return graph


def joining_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("joining_graph")
    graph.node("go", risk_free)
    graph.node("quick", risk_free)
    graph.node("hear", wait("word"))
    graph.node("end", risk_free)
    graph.edge("go", "quick")
    graph.edge("go", "hear")
    for one in ("quick", "hear"):
        graph.edge(one, "end", join=all_of(timeout=3600))
    graph.output("'got ' + nodes.hear")
    return graph


def child_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("child_graph")
    graph.node("hear", child(listener), timeout=3600)
    graph.output("nodes.hear")
    return graph


def human_graph() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("human_graph")
    graph.node("ask", human("desk", schema=str), timeout=3600)
    graph.output("'got ' + nodes.ask")
    return graph


@step
async def risk_free() -> str:
    return "fine"


TIMED: dict[str, Any] = {
    one.name: one
    for one in (
        receives,
        receives_late,
        within_asyncio,
        cleans_up,
        waits_for_it,
        within_child,
        asks,
        waiting_graph(),
        slow_graph(),
        joining_graph(),
        child_graph(),
        human_graph(),
    )
}


async def answer(env: Environment) -> None:
    """Say what the run, its child or its task wait for."""
    if open_tasks := await env.engine.tasks.list(status="open"):
        await env.engine.tasks.answer(open_tasks[0].id, "it")
        return
    for page in ((await env.engine.runs.list(status="suspended")).runs,):
        for view in page:
            if view.workflow == "listener" or len(page) == 1:
                await env.engine.send(NamedEvent("word", "it"), to=view.id)
                return


@pytest.mark.parametrize("name", TIMED)
async def test_a_run_whose_time_was_up_waits_anew_when_it_is_retried(source: StoreSource, name: str) -> None:
    definition = TIMED[name]
    async with Environment([definition, listener], source, autojump_s=None) as env:
        run = await env.engine.start(definition(), id="r")
        for _ in range(2):  # It has all its time again, each time.
            await env.quiet()
            await env.advance(timedelta(hours=3))
            with pytest.raises(RunFailed):
                await run.result()
            await env.advance(MONTH)
            run = await env.engine.handle("r").retry()
        await env.quiet()
        await env.restart()
        await env.advance(timedelta(minutes=50))
        assert (view := await env.engine.runs.get("r")) is not None
        assert view.status == "suspended", view
        await env.restart()  # What it has left is what was left before.
        await env.advance(timedelta(minutes=5))
        assert (view := await env.engine.runs.get("r")) is not None
        assert view.status == "suspended", view
        await env.check()
        await answer(env)
        await env.advance(timedelta(minutes=1))
        assert await env.engine.handle("r").result() == "got it"


@pytest.mark.parametrize("name", TIMED)
async def test_its_new_time_ends_too(source: StoreSource, name: str) -> None:
    definition = TIMED[name]
    async with Environment([definition, listener], source, autojump_s=None) as env:
        run = await env.engine.start(definition(), id="r")
        await env.advance(timedelta(hours=3))
        with pytest.raises(RunFailed):
            await run.result()
        await env.advance(MONTH)
        run = await env.engine.handle("r").retry()
        await env.advance(timedelta(minutes=50))
        await env.restart()
        await env.advance(timedelta(minutes=11))
        if name == "receives_late":
            await env.advance(HOUR)
        with pytest.raises(RunFailed):
            await env.engine.handle("r").result()


@step(retry=Retry.never(), total_timeout=HOUR)
async def takes_long() -> str:
    if resource(Weather).is_bad:
        await resource(VirtualClock).sleep(7200)
    return "done"


@workflow
async def has_a_slow_step() -> str:
    return await takes_long()


async def test_a_step_that_took_too_long_in_all_has_all_its_time_again(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([has_a_slow_step], source, resources={Weather: lambda: weather}) as env:
        await failed(env, has_a_slow_step())
        await env.advance(MONTH)
        weather.is_bad = False
        assert await (await env.engine.handle("r").retry()).result() == "done"


@workflow
async def sleeps_beside() -> str:
    """The time that it sleeps goes on while it has failed: only what ended it begins anew."""
    sleeping = asyncio.ensure_future(sleep(HOUR))
    done = await risky()
    await sleeping
    return done


async def test_a_sleep_that_is_over_by_the_time_of_the_retry_is_over(source: StoreSource) -> None:
    weather = Weather()
    async with Environment([sleeps_beside], source, resources={Weather: lambda: weather}, autojump_s=None) as env:
        await failed(env, sleeps_beside())
        await env.advance(2 * HOUR)
        weather.is_bad = False
        assert await (await env.engine.handle("r").retry()).result() == "done"


async def test_a_deadline_that_has_passed_begins_anew_with_the_retry(source: StoreSource) -> None:
    async with Environment([listener], source, autojump_s=None) as env:
        run = await env.engine.start(listener(), id="r", deadline=HOUR)
        await env.advance(2 * HOUR)
        with pytest.raises(RunFailed):
            await run.result()
        await env.advance(MONTH)
        run = await env.engine.handle("r").retry()
        assert (view := await env.engine.runs.get("r")) is not None
        assert view.deadline is not None
        assert (view.deadline - view.updated_at) == HOUR
        await env.advance(timedelta(minutes=59))
        await env.engine.send(NamedEvent("word", "it"), to="r")
        assert await run.result() == "got it"


async def test_a_deadline_has_the_same_length_in_every_retry(source: StoreSource) -> None:
    async with Environment([listener], source, autojump_s=None) as env:
        run = await env.engine.start(listener(), id="r", deadline=HOUR)
        for _ in range(3):
            await env.advance(MONTH)
            view = await (await run.retry()).view()
            assert view.deadline is not None
            assert view.deadline - view.updated_at == HOUR


async def test_a_deadline_that_was_set_later_begins_anew_with_its_own_length(source: StoreSource) -> None:
    async with Environment([listener], source, autojump_s=None) as env:
        run = await env.engine.start(listener(), id="r", deadline=3 * MONTH)
        await env.advance(MONTH)
        await run.update(deadline=HOUR)
        await run.update(tags={"a": "b"})
        await env.advance(MONTH)
        view = await (await run.retry()).view()
        assert view.deadline is not None
        assert view.deadline - view.updated_at == HOUR


async def test_the_new_deadline_of_a_retried_run_counts(source: StoreSource) -> None:
    async with Environment([listener], source, autojump_s=None) as env:
        run = await env.engine.start(listener(), id="r", deadline=HOUR)
        await env.advance(2 * HOUR)
        with pytest.raises(RunFailed):
            await run.result()
        run = await env.engine.handle("r").retry()
        await env.restart()
        await env.advance(timedelta(minutes=61))
        with pytest.raises(RunFailed):
            await env.engine.handle("r").result()
