"""Who is told what, after commits."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from perdure.kernel.rows import Mail
from perdure.kernel.status import Status
from perdure.storage.postgres import PostgresStore
from perdure.testing.conformance.base import a_run, an_event, insert, update, waits_for
from tests.storage.postgres.meddler import author_on, meddler, schema_of


def mail_for(run_id: str, slot: str = "") -> Mail:
    return Mail(run_id=run_id, sender="e-9", slot=slot, op="{}", at=5)


class Ear:
    """Hears all hints in a schema."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen(self, connection: Any, url: str) -> None:
        await connection.add_listener(f"perdure_{schema_of(url)}", lambda *heard: self._heard.put_nowait(heard[3]))

    async def next(self) -> str:
        return await asyncio.wait_for(self._heard.get(), 30)


async def test_owners_are_told_of_mail_and_everybody_of_runs_that_nobody_has(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        ear = Ear()
        await ear.listen(other, url)
        await one.commit(insert(a_run(owner="e-1")))
        await two.store.leave_mail(mail_for("r-1"))
        assert await ear.next() == "e-1"
        await two.store.leave_mail(mail_for("unknown"))
        assert await ear.next() == "*"
        await two.commit(mail=[mail_for("r-1")])
        assert await ear.next() == "e-1"
        await one.commit(insert(a_run("r-2")))
        assert await ear.next() == "*"
        await one.commit(update(a_run(owner="e-1"), owner=None))
        assert await ear.next() == "*"
        await two.store.retire("e-2")
        assert await ear.next() == "*"


async def test_a_winner_elsewhere_and_who_waits_for_an_answer_are_told(url: str) -> None:
    async with author_on(url) as one, author_on(url, "e-2") as two, meddler(url) as other:
        await one.exchange(insert(a_run(owner="e-1", status=Status.SUSPENDED)), waits=[waits_for()])
        ear = Ear()
        await ear.listen(other, url)
        await two.exchange(events=[an_event()])
        assert await ear.next() == "e-1"
        mail_id = await two.store.leave_mail(mail_for("r-1", "slot"))
        assert await ear.next() == "e-1"
        await one.store.mail("e-1", 10)
        await one.commit(mail_done={mail_id: "answer"})
        assert await ear.next() == "e-9"


async def test_hints_that_come_together_are_one(url: str) -> None:
    async with author_on(url) as one, meddler(url) as other:
        ear = Ear()
        await ear.listen(other, url)
        await one.commit(insert(a_run("a", owner="e-1")), insert(a_run("b", owner="e-1")))
        store = cast(PostgresStore, one.store)
        for run_id in ("a", "b", "a", "unknown", "b"):
            store._db.notifier.notify([run_id])
        store._db.notifier.notify([], ["last"])
        assert {await ear.next() for _ in range(3)} == {"e-1", "*", "last"}
        await one.store.leave_mail(mail_for("a"))
        assert await ear.next() == "e-1"


async def test_who_listens_is_called_again_when_it_may_have_missed_something(url: str) -> None:
    async with author_on(url) as one, meddler(url) as other:
        heard = asyncio.Event()
        one.store.listen(heard.set)
        await asyncio.wait_for(heard.wait(), 30)
        heard.clear()
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure listener'"
        assert await other.fetch(cut)
        await asyncio.wait_for(heard.wait(), 30)
