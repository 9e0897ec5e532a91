"""A shutdown that is cut short, as by `asyncio.timeout`, in a process that lives on: nothing of the engine looks alive,
and others take its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from perdure import Client, Engine, resource, step, workflow
from perdure.errors import EngineStopped
from perdure.ports import Store
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import Sailing

T = TypeVar("T")


class Work:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()


@step(name="cut.note")
async def note(name: str) -> str:
    work = resource(Work)
    work.begun.set()
    await work.go_on.wait()
    return name


@workflow(name="cut.notes")
async def notes(name: str) -> str:
    return await note(name)


class Slow(StoreProxy):
    """A request of a name, or its end, takes for ever."""

    def __init__(self, inner: Store, name: str) -> None:
        super().__init__(inner)
        self._name = name
        self.asked = asyncio.Event()

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if getattr(request, "__name__", "") != self._name:
            return await super()._through(request)
        request.close()
        self.asked.set()
        never: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        return await never


async def cut_short(shutdown: Coroutine[Any, Any, None], moment: asyncio.Event | None) -> None:
    ending = asyncio.ensure_future(shutdown)
    if moment is not None:
        await moment.wait()
    else:
        for _ in range(5):
            await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending


async def taken_over(engine: Engine, ships: Sailing) -> None:
    """Another engine ends the run, and the first one is of no use any more."""
    work = Work()
    work.go_on.set()
    async with ships() as fleet:
        other = await fleet.engine([notes], resources={Work: lambda: work})
        assert await other.handle("r").result() == "r"
        assert len(await other.engines.list()) == 1
    with pytest.raises(EngineStopped):
        await engine.start(notes("s"))
    await asyncio.wait_for(engine.until_stopped(), 30)
    await engine.shutdown()


async def with_a_run(store: Store, work: Work) -> Engine:
    engine = Engine(store, workflows=[notes], resources={Work: lambda: work})
    await engine.open()
    await engine.start(notes("r"), id="r")
    await work.begun.wait()
    return engine


async def test_a_shutdown_that_is_cut_while_steps_run_leaves_its_runs_to_others(
    make_store: Callable[[], Store], fleet: Sailing
) -> None:
    engine = await with_a_run(make_store(), Work())
    await cut_short(engine.shutdown(grace=3600), None)
    await taken_over(engine, fleet)


async def test_a_shutdown_that_is_cut_while_it_signs_off_leaves_its_runs_to_others(
    make_store: Callable[[], Store], fleet: Sailing
) -> None:
    store = Slow(make_store(), "retire")
    engine = await with_a_run(store, Work())
    await cut_short(engine.shutdown(grace=0), store.asked)
    await taken_over(engine, fleet)


async def test_a_client_whose_shutdown_is_cut_leaves_no_sign_of_life(make_store: Callable[[], Store]) -> None:
    store = Slow(make_store(), "retire")
    client = Client(store)
    await client.open()
    await cut_short(client.shutdown(), store.asked)
    async with Client(make_store()) as other:
        while len(await other.engines.list()) > 1:
            await other.engines.mark_dead()
            await asyncio.sleep(0.01)


async def test_a_store_whose_closing_is_cut_gives_no_sign_of_life(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await store.open()
    await store.enroll(engine_id="e-1", host="h", pid=1, workflows=[], at=1)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    other = make_store()
    await other.open()
    while await other.mark_dead_engines() != ["e-1"]:
        await asyncio.sleep(0.01)
    assert await other.engines(living=True) == []
    await other.close()
