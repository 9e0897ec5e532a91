"""Who waits for the end of a run and who ends it, on two connections at the same time: neither may miss the other.

One of them is stopped inside its transaction, as in test_names.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from perdure.kernel.batch import Committed
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.testing.conformance.base import Author, a_run, a_wait, an_entry, insert, update
from tests.storage.postgres.meddler import author_on, meddler, until_somebody_waits
from tests.storage.postgres.test_names import hold

WAITING = a_run("waiting", owner="e-1")
ENDING = a_run("ending", owner="e-2")


def begin_to_wait(author: Author) -> Awaitable[Committed]:
    wait = a_wait("waiting", kind="run", name="run", target="ending", due_at=None)
    return author.commit(update(WAITING), waits={("waiting", "1", 0): wait}, journal=[an_entry("waiting")])


def end(author: Author) -> Awaitable[Committed]:
    ended = update(
        ENDING, outcome=Outcome(output="1"), status=Status.SUCCEEDED, owner=None, updated_at=9, completed_at=9
    )
    return author.commit(ended, journal=[an_entry("ending")])


async def is_won(author: Author) -> bool:
    return [wait.due_at for wait in (await author.store.load(["waiting"]))["waiting"].waits] == [0]


async def test_who_ends_finds_who_was_just_about_to_wait(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.commit(insert(WAITING), insert(ENDING))
        await hold(other, "waiting")
        waiting = asyncio.ensure_future(begin_to_wait(one))
        await until_somebody_waits(other)
        ending = asyncio.ensure_future(end(two))
        await until_somebody_waits(other, count=2)
        await other.execute("rollback")
        assert (await waiting).won == []
        assert [won.run_id for won in (await ending).won] == ["waiting"]
        assert await is_won(one)


async def test_who_begins_to_wait_finds_what_was_just_about_to_end(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.commit(insert(WAITING), insert(ENDING))
        await hold(other, "ending")
        ending = asyncio.ensure_future(end(two))
        await until_somebody_waits(other)
        waiting = asyncio.ensure_future(begin_to_wait(one))
        blocked = asyncio.ensure_future(until_somebody_waits(other, count=2))
        await asyncio.wait([waiting, blocked], return_when=asyncio.FIRST_COMPLETED)
        assert not waiting.done()  # It waits for the run's row.
        await blocked
        await other.execute("rollback")
        assert (await ending).won == []
        assert [won.run_id for won in (await waiting).won] == ["waiting"]
        assert await is_won(one)
