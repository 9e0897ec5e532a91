"""The way to the database breaks, the server dies, locks and statements take too long: what the store says and does."""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, cast

import asyncpg
import pytest

from perdure.errors import CommitConflict, CommitRefused, Fenced, OutcomeUnknown, RunNotFound, StoreBroken, StoreBusy
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Mail
from perdure.ports import Offer, RunFilter, Store
from perdure.storage import open_store
from perdure.storage.postgres import PostgresStore
from perdure.storage.postgres.connection import Session
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.faults import is_lost
from perdure.testing.conformance.base import Author, a_run, an_entry, an_event, insert, offers, update, waits_for
from tests.storage.postgres.meddler import author_on, meddler, until_somebody_waits
from tests.storage.postgres.proxy import Proxy, proxy_to
from tests.storage.postgres.server import PostgresServer, Servers


@pytest.fixture(scope="module")
def mortal() -> Generator[PostgresServer]:
    """A server of our own, to kill."""
    server = PostgresServer(18)
    yield server
    server.end()


@asynccontextmanager
async def through_proxy(url: str) -> AsyncGenerator[tuple[Proxy, Author]]:
    port = int(url.partition("?")[0].rpartition(":")[2].partition("/")[0])
    async with proxy_to(url, port) as (proxy, own_url), author_on(own_url) as author:
        # What is sent for the first time takes several messages.
        await author.commit(insert(a_run("known", owner=author.id)))
        await author.exchange(events=[an_event("known")])
        yield proxy, author


# ---------------------------------------------------------------------------------------------------------------------
# The connection is cut


async def test_a_batch_whose_answer_is_lost_may_have_landed_and_is_found_out(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        batch = author.batch(insert(a_run()), journal=[an_entry()])
        proxy.cut("writer", "r-1", "after")
        with pytest.raises(OutcomeUnknown):
            await author.store.commit(batch)
        assert proxy.cuts == 1
        assert (await author.store.commit(batch)).landed
        assert len((await author.store.journal("r-1"))[1]) == 1


async def test_a_batch_that_never_arrived_is_not_taken_for_one_that_landed(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        batch = author.batch(insert(a_run()), journal=[an_entry()])
        proxy.cut("writer", "r-1", "before")
        with pytest.raises(OutcomeUnknown):
            await author.store.commit(batch)
        assert await author.store.load(["r-1"]) == {}
        assert not (await author.store.commit(batch)).landed
        assert len((await author.store.journal("r-1"))[1]) == 1


async def test_an_event_is_sent_once_though_the_answer_to_its_commit_was_lost(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        batch = author.batch(events=[an_event(number=1)], numbered=1, pending_max={"e-1": 10}, keys={"k": "e-1"})
        proxy.cut("writer", "commit\0", "after")
        with pytest.raises(OutcomeUnknown):
            await author.store.commit(batch)
        assert (await author.store.commit(batch)).landed
        assert [event.id for event in await author.store.events()] == ["known", "e-1"]


@pytest.mark.parametrize("word", ["begin\0", "e-1"])
async def test_what_is_cut_before_its_commit_is_sent_was_not_written(url: str, word: str) -> None:
    async with through_proxy(url) as (proxy, author):
        batch = author.batch(events=[an_event(number=1)], numbered=1, pending_max={"e-1": 10})
        proxy.cut("writer", word, "after")
        with pytest.raises(StoreBusy):
            await author.store.commit(batch)
        assert not (await author.store.commit(batch)).landed
        assert [event.id for event in await author.store.events()] == ["known", "e-1"]


async def test_a_connection_that_is_cut_between_two_messages_of_a_request_is_lost(url: str) -> None:
    """As after the process was stopped for a while: the answer to the first message is there, and it is too late."""
    connection = await asyncpg.connect(url.partition("?")[0])
    request = asyncio.create_task(Session(connection, 0.1).fetch("select 17"))
    await asyncio.sleep(0)  # It has sent the first.
    time.sleep(0.5)  # Nothing is heard meanwhile.
    with pytest.raises(asyncpg.PostgresConnectionError) as caught:
        await request
    assert is_lost(caught.value)


async def test_runs_of_a_claim_whose_answer_was_lost_are_not_lost(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        await author.claim()
        await author.commit(insert(a_run("a")), insert(a_run("b")))
        proxy.cut("reader", "commit\0", "after")
        with pytest.raises(StoreBusy):
            await author.claim()
        assert await author.claim() == ["a", "b"]
        assert await author.claim() == []


async def test_runs_of_a_claim_whose_answer_was_lost_come_as_they_are_by_then(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        await author.claim()
        await author.commit(insert(a_run("a")))
        proxy.cut("reader", "commit\0", "after")
        with pytest.raises(StoreBusy):
            await author.claim()
        await author.exchange(events=[an_event("late", run_id="a")])
        (claimed,) = await author.store.claim(
            engine_id=author.id, epoch=author.engine.epoch, offers=offers(checkout="f"), limit=9
        )
        assert [event.id for event in claimed.events] == ["late"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_claim_whose_answer_was_lost_says_all_the_same_what_a_run_is(
    url: str, when: Literal["before", "after"]
) -> None:
    """A run that was started by name alone is a graph for whoever has it, and for nobody else."""
    drawn = [Offer("drawn", "", "f", "graph")]
    async with through_proxy(url) as (proxy, author):
        await author.claim()
        await author.commit(insert(a_run("a", workflow="drawn")))
        proxy.cut("reader", "commit\0", when)
        with pytest.raises(StoreBusy):
            await author.store.claim(engine_id=author.id, epoch=author.engine.epoch, offers=drawn, limit=9)
        left = (await author.store.get(["a"]))["a"].run
        assert (left.model, left.claim) == (("function", 0) if when == "before" else ("graph", 1))
        [claimed] = await author.store.claim(
            engine_id=author.id, epoch=author.engine.epoch, offers=drawn, limit=9
        )  # fmt: skip
        assert (claimed.run.model, claimed.run.claim, claimed.run.owner) == ("graph", 1, author.id)
        assert (await author.store.get(["a"]))["a"].run == claimed.run


async def test_runs_of_a_claim_that_never_came_about_are_claimed_by_the_next(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        await author.commit(insert(a_run("a")))
        proxy.cut("reader", "commit\0", "before")
        with pytest.raises(StoreBusy):
            await author.claim()
        assert await author.claim() == ["a"]
        assert (await author.store.load(["a"]))["a"].run.claim == 1


async def test_mail_with_a_slot_can_be_posted_again_when_the_answer_was_lost(url: str) -> None:
    mail = Mail(run_id="known", sender="s", slot="slot", op="{}", at=1)
    async with through_proxy(url) as (proxy, author):
        await author.store.leave_mail(Mail(run_id="known", sender="s", op="{}", at=1))
        proxy.cut("reader", "slot", "after")
        with pytest.raises(StoreBusy):
            await author.store.leave_mail(mail)
        assert await author.store.leave_mail(mail) == 0
        assert [one.slot for one in await author.store.mail(author.id, 10)] == ["", "slot"]


async def test_answers_are_not_lost_when_the_one_to_their_removal_is(url: str) -> None:
    async with through_proxy(url) as (proxy, author):
        mail = [Mail(run_id="known", sender="s", slot=slot, op="{}", at=1) for slot in ("first", "slot")]
        ids = [await author.store.leave_mail(one) for one in mail]
        await author.commit(mail_done=dict(zip(ids, ("1", "2"), strict=True)))
        assert await author.store.collect(["first"]) == {"first": "1"}
        proxy.cut("reader", "\0\0\0\1\0\0\0\1\0\0\0\4slot", "after")  # an array of this slot alone
        assert await author.store.collect(["slot", "none"]) == {"slot": "2"}
        assert proxy.cuts == 1


# ---------------------------------------------------------------------------------------------------------------------
# The server


async def submit_internal(store: Store, batch: Batch) -> Committed:
    """What the coordinator does with a batch."""
    while True:
        try:
            return await store.commit(batch)
        except (StoreBusy, OutcomeUnknown):
            await asyncio.sleep(0.01)


async def test_a_server_that_crashes_again_and_again_loses_and_doubles_nothing(mortal: PostgresServer) -> None:
    async with author_on(f"{mortal.url}?schema=crashes&lease=30") as author:
        done = 0
        is_over = asyncio.Event()

        async def work() -> None:
            nonlocal done
            while not is_over.is_set():
                batch = author.batch(
                    insert(a_run(f"r-{done}", owner=author.id)),
                    journal=[an_entry(f"r-{done}", seq) for seq in (1, 2)],
                    events=[an_event(f"e-{done}", number=1, name=f"n-{done}")],
                    numbered=1,
                    pending_max={f"e-{done}": 10},
                )
                await submit_internal(author.store, batch if done % 2 else plain(batch))
                author.number += 1
                done += 1

        working = asyncio.ensure_future(work())
        for _ in range(3):
            goal = done + 20
            while done < goal:
                await asyncio.wait([working], timeout=0.01)
                assert not working.done()
            await asyncio.to_thread(mortal.crash)
            await asyncio.to_thread(mortal.start)
        is_over.set()
        await working
        ids = [f"r-{number}" for number in range(done)]
        assert (await author.store.load([*ids, f"r-{done}"])).keys() == set(ids)
        journals = await author.store.journals(ids)
        assert all(len(journals[run_id].entries) == 2 for run_id in ids)
        found = [event.id for event in await author.store.events(limit=done + 1)]
        assert found == [f"e-{number}" for number in range(done) if number % 2]


def plain(batch: Batch) -> Batch:
    batch.events, batch.numbered = [], 0
    return batch


async def test_a_server_that_is_away_is_busy_for_all_and_back_when_it_is(mortal: PostgresServer) -> None:
    async with author_on(f"{mortal.url}?schema=away&lease=30") as author:
        await author.commit(insert(a_run()))
        await asyncio.to_thread(mortal.crash)
        batch = author.batch(insert(a_run("r-2")))
        with pytest.raises((StoreBusy, OutcomeUnknown)):
            await author.store.commit(batch)
        with pytest.raises(StoreBusy):
            await author.store.commit(batch)
        for _ in range(2):
            with pytest.raises(StoreBusy):
                await author.store.load(["r-1"])
        other = open_store(f"{mortal.url}?schema=away")
        with pytest.raises(StoreBusy):
            await other.open()
        await asyncio.to_thread(mortal.start)
        await submit_internal(author.store, batch)
        assert (await author.store.load(["r-1", "r-2"])).keys() == {"r-1", "r-2"}


async def test_a_session_that_the_server_ends_leaves_the_outcome_open(url: str) -> None:
    async with author_on(url) as author, meddler(url) as other:
        await author.commit(insert(a_run(owner=author.id)))
        await other.execute("begin")
        await other.execute("select 1 from runs for update")
        batch = author.batch(update(a_run(owner=author.id)))
        committing = asyncio.ensure_future(author.store.commit(batch))
        await until_somebody_waits(other)
        ended = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure writer'"
        assert await other.fetch(f"{ended} and wait_event_type = 'Lock'")
        with pytest.raises(OutcomeUnknown):
            await committing
        await other.execute("rollback")
        assert not (await author.store.commit(batch)).landed


@pytest.mark.parametrize("bad", ["nobody@", "postgres@no-such-database"])
async def test_what_can_never_be_opened_is_broken(postgres_servers: Servers, bad: str) -> None:
    url = postgres_servers.running(18).url
    user, _, database = bad.partition("@")
    store = open_store(url.replace("postgres@", f"{user}@").replace("/postgres", f"/{database or 'postgres'}"))
    with pytest.raises(StoreBroken):
        await store.open()


# ---------------------------------------------------------------------------------------------------------------------
# Too slow, too late, not as expected


async def test_a_lock_that_is_not_to_be_had_in_time_is_busy_and_nothing_is_written(url: str) -> None:
    async with author_on(f"{url}&lease=4") as author, meddler(url) as other:
        await author.commit(insert(a_run(owner=author.id)))
        async with other.transaction():
            await other.execute("select 1 from runs for update")
            batch = author.batch(update(a_run(owner=author.id)), journal=[an_entry()])
            with pytest.raises(StoreBusy):
                await author.store.commit(batch)
        assert not (await author.store.commit(batch)).landed


async def test_a_statement_that_takes_too_long_is_ended_before_the_lease_is(url: str) -> None:
    async with author_on(f"{url}&lease=4") as author:
        store = cast(PostgresStore, author.store)
        with pytest.raises(StoreBusy):
            async with store._db.lanes.use() as connection:
                await connection.execute("select pg_sleep(60)")
        assert await store.load(["r-1"]) == {}


async def test_who_rests_inside_a_transaction_is_cut_off_before_the_lease_is(url: str) -> None:
    async with author_on(f"{url}&lease=4") as author, meddler(url) as other:
        store = cast(PostgresStore, author.store)

        async def rest() -> None:
            sessions = "select 1 from pg_stat_activity where application_name = 'perdure reader' and xact_start < now()"
            async with store._db.lanes.use() as connection:
                await connection.execute("begin")
                while await other.fetch(sessions):
                    await asyncio.sleep(0.01)
                await connection.execute("commit")

        with pytest.raises(StoreBusy):
            await rest()
        assert await store.load(["r-1"]) == {}


async def test_what_is_not_there_costs_no_connection(url: str) -> None:
    async with author_on(url) as author, meddler(url) as other:
        await author.store.load(["r-1"])
        sessions = "select pid from pg_stat_activity where application_name = 'perdure reader' order by pid"
        before = await other.fetch(sessions)
        for _ in range(3):
            with pytest.raises(RunNotFound):
                await author.store.published("r-1")
            with pytest.raises(CommitRefused):
                await author.store.leave_mail(Mail(run_id="nul\0", sender="s", op="{}", at=1))
        assert await other.fetch(sessions) == before


async def test_what_is_too_long_for_an_index_is_refused_alone(url: str) -> None:
    async with author_on(url) as author:
        long = "".join(random.Random(1).choices(string.ascii_letters, k=10_000))
        with pytest.raises(CommitRefused):
            await author.commit(insert(a_run(tags={"long": long})))
        await author.commit(insert(a_run(), f'"{long}"'))


async def test_values_that_postgres_cannot_hold_are_refused_alone(url: str) -> None:
    async with author_on(url) as author:
        for bad in ("nul\0", "\ud800"):
            with pytest.raises(CommitRefused):
                await author.commit(insert(a_run()), journal=[an_entry(value=bad)])
        await author.commit(insert(a_run()))


@pytest.mark.parametrize("is_buried", [False, True])
async def test_an_engine_whose_number_went_back_is_fenced(url: str, is_buried: bool) -> None:
    async with author_on(url) as author, meddler(url) as other:
        await author.commit(insert(a_run()))
        await author.commit(insert(a_run("r-2")))
        await other.execute("update engines set batch = 1, alive = $1", not is_buried)
        with pytest.raises(Fenced) as caught:
            await author.commit(insert(a_run("r-3")))
        assert "went back" in str(caught.value)


async def test_of_two_that_write_one_run_at_the_same_time_one_is_told(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.commit(insert(a_run()))
        await other.execute("begin")
        await other.execute("select 1 from runs for update")
        writes = [asyncio.ensure_future(author.commit(update(a_run(), owner=author.id))) for author in (one, two)]
        await until_somebody_waits(other, count=2)
        await other.execute("commit")
        ends = await asyncio.gather(*writes, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["CommitConflict", "Committed"]
        assert all(end.run_ids == {"r-1"} for end in ends if isinstance(end, CommitConflict))


async def test_of_two_waits_that_find_one_event_one_gets_it(url: str) -> None:
    """Both only begin to wait, so that neither keeps the other out: the event's own row decides."""
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.commit(insert(a_run("r-1", owner="e-1")), insert(a_run("r-2", owner="e-2")))
        await one.exchange(events=[an_event()])
        await other.execute("begin")
        await other.execute("select 1 from events for update")
        waits = [
            asyncio.ensure_future(author.exchange(waits=[waits_for(run_id)]))
            for author, run_id in ((one, "r-1"), (two, "r-2"))
        ]
        await until_somebody_waits(other, count=2)
        await other.execute("commit")
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["Committed", "StoreBusy"]
        loser = (one, two)[[type(end) for end in ends].index(StoreBusy)]
        run_id = {"e-1": "r-1", "e-2": "r-2"}[loser.id]
        assert (await loser.exchange(waits=[waits_for(run_id)])).won == []
        loaded = await one.store.load(["r-1", "r-2"])
        assert sum(len(one.events) for one in loaded.values()) == 1


async def test_burying_waits_for_a_batch_that_is_being_committed(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.commit(insert(a_run(owner="e-1")))
        await other.execute("begin")
        await other.execute("select 1 from runs for update")
        committing = asyncio.ensure_future(one.commit(update(a_run(owner="e-1"))))
        await until_somebody_waits(other)
        async with meddler(url) as third:
            await third.execute("update heartbeats set beat_at = '-infinity', lease = '0' where engine_id = 'e-1'")
        burying = asyncio.ensure_future(two.store.mark_dead_engines())
        await until_somebody_waits(other, count=2)
        assert not burying.done()
        async with meddler(url) as third:  # The heart beats, but its lease is over at once.
            await third.execute("update heartbeats set beat_at = '-infinity' where engine_id = 'e-1'")
            await other.execute("commit")
        await committing
        assert await burying in (["e-1"], [])
        await two.store.mark_dead_engines()
        with pytest.raises(Fenced):
            await one.commit()
        claimed = await two.store.claim(engine_id="e-2", epoch=two.engine.epoch, offers=offers(checkout="f"), limit=9)
        assert [one.run.version for one in claimed] == [2]


async def test_who_stands_still_amid_a_request_does_not_keep_its_locks(url: str) -> None:
    """A process that was stopped between two messages of a request is not idle to the server, and has no timeout."""
    url = url.replace("lease=60", "lease=2")
    async with author_on(url) as one, meddler(url) as other, meddler(url) as stopped:
        await stopped.execute("set application_name = 'perdure writer'")
        await stopped.execute("set idle_in_transaction_session_timeout = 1000")
        await stopped.execute("begin")
        await stopped.execute("insert into engines values ('gone', 99, true, 0, '', 0, '[]', 0)")
        await stopped.execute("commit")
        await stopped.execute("begin")
        await stopped.execute("select 1 from engines where id = 'gone' for key share")
        await stopped.prepare("select 1")
        resting = "select state from pg_stat_activity where pid = $1"
        assert await other.fetchval(resting, stopped.get_server_pid()) == "active"
        marked_dead: list[str] = []
        while not marked_dead:
            try:
                marked_dead = await one.store.mark_dead_engines()
            except StoreBusy:
                assert await other.fetchval("select alive from engines where id = 'gone'")
        assert marked_dead == ["gone"]


@pytest.mark.parametrize("left", ["begin; select 1", "begin; select 1 / (1 - 1)"], ids=["open", "failed"])
async def test_a_connection_that_was_left_in_a_transaction_is_cut_and_the_next_one_works(url: str, left: str) -> None:
    async with author_on(url) as author:
        store = cast(PostgresStore, author.store)
        async with store._db.lanes.use() as connection:
            with suppress(asyncpg.DivisionByZeroError):
                await connection.execute(left)
        with pytest.raises(StoreBusy):  # As after any break of a connection: the engine asks again.
            await store.list(RunFilter())
        assert await store.list(RunFilter()) == []


async def test_a_connection_on_which_the_driver_refused_a_value_is_cut(url: str) -> None:
    async with author_on(url) as author:
        lane = cast(PostgresStore, author.store)._db.lanes
        connection: Any = None
        with pytest.raises(CommitRefused):
            async with lane.use() as connection:
                await connection.fetch("select $1::bigint", 2**63)
        assert connection.is_closed()  # The driver has begun a request, and does not end it.


async def test_a_connection_whose_user_was_cancelled_is_cut(url: str) -> None:
    async with author_on(url) as author:
        lane = cast(PostgresStore, author.store)._db.lanes
        used: list[Connection] = []

        async def use() -> None:
            async with lane.use() as connection:
                used.append(connection)
                await connection.execute("begin")
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await use()
        assert used[0].is_closed()
        assert await author.store.list(RunFilter()) == []


def test_a_state_that_the_driver_did_not_expect_leaves_the_outcome_open() -> None:
    assert is_lost(asyncpg.InternalClientError("cannot switch to state 12"))
