"""A message that is emitted in the caller's own transaction is there with its commit, or never was: on every driver."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Client, Engine
from perdure.api.hierarchies import hierarchy_rows
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import Misuse, RunExists, RunNotFound
from perdure.kernel.status import Status
from tests.starting.conftest import Begin
from tests.starting.transactions import DRIVERS

pytestmark = pytest.mark.parametrize("driver", DRIVERS)

ORDERS, OTHER = Topic("emitted.orders", dict[str, str]), Topic("emitted.other", dict[str, str])


def operations() -> list[Operation[Any]]:
    made: list[Operation[Any]] = []
    for name in ("stock", "bill"):
        operation = Operation(name, ORDERS)

        @operation.step
        async def handle(scope: Scope, order: dict[str, str], name: str = name) -> None:
            scope.return_value("by", f"{name} {order['id']}")

        made.append(operation)
    return made


async def test_it_is_there_with_the_commit_and_is_handled(url: str, begin: Begin, new_id: str) -> None:
    async with Engine(url, workflows=operations()), Client(url) as client, begin() as mine:
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        root = await client.emit(ORDERS, {"id": new_id}, id=new_id, tags={"a": new_id}, connection=mine.connection)
        assert len(root.run_ids) == 2
        assert (await client.runs.list(tags={"a": new_id})).runs == []
        with pytest.raises(RunNotFound):
            await root.finished()
        await mine.commit()
        await root.finished()
        assert sorted(await root.returned("by", str)) == [f"bill {new_id}", f"stock {new_id}"]
        for run_id in root.run_ids:
            audit = await client.handle(run_id).audit()
            assert audit[0].became == Status.CREATED
        again = await client.emit(ORDERS, {"id": new_id}, id=new_id, connection=mine.connection)
        assert (again.id, sorted(again.run_ids)) == (root.id, sorted(root.run_ids))


async def test_a_rollback_leaves_nothing(url: str, begin: Begin, new_id: str) -> None:
    async with Engine(url, workflows=operations()), Client(url) as client, begin() as mine:
        root = await client.emit(ORDERS, {"id": new_id}, id=new_id, tags={"a": new_id}, connection=mine.connection)
        await mine.rollback()
        assert (await client.runs.list(tags={"a": new_id})).runs == []
        assert (await hierarchy_rows(client.session, root.id)).events == []
        # The id is as good as new.
        again = await client.emit(ORDERS, {"id": new_id}, id=new_id, connection=mine.connection)
        await mine.commit()
        await again.finished()


async def test_an_engine_handles_its_own_without_a_look_of_its_own_accord(url: str, begin: Begin, new_id: str) -> None:
    async with Engine(url, workflows=operations(), poll_s=3600) as engine, begin() as mine:
        root = await engine.emit(ORDERS, {"id": new_id}, connection=mine.connection)
        await mine.commit()
        await root.finished()


async def test_a_message_nobody_handles_is_written_all_the_same(url: str, begin: Begin, new_id: str) -> None:
    async with Client(url) as client, begin() as mine:
        root = await client.emit(OTHER, {"id": new_id}, id=new_id, connection=mine.connection)
        assert root.run_ids == ()
        await mine.commit()
        assert len((await hierarchy_rows(client.session, root.id)).events) == 1


async def test_an_id_that_is_taken_spoils_no_transaction(url: str, begin: Begin, new_id: str) -> None:
    async with Client(url) as client, begin() as mine:
        first = await client.emit(OTHER, {"id": new_id}, id=new_id, connection=mine.connection)
        with pytest.raises(Misuse, match="was emitted before in this transaction"):
            await client.emit(OTHER, {"id": new_id}, id=new_id, connection=mine.connection)
        await mine.commit()
        with pytest.raises(RunExists, match="was emitted on topic"):
            await client.emit(ORDERS, {"id": new_id}, id=new_id, connection=mine.connection)
        assert (await client.emit(OTHER, {"id": new_id}, id=new_id, connection=mine.connection)).id == first.id
        await mine.execute(f"insert into orders (id) values ('{new_id}')")
        await mine.commit()


async def test_handlers_that_registered_meanwhile_take_part(
    url: str, begin: Begin, new_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(url) as client, Client(url) as other:
        await client.topics.handlers()
        load, asked = client.session.handlers.load, 0

        async def load_late(*, again: bool = False) -> None:
            nonlocal asked
            asked += 1
            if asked > 1:  # The first look was just before the other client registered somebody.
                await load(again=again)

        monkeypatch.setattr(client.session.handlers, "load", load_late)
        await other.topics.register(OTHER, f"person {new_id}")
        async with begin() as mine:
            root = await client.emit(OTHER, {"id": new_id}, connection=mine.connection)
            await mine.commit()
        assert asked == 2
        assert len(root.run_ids) == 1
        await client.topics.complete(root.run_ids[0])
        await root.finished()
        await client.topics.retire(OTHER, f"person {new_id}")
