"""A caller's connection dies around start_v2 and emit_v2: the run or the message is there with its commit, or never."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from perdure import Client, Engine
from perdure.errors import PerdureError
from perdure.kernel.status import Status
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.test_callers import BOOKINGS, as_caller, booking, make_caller, ship

CUT = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, PerdureError)


async def act(client: Client, verb: str, caller: Any) -> None:
    if verb == "start":
        await client.start(ship("o-1"), id="o-1", tags={"a": "b"}, connection=caller)
    else:
        await client.emit(BOOKINGS, {"id": "m-1"}, id="m-1", tags={"a": "b"}, connection=caller)


async def there(client: Client) -> int:
    return len((await client.runs.list(tags={"a": "b"})).runs)


@pytest.mark.parametrize("moment", ["before", "inside", "committed"])
@pytest.mark.parametrize("verb", ["start", "emit"])
async def test_a_connection_that_dies_leaves_all_or_nothing(url: str, verb: str, moment: str) -> None:
    caller_url = await make_caller(url)
    async with Engine(url, workflows=[booking()]), Client(url) as client, meddler(url) as meddling:
        async with as_caller(caller_url) as caller:
            pid = caller.get_server_pid()
            transaction = caller.transaction()
            await transaction.start()
            if moment == "before":
                assert await meddling.fetchval("select pg_terminate_backend($1, 5000)", pid)
            with_error = moment == "before"
            try:
                await act(client, verb, caller)
            except CUT:
                assert with_error
            assert await there(client) == 0  # Nobody sees it before the commit.
            if moment == "committed":
                await transaction.commit()
            if moment != "before":
                assert await meddling.fetchval("select pg_terminate_backend($1, 5000)", pid)
        assert await there(client) == (moment == "committed")
        async with as_caller(caller_url) as caller, caller.transaction():
            await act(client, verb, caller)  # The same again: it is there once.
        assert await there(client) == 1
        [run] = (await client.runs.list(tags={"a": "b"})).runs
        audit = await client.handle(run.id).audit()
        assert [row.became for row in audit][:1] == [Status.CREATED]
        assert [row.seq for row in audit] == list(range(1, len(audit) + 1))


@pytest.mark.parametrize("verb", ["start", "emit"])
@pytest.mark.parametrize("ends", ["commit", "rollback", "death"])
async def test_two_callers_with_one_id_wait_for_each_other(url: str, verb: str, ends: str) -> None:
    """Whoever is second waits for the first one's end, whatever that is, and there is one run or message then."""
    caller_url = await make_caller(url)
    async with (
        Engine(url, workflows=[booking()]),
        Client(url) as client,
        meddler(url) as meddling,
        as_caller(caller_url) as first,
        as_caller(caller_url) as second,
    ):
        one, other = first.transaction(), second.transaction()
        await one.start()
        await act(client, verb, first)
        await other.start()
        waiting = asyncio.ensure_future(act(client, verb, second))
        query = "select cardinality(pg_blocking_pids($1)) > 0"
        while not await meddling.fetchval(query, second.get_server_pid()):
            await asyncio.sleep(0)
        if ends == "death":
            assert await meddling.fetchval("select pg_terminate_backend($1, 5000)", first.get_server_pid())
        else:
            await (one.commit() if ends == "commit" else one.rollback())
        await waiting
        await other.commit()
        assert await there(client) == 1
