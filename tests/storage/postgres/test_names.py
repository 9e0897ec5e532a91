"""Who sends an event and who waits for it, on two connections at the same time: neither may miss the other.

One of them is stopped inside its transaction, when it has its locks and has looked for the other, by a third who is
about to write an entry that it wants to write too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any

import pytest

from perdure.errors import StoreBusy
from perdure.kernel.batch import Committed
from perdure.kernel.status import Status
from perdure.testing.conformance.base import Author, a_run, an_entry, an_event, insert, update, waits_for
from tests.storage.postgres.meddler import author_on, meddler, until_somebody_waits

WAITING = a_run("waiting", owner="e-1")
SENDING = a_run("sending", owner="e-2")


def begin_to_wait(author: Author) -> Awaitable[Committed]:
    asleep = update(WAITING, status=Status.SUSPENDED)
    return author.exchange(asleep, waits=[waits_for("waiting")], journal=[an_entry("waiting")])


def send(author: Author) -> Awaitable[Committed]:
    return author.exchange(update(SENDING), events=[an_event()], journal=[an_entry("sending")])


async def prepare(one: Author, two: Author) -> None:
    await one.commit(insert(WAITING))
    await two.commit(insert(SENDING))


async def hold(other: Any, run_id: str) -> None:
    """Stop who writes the run's first entry, until this transaction is rolled back."""
    await other.execute("begin")
    written = "insert into journal values ($1, 1, '', '', '', '', null, 1, 1, 1)"
    await other.execute(written, run_id)


async def test_who_sends_finds_who_was_just_about_to_wait(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        await hold(other, "waiting")
        waiting = asyncio.ensure_future(begin_to_wait(one))
        await until_somebody_waits(other)
        sending = asyncio.ensure_future(send(two))
        await until_somebody_waits(other, "advisory")
        await other.execute("rollback")
        assert (await waiting).won == []
        assert (await sending).sent == {"e-1": ("waiting",)}


async def test_who_begins_to_wait_finds_what_was_just_about_to_be_sent(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        await hold(other, "sending")
        sending = asyncio.ensure_future(send(two))
        await until_somebody_waits(other)
        waiting = asyncio.ensure_future(begin_to_wait(one))
        await until_somebody_waits(other, "advisory")
        await other.execute("rollback")
        assert (await sending).sent == {"e-1": ()}
        assert [won.run_id for won in (await waiting).won] == ["waiting"]


async def test_without_the_lock_they_would_miss_each_other(url: str) -> None:
    """So that the two above are known to look at the right thing."""
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        text: str = await other.fetchval("select pg_get_functiondef('prepare_v1'::regproc)")
        assert "perform pg_advisory_xact_lock" in text
        await other.execute(re.sub(r"perform pg_advisory_xact_lock\w*", "perform abs", text))
        await hold(other, "waiting")
        waiting = asyncio.ensure_future(begin_to_wait(one))
        await until_somebody_waits(other)
        assert (await send(two)).sent == {"e-1": ()}
        await other.execute("rollback")
        assert (await waiting).won == []
        assert [event.id for event in await one.store.events()] == ["e-1"]
        assert [wait.due_at for wait in (await one.store.load(["waiting"]))["waiting"].waits] == [None]


async def test_those_who_begin_to_wait_do_not_keep_each_other_out(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        await hold(other, "waiting")
        waiting = asyncio.ensure_future(begin_to_wait(one))
        await until_somebody_waits(other)
        await two.exchange(waits=[waits_for("sending")])
        await other.execute("rollback")
        await waiting


async def test_an_event_that_is_given_while_its_run_ceases_to_wait_goes_back(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        await begin_to_wait(one)
        await hold(other, "sending")
        sending = asyncio.ensure_future(send(two))
        await until_somebody_waits(other)
        dropping = asyncio.ensure_future(one.commit(waits_dropped=[("waiting", "1")]))
        await until_somebody_waits(other, "advisory")
        await other.execute("rollback")
        assert (await sending).sent == {"e-1": ("waiting",)}
        # What it found before it had the lock is not true any more: nothing is written, and it is sent again.
        with pytest.raises(StoreBusy):
            await dropping
        await one.commit(waits_dropped=[("waiting", "1")])
        assert [event.id for event in await one.store.events()] == ["e-1"]
        assert (await one.store.load(["waiting"]))["waiting"].events == ()


async def test_a_position_is_won_once_by_events_of_two_names(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await prepare(one, two)
        await one.exchange(waits=[waits_for("waiting"), waits_for("waiting", option=1, name="shipped")])
        await other.execute("begin")
        await other.execute("select 1 from waits for update")
        sends = [
            asyncio.ensure_future(author.exchange(events=[an_event(f"by {author.id}", name=name)]))
            for author, name in ((one, "paid"), (two, "shipped"))
        ]
        await until_somebody_waits(other, count=2)
        await other.execute("commit")
        ends = await asyncio.gather(*sends, return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) == ["Committed", "StoreBusy"]
        assert len((await one.store.load(["waiting"]))["waiting"].events) == 1
