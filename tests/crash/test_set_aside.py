"""A damaged run is set aside: the process dies around it, the store is away at that moment, and nobody else suffers."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from perdure import Engine, Limits, resource, step, workflow
from perdure.errors import RowDamaged, StoreBusy, StoreError, StoreMisconfigured
from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase
from perdure.testing import Environment, Point, check_store
from perdure.testing.environment import StoreSource
from perdure.testing.faults import DEADLY
from perdure.testing.proxy import StoreProxy
from tests.crash.test_claims import FirstLife
from tests.fleet.conftest import until
from tests.storage.postgres.meddler import meddler

T = TypeVar("T")

IMPOSSIBLE = 2**62
IDS = ["good-1", "bad", "good-2"]


class Bodies:
    """What steps do: in an engine that is to be killed, none comes to an end."""

    def __init__(self, *, is_hanging: bool = False) -> None:
        self.begun: list[str] = []
        self.is_hanging = is_hanging

    async def enter(self, name: str) -> None:
        self.begun.append(name)
        if self.is_hanging:
            await asyncio.Event().wait()


@step(name="set_aside.note")
async def note(name: str) -> str:
    await resource(Bodies).enter(name)
    return name


@workflow(name="set_aside.notes")
async def notes(name: str) -> str:
    return await note(name)


@workflow(name="set_aside.other")
async def other() -> None: ...


async def put_started_at(source: StoreSource, value: int | None) -> int | None:
    """Change one cell of the run `bad`; what was there."""
    if not isinstance(source, str):
        assert isinstance(source, partial)
        database: MemoryDatabase = source.args[0]
        stored = database.runs["bad"]
        was = stored.run.started_at
        database.runs["bad"] = replace(stored, run=replace(stored.run, started_at=value))
        return was
    if source.startswith("sqlite"):
        with closing(sqlite3.connect(source.removeprefix("sqlite:///"))) as file, file:
            (found,) = file.execute("select started_at from runs where id = 'bad'").fetchone()
            file.execute("update runs set started_at = ? where id = 'bad'", (value,))
            return int(found)
    async with meddler(source) as connection:
        before: int = await connection.fetchval("select started_at from runs where id = 'bad'")
        await connection.execute("update runs set started_at = $1 where id = 'bad'", value)
        return before


@asynccontextmanager
async def first_life(source: StoreSource) -> AsyncGenerator[tuple[Environment, int | None]]:
    """An engine that is to be killed amid its runs, one of which is damaged by now; what stood in its row."""
    bodies = Bodies(is_hanging=True)
    async with Environment([notes], source, autojump_s=None, resources={Bodies: lambda: bodies}) as env:
        for run_id in IDS:
            await env.engine.start(notes(run_id), id=run_id)
        while len(bodies.begun) < len(IDS):
            await asyncio.sleep(0)
        yield env, await put_started_at(source, IMPOSSIBLE)
        env.kill()


async def is_held_once(engine: Engine) -> None:
    view = await engine.runs.get("bad")
    assert view is not None
    assert view.hold is not None
    assert (view.hold.kind, view.owner) == ("blocked", None)
    assert "runs.started_at of row 'bad'" in view.hold.reason
    assert [row.became for row in await engine.handle("bad").audit()].count("blocked") == 1


async def others_go_on(engine: Engine, bodies: Bodies) -> None:
    for run_id in ("good-1", "good-2"):
        assert await engine.handle(run_id).result() == run_id
    assert sorted(bodies.begun) == ["good-1", "good-2"]


async def goes_on_once_it_is_mended(engine: Engine, source: StoreSource, was: int | None, bodies: Bodies) -> None:
    await put_started_at(source, was)
    await engine.handle("bad").resume()
    assert await engine.handle("bad").result() == "bad"
    assert sorted(bodies.begun) == sorted(IDS)


@pytest.mark.parametrize("asked", [False, True], ids=["when it is claimed", "when something is asked of it"])
@pytest.mark.parametrize("point", sorted(DEADLY))
async def test_a_crash_around_it_leaves_a_run_that_is_held_once_and_can_be_mended(
    point: Point, asked: bool, source: StoreSource
) -> None:
    async with first_life(source) as (_, was):
        pass
    bodies = Bodies()
    doom = FirstLife("set_aside", point)
    doom.env = env = Environment(
        [other if asked else notes], source, autojump_s=None, watch=doom, resources={Bodies: lambda: bodies}
    )
    async with env:
        if asked:
            asking = asyncio.ensure_future(env.engine.handle("bad").pause())
            await env.death()
            asking.cancel()
            if point != "before":
                await env.restart()
                with pytest.raises(RowDamaged):
                    await env.engine.handle("bad").pause()
        else:
            await env.death()
        await env.restart([notes])
        assert doom.struck == 1
        await is_held_once(env.engine)
        await others_go_on(env.engine, bodies)
        await goes_on_once_it_is_mended(env.engine, source, was, bodies)
        await env.check()


class Failing(StoreProxy):
    """Cannot set anything aside, a few times: it is refused before it is written, or its answer is lost."""

    def __init__(self, inner: Store, error: StoreError, *, is_written: bool, times: int) -> None:
        super().__init__(inner)
        self._error = error
        self._is_written = is_written
        self.times = times

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if getattr(request, "__name__", "") != "set_aside" or not self.times:
            return await super()._through(request)
        self.times -= 1
        if self._is_written:
            await request
        request.close()
        raise self._error


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("error", [StoreBusy("away"), StoreMisconfigured("unfit")], ids=["away", "unfit"])
async def test_runs_claimed_with_it_go_on_if_the_store_fails_at_that_moment(
    error: StoreError, is_written: bool, source: StoreSource, make_store: Callable[[], Store]
) -> None:
    """The engine is there already: nobody else could claim what it has claimed."""
    bodies = Bodies()
    options: dict[str, Any] = {"poll_s": 0.05, "resources": {Bodies: lambda: bodies}}
    times = 1 if is_written else 3  # What is written is not asked for again.
    async with first_life(source) as (env, was):
        store = Failing(make_store(), error, is_written=is_written, times=times)
        limits = Limits(restart_first_s=0.01, restarts_max=100, grace_s=0)
        async with Engine(store, workflows=[notes], limits=limits, **options) as engine:
            assert store.times == times  # Nothing was orphaned yet.
            env.kill()

            async def is_held() -> bool:
                view = await engine.runs.get("bad")
                return view is not None and view.owner is None and not store.times

            await others_go_on(engine, bodies)
            await until(is_held)
            await is_held_once(engine)
            await goes_on_once_it_is_mended(engine, source, was, bodies)
            await check_store(engine.session.store)
