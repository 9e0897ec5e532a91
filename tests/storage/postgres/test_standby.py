"""What replication and failover do to a store, shown on one server. tests/fleet/test_failover.py has two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from perdure import Engine, step, workflow
from perdure.errors import OutcomeUnknown, StoreBusy
from perdure.storage import open_store
from perdure.storage.postgres import PostgresStore
from perdure.testing.conformance.base import a_run, insert
from tests.fleet.conftest import until
from tests.storage.postgres.meddler import author_on, meddler
from tests.storage.postgres.server import PostgresServer

CALLS: list[str] = []


@step
async def pack(order: str) -> str:
    CALLS.append(order)
    return f"{order} packed"


@workflow
async def ship(order: str) -> str:
    return await pack(order)


@pytest.fixture
def lonely() -> Generator[PostgresServer]:
    """A server of our own, that will wait for a standby that there is not."""
    server = PostgresServer(18)
    yield server
    server.end()


@asynccontextmanager
async def probing(url: str, other: Any) -> AsyncGenerator[asyncio.Future[Any]]:
    """Once commits wait for a standby: the processes of a server learn of a new setting one after the other."""
    async with meddler(url) as connection:
        pid = connection.get_server_pid()
        waiting = "select wait_event = 'SyncRep' from pg_stat_activity where pid = $1"
        while True:
            probe = asyncio.ensure_future(connection.execute("insert into probes values (1)"))
            while not probe.done() and not await other.fetchval(waiting, pid):
                await asyncio.sleep(0.005)
            if not probe.done():
                break
        yield probe


async def test_what_no_standby_has_confirmed_is_not_shown_to_anybody(lonely: PostgresServer) -> None:
    """Who asks a server to cancel such a commit has it give up waiting: a failover would lose what all can see."""
    url = f"{lonely.url}?schema=shop&lease=3"
    async with AsyncExitStack() as stack:
        author = await stack.enter_async_context(author_on(url))
        other = await stack.enter_async_context(meddler(url))
        await author.commit(insert(a_run("r-1")))
        await other.execute("create table probes (number int)")
        await other.execute("alter system set synchronous_standby_names = 'nobody'")
        await other.execute("select pg_reload_conf()")
        probe = await stack.enter_async_context(probing(url, other))
        waiting = (
            "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and application_name like '%writer'"
        )
        batch = author.batch(insert(a_run("r-2")))
        with pytest.raises(OutcomeUnknown):
            await author.store.commit(batch)
        assert await other.fetchval(waiting) == 1
        assert (await author.store.load(["r-1", "r-2"])).keys() == {"r-1"}
        await other.execute("alter system reset synchronous_standby_names")
        await other.execute("select pg_reload_conf()")
        while await other.fetchval(waiting):
            await asyncio.sleep(0.01)
        assert (await author.store.load(["r-2"])).keys() == {"r-2"}
        await probe


async def test_a_connection_to_what_is_no_primary_any_more_is_given_up(url: str) -> None:
    async with author_on(url) as author:
        await author.commit(insert(a_run("r-1")))
        store = cast(PostgresStore, author.store)
        async with store._db.writer.use() as connection:
            await connection.execute("set default_transaction_read_only = on")
        batch = author.batch(insert(a_run("r-2")))
        with pytest.raises(StoreBusy):
            await store.commit(batch)
        assert not (await store.commit(batch)).landed


async def test_a_standby_is_no_store(lonely: PostgresServer) -> None:
    url = f"{lonely.url}?schema=shop"
    async with meddler(url) as other:
        await other.execute("alter database postgres set default_transaction_read_only = on")
    with pytest.raises(StoreBusy, match="wait for a primary"):
        await open_store(url).open()


@pytest.mark.parametrize("lost", ["batch", "engine"])
async def test_an_engine_at_rest_notices_that_the_store_went_back_and_goes_on_with_what_is_there(
    url: str, caplog: pytest.LogCaptureFixture, lost: str
) -> None:
    CALLS.clear()
    url = url.replace("lease=60", "lease=1")
    async with Engine(url, workflows=[ship], poll_s=0.1) as engine, meddler(url) as other:
        assert await engine.run(ship("o-1"), id="r-1") == "o-1 packed"
        me = (await engine.engines.list())[0].id
        # The run as it was when it had just begun, and the engine before it has done anything else.
        async with other.transaction():
            await other.execute("delete from journal")
            await other.execute("delete from audit where seq > 1")
            await other.execute(
                "update runs set status = 'running', version = 1, output = null, completed_at = null, owner = $1", me
            )
            if lost == "batch":
                await other.execute("update engines set batch = 1 where id = $1", me)
            else:
                await other.execute("update runs set owner = null")
                await other.execute("delete from engines where id = $1", me)
                await other.execute("delete from heartbeats where engine_id = $1", me)

        async def is_done() -> bool:
            found = await engine.runs.get("r-1")
            return found is not None and found.status == "succeeded"

        await until(is_done)
        assert CALLS == ["o-1", "o-1"]
        assert [one.alive for one in await engine.session.store.engines()] == [False, True][lost == "engine" :]
    expected = "the store went back" if lost == "batch" else "does not know engine"
    assert expected in caplog.text
    assert "registering anew" in caplog.text
