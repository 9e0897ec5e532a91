"""Records, handlers and released tasks, with the process dying around the commit: each is written once, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Client
from perdure.errors import TaskLost
from perdure.kernel.tasks import TaskWrites
from perdure.ports import Store
from perdure.testing import CRASH_POINTS, Point
from perdure.testing.conformance.base import Author, a_run, insert
from perdure.testing.conformance.tasks import a_task
from tests.dashboard.test_session_crashes import LANDED, TOLD, life

MakeStore = Callable[[], Store]


async def asked(make_store: MakeStore, point: Point, work: Callable[[Client], Awaitable[Any]]) -> str | None:
    """What comes of a request at whose commit the process dies, or is left in the dark; None if it died."""

    async def told(client: Client) -> str | None:
        return str(await work(client))

    async with life(make_store, point, "commit") as server:
        return await server.asked(told(server.client))


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_record_is_put_once_or_not_at_all(point: Point, make_store: MakeStore) -> None:
    async with Client(make_store(), poll_s=None) as client:
        await client.records.put("prompt", "greeting", "hello")
    version = await asked(make_store, point, lambda client: client.records.put("prompt", "greeting", "hi"))
    assert version == ("2" if point in TOLD else None)
    async with Client(make_store(), poll_s=None) as client:
        newest = await client.records.get("prompt", "greeting")
        assert (newest.version, newest.body) == ((2, "hi") if point in LANDED else (1, "hello"))
        assert await client.records.put("prompt", "greeting", "hi") == 2
        assert await client.records.put("prompt", "greeting", "hello") == 3


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_handler_is_expected_or_it_is_not(point: Point, make_store: MakeStore) -> None:
    """A client that is asked for it writes a record first: that is done before."""
    async with Client(make_store(), poll_s=None) as client:
        await client.topics.register("orders", "approval")
        assert await client.topics.retire("orders", "approval")
        await client.topics._note("orders", "approval", "api", registered=True)
    await asked(make_store, point, lambda client: client.topics.register("orders", "approval"))
    async with Client(make_store(), poll_s=None) as client:
        assert await client.topics.handlers() == ({"orders": ["approval"]} if point in LANDED else {})
        await client.topics.register("orders", "approval")
        assert await client.topics.handlers() == {"orders": ["approval"]}
        assert await client.topics.retire("orders", "approval")
        assert not await client.topics.retire("orders", "approval")


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_task_is_released_or_its_worker_has_it(point: Point, make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    author = await Author.enroll(store)
    await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task()]))
    await store.retire(author.id)
    await store.close()
    async with Client(make_store(), poll_s=None) as client:
        assert [task.id for task in await client.tasks.claim("approvals", "w-1", lease=3600)] == ["t-1"]
    await asked(make_store, point, lambda client: client.tasks.fail("t-1", "w-1", "tired", retry=True))
    async with Client(make_store(), poll_s=None) as client:
        if point not in LANDED:
            assert await client.tasks.claim("approvals", "w-2") == []
            await client.tasks.fail("t-1", "w-1", "tired", retry=True)
        with pytest.raises(TaskLost):
            await client.tasks.release("t-1", "w-1")
        assert [(task.id, task.error) for task in await client.tasks.claim("approvals", "w-2")] == [("t-1", "tired")]


async def test_what_several_ask_for_at_once_is_decided_one_after_the_other(make_store: MakeStore) -> None:
    """In one batch, and in batches of two processes that meet in the store."""
    async with Client(make_store(), poll_s=None) as one, Client(make_store(), poll_s=None) as other:
        puts = [(one, other)[number % 2].records.put("prompt", "greeting", number) for number in range(20)]
        assert sorted(await asyncio.gather(*puts)) == list(range(1, 21))
        same = [client.records.put("prompt", "same", "x") for client in (one, other) for _ in range(5)]
        assert set(await asyncio.gather(*same)) == {1}
        await one.topics.register("orders", "approval")
        retired = await asyncio.gather(*(client.topics.retire("orders", "approval") for client in (one, one, other)))
        assert sorted(retired) == [False, False, True]


async def test_of_two_releases_at_once_one_counts(make_store: MakeStore) -> None:
    async with Client(make_store(), poll_s=None) as client:
        author = await Author.enroll(client.session.store)
        await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task()]))
        await client.tasks.claim("approvals", "w-1")
        releases = (client.tasks.release("t-1", "w-1") for _ in range(3))
        outcomes = await asyncio.gather(*releases, return_exceptions=True)
        assert [type(one) for one in outcomes] == [type(None), TaskLost, TaskLost]
