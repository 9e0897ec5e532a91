"""Engines that are forgotten, and die or kill one another over it: no run is lost with a row, and no row stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, Limits, resource, step, workflow
from perdure.ports import ENGINES_KEPT_US, Store
from perdure.storage import open_store
from perdure.storage.postgres.queries import Query
from perdure.storage.postgres.store import PostgresStore
from perdure.testing import Point, check_store
from perdure.testing.conformance.base import Author, a_run, insert
from perdure.testing.control import kill
from perdure.testing.faults import DEADLY
from tests.crash.requests import FaultyRequest

LONG_AFTER = 10 * ENGINES_KEPT_US
RETIRING, PURGING = 2, 5  # statements, each of which is a transaction of its own on Postgres


class Work:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.has_begun = asyncio.Event()
        self.is_hanging = True


@step(name="forgetting.note")
async def note(name: str) -> str:
    work = resource(Work)
    work.begun.append(name)
    work.has_begun.set()
    if work.is_hanging:
        await asyncio.Event().wait()
    return name


@workflow(name="forgetting.notes")
async def notes(name: str) -> str:
    return await note(name)


class Death:
    """Comes to an engine at a moment of its store's choosing, as a kill of its process would."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.engine: Engine | None = None

    def __call__(self) -> None:
        self.came.set()
        if self.engine is not None:
            kill(self.engine)


class BetweenStatements:
    """Has a Postgres store die before one of its next statements, or after it."""

    def __init__(self, store: PostgresStore, number: int, *, is_done: bool, death: Death) -> None:
        self._write = store._db.write
        self._number = number
        self._is_done = is_done
        self._death = death
        patched: Any = store._db
        patched.write = self.write

    async def write(self, query: Query, **variables: Any) -> Any:
        self._number -= 1
        if self._number:
            return await self._write(query, **variables)
        if self._is_done:
            await self._write(query, **variables)
        asyncio.get_running_loop().call_soon(self._death)
        return await asyncio.get_running_loop().create_future()


def options(work: Work) -> dict[str, Any]:
    return {"workflows": [notes], "resources": {Work: lambda: work}, "poll_s": 0.05, "limits": Limits(grace_s=0)}


async def sign_off_and_die(engine: Engine, death: Death) -> None:
    death.engine = engine
    ending = asyncio.ensure_future(engine.shutdown())
    await death.came.wait()
    ending.cancel()
    await asyncio.wait([ending])


async def goes_on_and_is_forgotten(make_store: Callable[[], Store], left: str) -> None:
    """The next engine does what there is to do, and in time nobody knows of the one that died."""
    work = Work()
    work.is_hanging = False
    async with Engine(make_store(), **options(work)) as engine:
        assert await engine.handle("r").result() == "r"
        assert work.begun == ["r"]
        me = engine.session.coordinator.engine.id
        store = make_store()
        await store.open()
        await store.mark_dead_engines()
        for at in (LONG_AFTER, 2 * LONG_AFTER):
            await store.purge(at=at, keys_before=0, limit=10)
        assert [one.id for one in await store.engines()] == [me]
        assert left != me
        assert await check_store(store) == 1
        await store.close()


async def begun(engine: Engine, work: Work) -> str:
    await engine.start(notes("r"), id="r")
    await work.has_begun.wait()
    return engine.session.coordinator.engine.id


@pytest.mark.parametrize("point", sorted(DEADLY))
async def test_a_crash_around_its_signing_off_leaves_its_run_to_others(
    point: Point, make_store: Callable[[], Store]
) -> None:
    work, death = Work(), Death()
    store = FaultyRequest(make_store(), "retire", point, death)
    engine = Engine(store, **options(work))
    await engine.open()
    left = await begun(engine, work)
    await sign_off_and_die(engine, death)
    assert store.struck == 1
    await goes_on_and_is_forgotten(make_store, left)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, RETIRING + 1))
async def test_a_crash_between_its_retirement_and_the_deletion_of_its_row_leaves_its_run_to_others(
    number: int, is_done: bool, empty_schema: Callable[[], str]
) -> None:
    url = empty_schema()
    work, death = Work(), Death()
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    engine = Engine(store, **options(work))
    await engine.open()
    left = await begun(engine, work)
    await engine.session.coordinator.stop()
    BetweenStatements(store, number, is_done=is_done, death=death)
    await sign_off_and_die(engine, death)
    await goes_on_and_is_forgotten(lambda: open_store(url), left)


async def leave_owner_and_idle(make_store: Callable[[], Store]) -> None:
    """Two engines that have died: one with a run, and one without."""
    authors: list[Author] = []
    for engine_id in ("owner", "idle"):
        store = make_store()
        await store.open()
        authors.append(await Author.enroll(store, engine_id))
    await authors[0].commit(insert(a_run("r", owner="owner")))
    for author in authors:
        author.store.abandon()


async def is_forgotten_by_the_next(make_store: Callable[[], Store]) -> None:
    store = make_store()
    await store.open()
    third = await Author.enroll(store, "third")
    assert "second" in await store.mark_dead_engines()
    await store.purge(at=LONG_AFTER + 1, keys_before=0, limit=10)
    known = {one.id for one in await store.engines()}
    assert {"owner", "third"} <= known <= {"owner", "second", "third"}  # One that owns a run is known.
    assert (await store.load(["r"]))["r"].forsaken
    assert await third.claim() == ["r"]
    await store.purge(at=3 * LONG_AFTER, keys_before=0, limit=10)
    assert [one.id for one in await store.engines()] == ["third"]
    await store.close()


@pytest.mark.parametrize("point", sorted(DEADLY))
async def test_a_crash_while_the_dead_are_forgotten_loses_no_run(point: Point, make_store: Callable[[], Store]) -> None:
    await leave_owner_and_idle(make_store)
    death = Death()
    store = make_store()
    await store.open()
    await Author.enroll(store, "second")
    assert sorted(await store.mark_dead_engines()) == ["idle", "owner"]
    await store.purge(at=1, keys_before=0, limit=10)  # From now on they are dead for a while.
    dying = FaultyRequest(store, "purge", point, death)
    purging = asyncio.ensure_future(dying.purge(at=LONG_AFTER, keys_before=0, limit=10))
    await death.came.wait()
    purging.cancel()
    store.abandon()
    await is_forgotten_by_the_next(make_store)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, PURGING + 1))
async def test_a_crash_between_what_is_forgotten_loses_no_run(
    number: int, is_done: bool, empty_schema: Callable[[], str]
) -> None:
    url = empty_schema()
    await leave_owner_and_idle(lambda: open_store(url))
    death = Death()
    store = open_store(url)
    assert isinstance(store, PostgresStore)
    await store.open()
    await Author.enroll(store, "second")
    assert sorted(await store.mark_dead_engines()) == ["idle", "owner"]
    await store.purge(at=1, keys_before=0, limit=10)
    BetweenStatements(store, number, is_done=is_done, death=death)
    purging = asyncio.ensure_future(store.purge(at=LONG_AFTER, keys_before=0, limit=10))
    await death.came.wait()
    purging.cancel()
    store.abandon()
    await is_forgotten_by_the_next(lambda: open_store(url))
