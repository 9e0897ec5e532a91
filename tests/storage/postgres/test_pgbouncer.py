"""Through PgBouncer in transaction mode, which takes another session for each transaction.

What needs no PgBouncer to be seen is tested without: statements need nothing that a session would have to keep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from urllib.parse import quote

import asyncpg
import pytest

from perdure import Engine, Event, current_step, receive, step, workflow
from perdure.errors import Misuse, StoreBroken, StoreBusy
from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.postgres import PostgresStore
from perdure.testing.conformance import StoreConformance
from perdure.testing.conformance.base import a_run, an_event, insert, update, waits_for
from tests.storage.postgres.bouncer import PgBouncer
from tests.storage.postgres.meddler import author_on, meddler
from tests.storage.postgres.server import Servers


class Paid(Event):
    amount: int


@workflow
async def is_paid(number: int) -> int:
    paid = await receive(Paid)
    return number + paid.amount


@step(transactional=True)
async def note(number: int) -> int:
    rows = current_step().connection
    return int(await rows.fetchval("insert into public.notes (number) values ($1) returning number", number))


@workflow
async def notes(count: int) -> int:
    return sum([await note(number) for number in range(count)])


# ---------------------------------------------------------------------------------------------------------------------
# Without PgBouncer


def test_the_options() -> None:
    direct = "postgresql://me:secret@db:5432/shop?sslmode=require"
    store = open_store(f"postgresql://me:secret@pool:6432/shop?direct={quote(direct, safe='')}")
    assert isinstance(store, PostgresStore)
    assert store.address.is_pooled
    assert (store.address.direct.url, store.address.direct.is_pooled) == (direct, False)
    assert "secret" not in f"{store.address!r} {store.address.direct!r}"
    alone = open_store("postgresql://pool:6432/shop?pgbouncer=true")
    assert isinstance(alone, PostgresStore)
    assert alone.address.direct.is_pooled
    assert alone.poll_s < store.poll_s


@pytest.mark.parametrize(
    "options", ["pgbouncer=perhaps", "direct=db:5432", "direct=postgresql%3A%2F%2Fme%3Ase%2Fcret%40h"]
)
def test_options_that_make_no_sense(options: str) -> None:
    with pytest.raises(Misuse) as caught:
        open_store(f"postgresql://pool:6432/shop?{options}")
    assert "cret" not in str(caught.value)


async def test_nothing_is_prepared_and_no_session_keeps_a_setting(url: str) -> None:
    async with author_on(f"{url}&pgbouncer=true") as author:
        await author.commit(insert(a_run(owner=author.id)))
        await author.exchange(events=[an_event()], waits=[waits_for("r-1")])
        await author.claim()
        store = author.store
        assert isinstance(store, PostgresStore)
        for lane in (store._db.writer, store._db.lanes._lanes[0]):
            async with lane.use() as connection:
                assert await connection.fetch("select name from pg_prepared_statements where name <> ''") == []
                assert await connection.fetchval("show search_path") == '"$user", public'
                assert await connection.fetchval("show lock_timeout") == "0"
                assert await connection.fetchval("show enable_seqscan") == "on"


@pytest.mark.parametrize("is_matched", [False, True])
async def test_a_lock_is_not_waited_for_without_end(url: str, is_matched: bool) -> None:
    async with author_on(f"{url.replace('lease=60', 'lease=4')}&pgbouncer=true") as author, meddler(url) as other:
        await author.commit(insert(a_run(owner=author.id)))
        async with other.transaction():
            await other.execute("select 1 from runs for update")
            events = {"events": [an_event(number=1)], "numbered": 1, "pending_max": {"e-1": 9}} if is_matched else {}
            batch = author.batch(update(a_run(owner=author.id)), **events)
            with pytest.raises(StoreBusy, match="lock timeout"):
                await author.store.commit(batch)
        assert not (await author.store.commit(batch)).landed


async def test_who_rests_inside_a_transaction_is_cut_off(url: str) -> None:
    async with author_on(f"{url}&pgbouncer=true") as author:
        store = author.store
        assert isinstance(store, PostgresStore)
        async with store._db.lanes.use() as connection:
            await connection.execute("begin")
            assert await connection.fetchval("show idle_in_transaction_session_timeout") == "30s"
            await connection.execute("rollback")


async def test_engines_work_though_no_hint_reaches_them(url: str) -> None:
    url = f"{url}&pgbouncer=true"
    async with Engine(url, workflows=[is_paid]) as one, Engine(url, workflows=[]) as other:
        run = await one.start(is_paid(1), id="r-1")
        await other.send(Paid(amount=2), to="r-1")
        assert await run.result() == 3


# ---------------------------------------------------------------------------------------------------------------------
# With it


@pytest.fixture(scope="module")
def bouncer(postgres_servers: Servers) -> Iterator[PgBouncer]:
    made = PgBouncer(postgres_servers.running(18))
    yield made
    made.end()


def through(bouncer: PgBouncer, url: str) -> str:
    return f"{bouncer.url}?{url.partition('?')[2]}"


@pytest.mark.soak
class TestThroughPgBouncer(StoreConformance):
    fails_in_steps = ("select pg_terminate_backend(pg_backend_pid())",)

    @pytest.fixture(autouse=True)
    def database(self, postgres_servers: Servers, bouncer: PgBouncer) -> None:
        url = postgres_servers.fresh()
        asyncio.run(_prepare(url))
        self.url = f"{through(bouncer, url)}&direct={quote(url.partition('?')[0], safe='')}"

    def make_store(self) -> Store:
        return open_store(self.url)


async def _prepare(url: str) -> None:
    """Directly, so that PgBouncer's own way is tested by one test and not by all."""
    store = open_store(url)
    await store.open()
    await store.close()


@pytest.mark.soak
async def test_a_schema_is_made_through_pgbouncer(url: str, bouncer: PgBouncer) -> None:
    async with author_on(f"{through(bouncer, url)}&pgbouncer=true") as author:
        await author.commit(insert(a_run()))


@pytest.mark.soak
async def test_who_does_not_say_that_it_is_pgbouncer_is_told_to(url: str, bouncer: PgBouncer) -> None:
    with pytest.raises(StoreBroken, match="pgbouncer=true"):
        await open_store(through(bouncer, url)).open()


@pytest.mark.soak
async def test_who_does_not_say_so_is_told_by_one_that_ignores_settings_too(
    url: str, postgres_servers: Servers
) -> None:
    names = "search_path, default_transaction_isolation, jit, plan_cache_mode, enable_seqscan, enable_hashjoin"
    bouncer = PgBouncer(postgres_servers.running(18), ignored=f"{names}, enable_mergejoin")
    try:
        with pytest.raises(StoreBroken, match="pgbouncer=true"):
            await open_store(through(bouncer, url)).open()
    finally:
        bouncer.end()


@pytest.mark.soak
async def test_hints_and_heartbeats_take_the_direct_way(url: str, bouncer: PgBouncer) -> None:
    pooled = f"{through(bouncer, url)}&direct={quote(url.partition('?')[0], safe='')}"
    async with Engine(pooled, workflows=[is_paid], poll_s=60) as one, Engine(pooled, workflows=[], poll_s=60) as other:
        run = await one.start(is_paid(1), id="r-1")
        await other.send(Paid(amount=2), to="r-1")
        assert await run.result() == 3
        async with meddler(url) as third:
            rows = await third.fetch("select distinct application_name, client_port from pg_stat_activity")
            assert {"perdure listener", "perdure heartbeat"} <= {row[0] for row in rows}


@pytest.mark.soak
@pytest.mark.parametrize("is_alone", [False, True])
async def test_steps_have_their_transactions_through_it(url: str, bouncer: PgBouncer, is_alone: bool) -> None:
    direct = "pgbouncer=true" if is_alone else f"direct={quote(url.partition('?')[0], safe='')}"
    pooled = f"{through(bouncer, url)}&{direct}"
    async with meddler(url) as other:
        await other.execute("drop table if exists public.notes; create table public.notes (number int)")
        async with Engine(pooled, workflows=[notes]) as engine:
            runs = [await engine.start(notes(5)) for _ in range(20)]
            assert [await run.result() for run in runs] == [10] * 20
        assert await other.fetchval("select count(*) from public.notes") == 100


@pytest.mark.soak
async def test_runs_start_in_callers_transactions_through_it(url: str, bouncer: PgBouncer) -> None:
    pooled = f"{through(bouncer, url)}&pgbouncer=true"
    async with Engine(pooled, workflows=[is_paid]) as engine:
        caller = await asyncpg.connect(bouncer.url, statement_cache_size=0)
        try:
            for number in range(10):
                transaction = caller.transaction()
                await transaction.start()
                await engine.start(is_paid(number), id=f"r-{number}", connection=caller)
                await (transaction.rollback() if number % 2 else transaction.commit())
        finally:
            await caller.close()
        for number in range(0, 10, 2):
            await engine.send(Paid(amount=1), to=f"r-{number}")
            assert await engine.handle(f"r-{number}").result() == number + 1
        assert len((await engine.runs.list()).runs) == 5
