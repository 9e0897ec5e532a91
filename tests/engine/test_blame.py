"""A run is blamed for the death of its process only if its code was running: those that wait are never poison."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from perdure import Event, Retry, compensate, receive, resource, sleep, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import RunFailed
from perdure.graph import Graph, timer
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

DEATHS = 8  # More than make a run poison.


class Undo(Event):
    pass


class Attempts:
    def __init__(self) -> None:
        self.made = 0
        self.is_well = False


@workflow
async def undo_when_told() -> None:
    await receive(Undo)


@workflow
async def undone_by_a_child() -> None:
    await compensate(undo_when_told())
    raise ValueError("undo all")


@step(retry=Retry(attempts=3, initial=timedelta(hours=1), jitter=0))
async def undo_in_vain() -> None:
    attempts = resource(Attempts)
    attempts.made += 1
    if not attempts.is_well:
        raise OSError("not now")


@workflow
async def undone_by_a_step() -> None:
    await compensate(undo_in_vain())
    raise ValueError("undo all")


async def die_often(env: Environment, run_id: str, status: str) -> None:
    for _ in range(DEATHS):
        await env.quiet()
        view = await env.engine.runs.get(run_id)
        assert view is not None
        assert (view.status, view.recoveries, view.hold) == (status, 0, None)
        await env.restart()
    await env.quiet()


async def ended_as(env: Environment, run_id: str, status: str) -> None:
    try:
        await env.engine.handle(run_id).result()
    except RunFailed:
        pass
    view = await env.engine.runs.get(run_id)
    assert view is not None
    assert view.status == status
    await env.check()


async def test_a_rollback_that_waits_for_a_child_is_not_blamed(source: StoreSource) -> None:
    async with Environment([undone_by_a_child, undo_when_told], source, autojump_s=None) as env:
        await env.engine.start(undone_by_a_child(), id="r-1")
        await die_often(env, "r-1", "rolling_back")
        await env.engine.send(Undo())
        await ended_as(env, "r-1", "rolled_back")


async def test_a_rollback_that_waits_for_its_next_attempt_is_not_blamed(source: StoreSource) -> None:
    attempts = Attempts()
    resources = {Attempts: lambda: attempts}
    async with Environment([undone_by_a_step], source, autojump_s=None, resources=resources) as env:
        await env.engine.start(undone_by_a_step(), id="r-1")
        await die_often(env, "r-1", "rolling_back")
        assert attempts.made == 1
        attempts.is_well = True
        await env.advance(timedelta(hours=1))
        await ended_as(env, "r-1", "rolled_back")
        assert attempts.made == 2


async def test_a_rollback_whose_step_kills_its_process_is_blamed_after_a_pause_too(source: StoreSource) -> None:
    hangs = asyncio.Event()
    lives: list[str] = []

    @step(retry=Retry(attempts=9, initial=timedelta(hours=1), jitter=0))
    async def undo() -> None:
        lives.append("one")
        if len(lives) == 1:
            raise OSError("not now")
        hangs.set()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await compensate(undo())
        raise ValueError("undo all")

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        advancing = asyncio.ensure_future(env.advance(timedelta(hours=1)))
        await hangs.wait()
        hangs.clear()
        await env.restart()
        await advancing
        await hangs.wait()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.status, view.recoveries) == ("rolling_back", 1)


async def test_a_graph_that_waits_is_not_blamed(source: StoreSource) -> None:
    graph = Graph("waits")
    graph.node("wait", timer(timedelta(days=1)))
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r-1")
        await die_often(env, "r-1", "suspended")


async def test_a_rollback_of_an_operation_that_waits_for_another_is_not_blamed(source: StoreSource) -> None:
    orders, people = Topic("orders", str), Topic("people", str)
    place = Operation("place", orders)
    undone: list[str] = []

    @place.step
    async def ask(scope: Scope, order: str) -> None:
        await scope.emit(people, order)

    @ask.rollback
    async def put_back(scope: Scope, order: str, cause: Any) -> None:
        undone.append(order)

    @place.step
    async def fail(scope: Scope, order: str) -> None:
        raise ValueError("undo all")

    async with Environment([place], source, autojump_s=None) as env:
        await env.engine.topics.register(people, "clerk")
        await env.engine.emit(orders, "o-1")
        await env.quiet()
        (parent,) = (await env.engine.runs.list(workflow="place")).runs
        (person,) = (await env.engine.runs.list(workflow="clerk")).runs
        await env.engine.topics.complete(person.id)
        await die_often(env, parent.id, "rolling_back")
        assert undone == []
        await env.engine.topics.complete_rollback(person.id)
        await env.quiet()
        assert undone == ["o-1"]
        assert await env.engine.handle(parent.id).status() == "rolled_back"
        await env.check()


async def test_a_rollback_of_an_operation_that_waits_for_its_next_attempt_is_not_blamed(source: StoreSource) -> None:
    orders = Topic("orders", str)
    place = Operation("place", orders)
    attempts: list[str] = []

    @place.step
    async def take(scope: Scope, order: str) -> None: ...

    @take.rollback(retry=Retry(attempts=3, initial=timedelta(hours=1), jitter=0))
    async def put_back(scope: Scope, order: str, cause: Any) -> None:
        attempts.append(order)
        if len(attempts) == 1:
            raise OSError("not now")

    @place.step
    async def fail(scope: Scope, order: str) -> None:
        raise ValueError("undo all")

    async with Environment([place], source, autojump_s=None) as env:
        await env.engine.emit(orders, "o-1")
        (run,) = (await env.engine.runs.list(workflow="place")).runs
        await die_often(env, run.id, "rolling_back")
        assert attempts == ["o-1"]
        await env.advance(timedelta(hours=1))
        assert attempts == ["o-1", "o-1"]
        assert await env.engine.handle(run.id).status() == "rolled_back"


async def test_a_rollback_of_an_operation_whose_code_kills_its_process_is_blamed(source: StoreSource) -> None:
    orders = Topic("orders", str)
    place = Operation("place", orders)
    hangs = asyncio.Event()

    @place.step
    async def take(scope: Scope, order: str) -> None: ...

    @take.rollback
    async def put_back(scope: Scope, order: str, cause: Any) -> None:
        hangs.set()
        await asyncio.Event().wait()

    @place.step
    async def fail(scope: Scope, order: str) -> None:
        raise ValueError("undo all")

    async with Environment([place], source, autojump_s=None) as env:
        await env.engine.emit(orders, "o-1")
        (run,) = (await env.engine.runs.list(workflow="place")).runs
        for death in range(3):
            await hangs.wait()
            hangs.clear()
            view = await env.engine.runs.get(run.id)
            assert view is not None
            assert (view.status, view.recoveries) == ("rolling_back", death)
            await env.restart()


async def test_a_run_that_sleeps_is_not_blamed(source: StoreSource) -> None:
    @workflow
    async def flow() -> None:
        await sleep(60)

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await die_often(env, "r-1", "suspended")
        await env.advance(timedelta(minutes=1))
        await env.engine.handle("r-1").result()
