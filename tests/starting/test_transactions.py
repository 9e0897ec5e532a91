"""A run that is started in the caller's own transaction is there with its commit, or never was: on every driver."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from perdure import Client, Engine, Workflow, workflow
from perdure.api.run_handle import RunHandle
from perdure.engine import AnyClient
from perdure.errors import RunExists, RunNotFound
from perdure.kernel.status import Status
from perdure.storage.postgres import PostgresStore, inserted_run_hints
from tests.starting.conftest import Begin, path_of
from tests.starting.transactions import DRIVERS, Transaction
from tests.storage.postgres.meddler import meddler, until_somebody_waits

pytestmark = pytest.mark.parametrize("driver", DRIVERS)

LARGE = "x" * 20_000


@workflow
async def ship(order: str, note: str = "") -> str:
    return f"{order} shipped"


WORKFLOWS: list[Workflow[Any, Any]] = [ship]


async def is_ordered(url: str, order: str) -> bool:
    """Whether the caller's own row is there."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as lite:
            return lite.execute("select 1 from orders where id = ?", [order]).fetchone() is not None
    async with meddler(url) as other:
        found: bool = await other.fetchval("select exists (select 1 from public.orders where id = $1)", order)
        return found


async def start_and_wait(client: AnyClient, transaction: Transaction, order: str, id: str) -> RunHandle[Any]:
    """Start with a connection that may have to wait for another transaction: one that blocks must not do so in the
    event loop, from where that other one is ended."""
    if not transaction.blocks:
        return await client.start(ship(order), id=id, connection=transaction.connection)
    prepared = await client.prepare_start(ship(order), id=id)
    return await asyncio.to_thread(prepared.insert, transaction.connection)


async def test_it_is_there_with_the_commit_and_starts(url: str, begin: Begin, new_id: str) -> None:
    async with Engine(url, workflows=WORKFLOWS), Client(url) as client, begin() as mine:
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        run = await client.start(ship(new_id), id=new_id, connection=mine.connection)
        assert await client.runs.get(new_id) is None
        with pytest.raises(RunNotFound, match="the transaction that it was started in is not committed"):
            await run.result()
        with pytest.raises(RunNotFound, match="commit first"):
            await run.status()
        await mine.commit()
        assert await run.result() == f"{new_id} shipped"
        assert await is_ordered(url, new_id)
        history = await client.handle(new_id).history()
        assert [row.became for row in history.audit] == [Status.CREATED, Status.RUNNING, Status.SUCCEEDED]


async def test_an_engine_starts_its_own_by_name_without_a_look_of_its_own_accord(
    url: str, begin: Begin, new_id: str
) -> None:
    async with Engine(url, workflows=WORKFLOWS, poll_s=3600) as engine, begin() as mine:
        run = await engine.start("ship", {"order": new_id}, connection=mine.connection)
        await mine.commit()
        assert await run.result() == f"{new_id} shipped"


async def test_a_rollback_leaves_nothing(url: str, begin: Begin, new_id: str) -> None:
    async with Client(url) as client, begin() as mine:
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        run = await client.start(ship(new_id, LARGE), id=new_id, tags={"a": new_id}, connection=mine.connection)
        await mine.rollback()
        with pytest.raises(RunNotFound):
            await run.result()
        assert not await is_ordered(url, new_id)
        assert (await client.runs.list(tags={"a": new_id})).runs == []
        # The id is as good as new.
        again = await client.start(ship("another"), id=new_id, connection=mine.connection)
        await mine.commit()
        assert await again.status() == Status.CREATED
        assert await client.handle(new_id).cancel()


async def test_a_savepoint_that_is_rolled_back_takes_only_its_own_starts_with_it(
    url: str, begin: Begin, new_id: str
) -> None:
    async with Client(url) as client, begin() as mine:
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        kept = await client.start(ship(new_id), id=f"{new_id}-kept", connection=mine.connection)
        await mine.execute("savepoint here")
        gone = await client.start(ship(new_id), id=f"{new_id}-gone", connection=mine.connection)
        await mine.execute("rollback to savepoint here")
        await mine.commit()
        assert await kept.status() == Status.CREATED
        with pytest.raises(RunNotFound):
            await gone.status()
        assert await client.handle(kept.id).cancel()


async def test_a_late_commit_starts_it_then(
    url: str, begin: Begin, new_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserted_run_hints, "_PATIENCE_S", -1.0)  # Whoever started it has given up looking.
    async with Engine(url, workflows=WORKFLOWS, poll_s=0.05), Client(url) as client, begin() as mine:
        run = await client.start(ship(new_id), id=new_id, connection=mine.connection)
        if isinstance(client.session.store, PostgresStore):
            while client.session.store._db.lookout._task is None or not client.session.store._db.lookout._task.done():
                await asyncio.sleep(0.001)
        assert await client.runs.get(new_id) is None
        await mine.commit()
        assert await run.result() == f"{new_id} shipped"


async def test_an_id_that_is_taken_is_the_same_run_or_refused(url: str, begin: Begin, new_id: str) -> None:
    async with Client(url) as client, begin() as mine:
        await client.start(ship(new_id, LARGE), id=f"{new_id}-there")
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        run = await client.start(ship(new_id, LARGE), id=f"{new_id}-there", connection=mine.connection)
        with pytest.raises(RunExists):
            await client.start(ship("another"), id=f"{new_id}-there", connection=mine.connection)
        # So is one of the same transaction, which nobody else can see yet.
        await client.start(ship(new_id), id=f"{new_id}-new", connection=mine.connection)
        again = await client.start(ship(new_id), id=f"{new_id}-new", connection=mine.connection)
        with pytest.raises(RunExists):
            await client.start(ship("another"), id=f"{new_id}-new", connection=mine.connection)
        await mine.commit()
        assert await is_ordered(url, new_id)
        for handle in (run, again):
            assert len((await client.handle(handle.id).history()).audit) == 1
            assert await client.handle(handle.id).cancel()


@pytest.mark.parametrize(("ends", "order"), [("commit", "same"), ("commit", "another"), ("rollback", "another")])
async def test_of_two_transactions_with_one_id_the_second_waits_for_the_first(
    url: str, begin: Begin, new_id: str, ends: str, order: str
) -> None:
    async with Client(url) as client, begin() as first, begin() as second:
        await client.start(ship("same"), id=new_id, connection=first.connection)
        waiting = asyncio.ensure_future(start_and_wait(client, second, order, new_id))
        if url.startswith("postgres"):
            async with meddler(url) as other:
                await until_somebody_waits(other)
        await (first.commit() if ends == "commit" else first.rollback())
        if ends == "commit" and order == "another":
            with pytest.raises(RunExists):
                await waiting
        else:
            assert (await waiting).id == new_id
        await second.execute(f"insert into orders (id) values ('{new_id}')")
        await second.commit()
        assert await is_ordered(url, new_id)
        view = await client.runs.get(new_id)
        assert view is not None
        assert view.input == {"order": "same" if ends == "commit" else order}
        assert await client.handle(new_id).cancel()


async def test_a_start_without_a_connection_waits_for_one_with_the_same_id(url: str, begin: Begin, new_id: str) -> None:
    async with Client(url) as client, begin() as mine:
        await client.start(ship(new_id), id=new_id, connection=mine.connection)
        waiting = asyncio.ensure_future(client.start(ship("another"), id=new_id))
        if url.startswith("postgres"):
            async with meddler(url) as other:
                await until_somebody_waits(other)
        await mine.commit()
        with pytest.raises(RunExists):
            await waiting
        assert await client.handle(new_id).cancel()
