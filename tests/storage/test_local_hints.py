"""Stores of one process on the same data tell each other directly what they left, whatever becomes of other hints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.rows import Mail
from perdure.kernel.status import Status
from perdure.ports import Store
from perdure.storage import local_hints, open_store
from perdure.storage.local_hints import Neighbour
from perdure.storage.postgres.hints import Listener
from perdure.storage.sqlite.hints import LogWatch
from perdure.testing.conformance.base import Author, a_run, an_event, insert, update, waits_for


class Ear:
    """What a store calls back."""

    def __init__(self, store: Store) -> None:
        self.count = 0
        self._heard = asyncio.Event()
        store.listen(self._called)

    def _called(self) -> None:
        self.count += 1
        self._heard.set()

    async def next(self) -> None:
        await asyncio.wait_for(self._heard.wait(), 30)
        self._heard.clear()


@pytest.fixture(autouse=True)
def _no_other_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file system nor the server tells anybody anything."""
    monkeypatch.setattr(LogWatch, "_rest", lambda self: None)
    monkeypatch.setattr(Listener, "listen", lambda self, callback: None)


@asynccontextmanager
async def author(make_store: Callable[[], Store], engine_id: str) -> AsyncGenerator[Author]:
    store = make_store()
    await store.open()
    try:
        yield await Author.enroll(store, engine_id)
    finally:
        await store.close()


def mail_for(run_id: str, slot: str = "") -> Mail:
    return Mail(run_id=run_id, sender="e-2", slot=slot, op="{}", at=5)


async def test_a_neighbour_hears_of_all_that_may_be_for_it(make_store: Callable[[], Store]) -> None:
    async with author(make_store, "e-1") as one, author(make_store, "e-2") as two:
        ear = Ear(two.store)
        sleeper = a_run("sleeper", owner="e-2", status=Status.SUSPENDED)
        await two.exchange(insert(sleeper), waits=[waits_for("sleeper")])
        await two.commit(insert(a_run(owner="e-2")))
        await one.commit(mail=[mail_for("r-1")])
        await ear.next()
        await one.store.leave_mail(mail_for("r-1"))
        await ear.next()
        mail_id = await two.store.leave_mail(mail_for("r-1", "slot"))
        await one.commit(mail_done={mail_id: "answer"})
        await ear.next()
        await one.exchange(events=[an_event()])
        await ear.next()
        await one.commit(insert(a_run("free")))
        await ear.next()
        mine = a_run("mine", owner="e-1")
        await one.commit(insert(mine))
        await one.commit(update(mine, owner=None))
        await ear.next()
        await one.store.retire("e-1")
        await ear.next()


async def test_what_concerns_nobody_else_and_what_one_does_oneself_is_no_hint(url_store: Callable[[], Store]) -> None:
    async with author(url_store, "e-1") as one, author(url_store, "e-2") as two:
        ear, own = Ear(two.store), Ear(one.store)
        mine = a_run(owner="e-1")
        await one.commit(insert(mine))
        await one.commit(update(mine, status=Status.SUSPENDED))
        await one.commit(mail=[mail_for("r-1")])
        await ear.next()
        assert (ear.count, own.count) == (1, 0)


async def test_a_store_that_was_closed_or_whose_loop_has_ended_is_left_alone(url_store: Callable[[], Store]) -> None:
    heard: list[str] = []

    async def listen_and_forget() -> None:
        Neighbour(f"sqlite {url_store().path}").listen(lambda: heard.append("forgotten"))  # type: ignore[attr-defined]

    await asyncio.to_thread(lambda: asyncio.run(listen_and_forget()))
    async with author(url_store, "e-1") as one, author(url_store, "e-2") as two:
        closed: Any = url_store()
        await closed.open()
        closed.listen(lambda: heard.append("closed"))
        await closed.close()
        ear = Ear(two.store)
        await one.commit(mail=[mail_for("r-1")])
        await ear.next()
        listening = local_hints._LISTENING[f"sqlite {url_store().path}"]  # type: ignore[attr-defined]
        assert len(listening) == 2  # The one that listens, and the forgotten one.
    assert heard == []


@pytest.fixture
def url_store(tmp_path: Path) -> Callable[[], Store]:
    return lambda: open_store(f"sqlite:///{tmp_path / 'runs.db'}")
