"""Messages that are emitted by a topic's name, and roots that are known by their id."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import Misuse, RunNotFound
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

ORDERS: Topic[dict[str, Any]] = Topic("roots-orders", dict[str, Any])
place = Operation("roots-place", ORDERS)
SEEN: list[Any] = []


@place.step
async def note(scope: Scope, order: dict[str, Any]) -> None:
    SEEN.append(order)
    scope.return_value("sku", order["sku"])


def environment(source: StoreSource) -> Environment:
    SEEN.clear()
    return Environment([place], source)


async def test_a_message_is_emitted_by_the_name_of_its_topic(source: StoreSource) -> None:
    async with environment(source) as env:
        root = await env.engine.emit("roots-orders", {"sku": "s-1"}, id="m-1")
        await root.finished()
        assert SEEN == [{"sku": "s-1"}]
        assert await root.returned("sku", str) == ["s-1"]
        again = await env.engine.emit(ORDERS, {"sku": "s-1"}, id="m-1")
        assert (again.id, again.run_ids) == (root.id, root.run_ids)
        assert SEEN == [{"sku": "s-1"}]


async def test_a_name_that_nobody_handles_is_refused(source: StoreSource) -> None:
    async with environment(source) as env:
        with pytest.raises(Misuse, match="roots-nobody"):
            await env.engine.emit("roots-nobody", {"sku": "s-1"})
        await env.engine.topics.register("roots-nobody", "person")
        root = await env.engine.emit("roots-nobody", {"sku": "s-1"})
        (run_id,) = root.run_ids
        assert await env.engine.topics.message(run_id) == {"sku": "s-1"}
        await env.engine.topics.complete(run_id, {"sku": "s-2"})
        await root.finished()
        assert await root.returned("sku", str, handler="person") == ["s-2"]


async def test_a_root_is_found_again_by_its_id_also_after_a_crash(source: StoreSource) -> None:
    async with environment(source) as env:
        emitted = await env.engine.emit(ORDERS, {"sku": "s-1"})
        await emitted.finished()
        await env.restart()
        root = await env.engine.topics.root(emitted.id)
        assert (root.id, root.message_id, root.run_ids) == (emitted.id, emitted.message_id, emitted.run_ids)
        await root.finished()
        assert (await root.tree()).text() == (await env.engine.handle(emitted.id).tree()).text()
        assert await root.roll_back()
        for unknown in ("nobody", emitted.run_ids[0]):
            with pytest.raises(RunNotFound):
                await env.engine.topics.root(unknown)
