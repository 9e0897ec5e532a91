"""Two clients that ask for something at the same moment, of a run that no engine has: both are answered from what is
stored by then, and nobody is refused for what the other one did."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import product
from typing import Any

import pytest

from perdure import Client, Engine, receive, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.engine import AnyClient
from perdure.errors import Misuse
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import until

_RUNS = 12

orders, stock = Topic("orders", str), Topic("stock", str)
place = Operation("place", orders)


@place.step
async def ask(scope: Scope, order: str) -> None:
    scope.emit(stock, order)


@workflow
async def waits() -> None:
    await receive("never")


Act = Callable[[AnyClient, str], Awaitable[Any]]
ACTS: dict[str, Act] = {
    "pause": lambda client, id: client.handle(id).pause(reason="wait"),
    "resume": lambda client, id: client.handle(id).resume(),
    "tag": lambda client, id: client.handle(id).update(tags={"a": "1"}),
    "tag again": lambda client, id: client.handle(id).update(tags={"a": "2"}),
    "cancel": lambda client, id: client.handle(id).cancel(),
}


class Slow(StoreProxy):
    """Commits when it may: what was decided meanwhile was decided on what others have changed by then."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.decided, self.may_commit = asyncio.Event(), asyncio.Event()
        self.may_commit.set()

    async def commit(self, batch: Batch) -> Committed:
        self.decided.set()
        await self.may_commit.wait()
        return await super().commit(batch)


@pytest.mark.parametrize(
    ("first", "second"), [*product(("pause", "tag", "cancel", "resume"), ("pause", "tag again", "cancel", "resume"))]
)
async def test_what_was_decided_on_an_older_state_is_decided_again(
    first: str, second: str, make_store: Callable[[], Store]
) -> None:
    async with Engine(make_store(), workflows=[waits]) as engine:
        await engine.start(waits(), id="r-1")
        await until(lambda: _all_wait(engine))
        if "resume" in (first, second):
            await engine.handle("r-1").pause()
    slow = Slow(make_store())
    async with Client(make_store()) as left, Client(slow) as right:
        slow.decided.clear()
        slow.may_commit.clear()
        late = asyncio.ensure_future(ACTS[second](right, "r-1"))
        await asyncio.wait([late, asyncio.ensure_future(slow.decided.wait())], return_when="FIRST_COMPLETED")
        await ACTS[first](left, "r-1")
        slow.may_commit.set()
        with suppress(Misuse):  # It cannot be had any more, and that is said.
            await late
        rows = await left.handle("r-1").audit()
        assert [row.seq for row in rows] == [*range(1, len(rows) + 1)]
        view = await left.runs.get("r-1")
        assert view is not None
        if (first, second) == ("pause", "tag again"):  # Neither undoes what the other one did.
            assert (view.hold is not None, view.tags) == (True, {"a": "2"})
        if (first, second) == ("tag", "pause"):
            assert (view.hold is not None, view.tags) == (True, {"a": "1"})


async def _all_wait(engine: Engine) -> bool:
    return all(run.status == "suspended" for run in (await engine.runs.list(limit=100)).runs)


async def test_the_same_message_and_the_same_answers_by_two_clients_at_once(make_store: Callable[[], Store]) -> None:
    async with Engine(make_store(), workflows=[place]) as engine:
        await engine.topics.register(stock, "person")
    async with Client(make_store()) as left, Client(make_store()) as right:
        for number in range(_RUNS):
            emits = [client.emit(stock, "x", id=f"m-{number}") for client in (left, right)]
            roots = await asyncio.gather(*emits)
            assert len({root.id for root in roots}) == 1
            (run_id,) = roots[0].run_ids
            done = [client.topics.complete(run_id) for client in (left, right)]
            answers = await asyncio.gather(*done, return_exceptions=True)
            assert [a for a in answers if isinstance(a, Exception) and not isinstance(a, Misuse)] == []
            backs = [client.handle(roots[0].id).roll_back() for client in (left, right)]
            said = await asyncio.gather(*backs, return_exceptions=True)
            assert [a for a in said if isinstance(a, Exception) and not isinstance(a, Misuse)] == []


async def test_records_and_events_with_a_key_by_two_clients_at_once(make_store: Callable[[], Store]) -> None:
    async with Client(make_store()) as left, Client(make_store()) as right:
        for number in range(_RUNS):
            puts = [client.records.put("k", "n", {"number": number, "by": i}) for i, client in enumerate((left, right))]
            assert sorted(await asyncio.gather(*puts)) == [2 * number + 1, 2 * number + 2]
