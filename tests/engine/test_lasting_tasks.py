"""What an engine does all the time: none of it may end because something went wrong once, least of all in silence."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Limits, sleep, workflow
from perdure.errors import StoreBusy
from perdure.ports import DueRun, Offer, Store, WorkFound
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.storage.postgres import connection, liveness
from perdure.storage.sqlite.thread import DatabaseThread
from perdure.testing import Environment
from perdure.testing.proxy import StoreProxy
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.server import Servers


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


class Faulty(StoreProxy):
    """Fails at some requests in a way that no store should, as often as there are errors in `errors`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.errors: dict[str, list[Exception]] = {}
        self.asked: list[str] = []

    def _fail(self, name: str) -> None:
        self.asked.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop()

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> list[DueRun]:
        self._fail("due_runs")
        return await super().due_runs(offers=offers, before=before, limit=limit)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        self._fail("look")
        return await super().look(engine_id=engine_id, offers=offers, at=at)

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        self._fail("purge")
        return await super().purge(at=at, keys_before=keys_before, limit=limit)


def faulty() -> tuple[Faulty, Callable[[], Store]]:
    store = Faulty(MemoryStore(MemoryDatabase()))
    return store, lambda: store


async def test_runs_that_are_due_are_looked_for_again_whatever_went_wrong() -> None:
    store, source = faulty()
    async with Environment([sleeps], source, autojump_s=None, limits=Limits(live_runs_max=1)) as env:
        for number in range(3):
            await env.engine.start(sleeps(3600), id=f"r-{number}")
        await env.quiet()
        store.errors["due_runs"] = [ValueError("a row that cannot be read")] * 3
        await env.advance(3590)
        assert not store.errors["due_runs"]
        await env.advance(20)
        for number in range(3):
            assert await env.engine.handle(f"r-{number}").result() == "awake"


@pytest.mark.parametrize("request_name", ["look", "purge"])
async def test_what_is_done_regularly_is_done_again_whatever_went_wrong(request_name: str) -> None:
    store, source = faulty()
    async with Environment([sleeps], source, autojump_s=None, poll_s=1.0) as env:
        store.errors[request_name] = [ValueError("no"), ValueError("no")]
        for _ in range(4):
            await env.advance(61)
            await env.quiet()
        assert store.asked.count(request_name) >= 4


async def test_a_task_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("nobody expected this")

    async with Engine("memory://", workflows=[sleeps]) as engine:
        engine.session.background(fails())
        while "a task of the engine failed: ValueError('nobody expected this')" not in caplog.text:
            await asyncio.sleep(0)


async def test_signs_of_life_are_given_whatever_went_wrong_once(
    postgres_servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{postgres_servers.fresh()}&lease=2"
    failures = [ValueError("what no driver should raise")]
    connect = connection.connect

    async def connects(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await connect(*args, **options)

    async with Engine(url, workflows=[sleeps]) as engine, meddler(url) as other:
        count = "select count(*) from heartbeats"
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure heartbeat'"
        beat = "select max(beat_at) from heartbeats"
        monkeypatch.setattr(liveness, "connect", connects)
        while not await other.fetchval(f"select count(*) from ({cut}) as ended"):
            await asyncio.sleep(0.01)
        while "what no driver should raise" not in caplog.text:
            await asyncio.sleep(0.01)
        was = await other.fetchval(beat)
        while await other.fetchval(beat) == was:
            await asyncio.sleep(0.01)
        assert await other.fetchval(count) == 1
        assert await engine.run(sleeps(0)) == "awake"


async def test_all_who_wait_for_a_locked_file_wait_for_it_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "runs.db"
    made: list[int] = []

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, timeout=0.1, isolation_level=None)

    def write(number: int, connection: sqlite3.Connection) -> None:
        made.append(number)
        connection.execute("insert into mine values (1)")

    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("create table mine (id)")
        other.execute("begin immediate")
        thread = DatabaseThread("writer", path, connect)
        await thread.start()
        writes = await asyncio.gather(*(thread.run(partial(write, n)) for n in range(50)), return_exceptions=True)
        assert {type(one) for one in writes} == {StoreBusy}
        assert len(made) < 5  # Else the last one would have waited for 50 timeouts, one after the other.
        other.execute("rollback")
        await thread.run(partial(write, 51))
        await thread.stop()
