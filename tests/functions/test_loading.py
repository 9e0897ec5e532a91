"""Many runs are read from the store at once, and what is wrong with one of them concerns no other."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure.errors import RowDamaged, RunNotFound, StoreBusy
from perdure.models.functions.journal_reader import Loader
from perdure.ports import Journal
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance.base import Author, a_run, a_wait, an_entry, insert
from perdure.testing.proxy import StoreProxy

T = TypeVar("T")

IDS = [f"r-{number}" for number in range(1, 6)]
LARGE = '"' + "x" * 100_000 + '"'


class WatchedStore(StoreProxy):
    """Notes which runs are read together; refuses everything while it is `away`."""

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self.read: list[list[str]] = []
        self.away = False

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self.away:
            request.close()
            raise StoreBusy("away")
        return await request

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        self.read.append([*ids])
        return await super().journals(ids)


@asynccontextmanager
async def five_runs(path: Path) -> AsyncIterator[WatchedStore]:
    store = WatchedStore(SqliteStore(path))
    await store.open()
    try:
        author = await Author.enroll(store)
        journal = [an_entry(run_id) for run_id in IDS]
        waits = {(run_id, "1", 0): a_wait(run_id) for run_id in IDS}
        await author.commit(*[insert(a_run(run_id), LARGE) for run_id in IDS], journal=journal, waits=waits)
        yield store
    finally:
        await store.close()


def stored(run_id: str) -> Journal:
    return Journal(LARGE, [an_entry(run_id)], (a_wait(run_id),))


async def test_who_asks_at_the_same_time_is_served_by_one_read(tmp_path: Path) -> None:
    async with five_runs(tmp_path / "runs.db") as store:
        loader = Loader(store)
        found = await asyncio.gather(*[loader.load(run_id) for run_id in IDS])
        assert found == [stored(run_id) for run_id in IDS]
        assert store.read == [IDS]
        assert await loader.load("r-1") == stored("r-1")


async def test_what_is_wrong_with_one_is_told_to_who_asked_for_it_alone(tmp_path: Path) -> None:
    async with five_runs(tmp_path / "runs.db") as store:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
            db.execute("delete from payloads where run_id = 'r-3'")
            db.commit()
        loader = Loader(store)
        asked = [*IDS, "unknown"]
        found = await asyncio.gather(*[loader.load(run_id) for run_id in asked], return_exceptions=True)
        assert [type(one) for one in found] == [Journal, Journal, RowDamaged, Journal, Journal, RunNotFound]


async def test_a_store_that_is_away_is_told_to_all_and_later_ones_are_served(tmp_path: Path) -> None:
    async with five_runs(tmp_path / "runs.db") as store:
        loader = Loader(store)
        store.away = True
        found = await asyncio.gather(*[loader.load(run_id) for run_id in IDS], return_exceptions=True)
        assert {type(one) for one in found} == {StoreBusy}
        assert len(store.read) == 1
        store.away = False
        assert await loader.load("r-1") == stored("r-1")


async def test_who_no_longer_waits_is_passed_over(tmp_path: Path) -> None:
    async with five_runs(tmp_path / "runs.db") as store:
        loader = Loader(store)
        first, second = (loader.load(run_id) for run_id in IDS[:2])
        first.cancel()
        assert await second == stored("r-2")
        with pytest.raises(asyncio.CancelledError):
            await first
        assert store.read == [["r-2"]]


async def test_closing_ends_the_reading(tmp_path: Path) -> None:
    async with five_runs(tmp_path / "runs.db") as store:
        loader = Loader(store)
        waiting = loader.load("r-1")
        loader.close()
        await asyncio.sleep(0)
        assert store.read == []
        assert not waiting.done()
        waiting.cancel()
