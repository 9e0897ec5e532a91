"""A handler is known by its topic and its name, and a workflow by its kind, its name and its version: what has the same
name elsewhere is somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Engine, step, workflow
from perdure.api.outcomes import outcome_of
from perdure.client import Client
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import InvalidArguments
from perdure.graph import Graph
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.testing import Environment, StoreProxy
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree

ORDERS, INVOICES, PARENT = topic("orders"), topic("invoices"), topic("parent")
Message = dict[str, Any]


def handler(diary: list[str], on: Any, says: str, *emits: Any) -> Operation[Message]:
    """An operation that is named `work`, whatever it handles."""
    made = Operation("work", on)

    @made.step
    async def first(scope: Scope, message: Message) -> None:
        diary.append(says)
        for one in emits:
            await scope.emit(one, {})

    @first.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        diary.append(f"undo {says}")

    return made


@step
def one() -> int:
    return 1


class EarlierCode(StoreProxy):
    """Writes runs of operations as earlier versions of Perdure did: without their topic."""

    async def commit(self, batch: Batch) -> Committed:
        for write in batch.runs.values():
            if write.run.model == "operation":
                write.run = replace(write.run, workflow_version="")
        return await self.inner.commit(batch)


async def test_two_services_with_a_handler_of_the_same_name(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []
    orders, invoices = handler(diary, ORDERS, "an order"), handler(diary, INVOICES, "an invoice")
    async with Environment([invoices], make_store) as env:
        await env.engine.topics.register(ORDERS, "work")
        root = await env.engine.emit(ORDERS, {})
        await env.settle()
        await env.restart()
        await env.settle()
        assert diary == []
        assert await env.engine.handle(root.run_ids[0]).status() == "created"
        (view,) = (await env.engine.runs.list()).runs
        assert view.stranded is not None
        assert "'orders'" in view.stranded
        async with Engine(make_store(), workflows=[orders], clock=env.clock, poll_s=None) as other:
            await other.handle(root.run_ids[0]).result()
        assert diary == ["an order"]
        assert await env.engine.handle(root.id).roll_back()  # It is undone by whoever did it, when that comes.
        await env.settle()
        assert diary == ["an order"]
        async with Engine(make_store(), workflows=[orders], clock=env.clock, poll_s=None) as other:
            assert (await outcome_of(other.session, root.run_ids[0]))[0].status == "rolled_back"
        assert diary == ["an order", "undo an order"]
        await agree(env, orders, invoices)


async def test_one_engine_has_handlers_of_the_same_name(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []
    operations = [handler(diary, ORDERS, "an order", INVOICES), handler(diary, INVOICES, "an invoice")]
    async with Environment(operations, make_store) as env:
        await (await env.engine.emit(ORDERS, {})).finished()
        assert diary == ["an order", "an invoice"]
        await env.restart()
        await (await env.engine.emit(INVOICES, {})).finished()
        assert diary[2:] == ["an invoice"]
        await agree(env, *operations)


async def test_a_function_of_the_same_name_is_somebody_else(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []

    @workflow(name="work")
    async def function() -> str:
        diary.append("the function")
        return "done"

    @workflow(name="work", version=ORDERS.name)
    async def version() -> str:
        diary.append("a version of the function")
        return "done"

    orders = handler(diary, ORDERS, "an order")
    async with Environment([function, version], make_store) as env:
        await env.engine.topics.register(ORDERS, "work")
        root = await env.engine.emit(ORDERS, {})
        await env.restart()
        await env.settle()
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert (view.status, view.hold, diary) == ("created", None, [])
        async with Engine(make_store(), workflows=[orders, function], clock=env.clock, poll_s=None) as other:
            await other.handle(root.run_ids[0]).result()
            assert await (await other.start("work", {}, version="")).result() == "done"
        assert diary == ["an order", "the function"]
        await env.check()


async def test_a_run_of_a_graph_is_not_a_functions(make_store: Callable[[], Store]) -> None:
    @workflow(name="work")
    async def function() -> str:
        return "the function"

    graph: Graph[Any, Any] = Graph("work")
    graph.node("one", one)
    graph.output({"node": "nodes.one"})
    async with Environment([function], make_store) as env:
        async with Client(make_store(), clock=env.clock, poll_s=None) as client:
            run = await client.start(graph(None))
        await env.restart()
        await env.settle()
        assert await env.engine.handle(run.id).status() == "created"
        async with Engine(make_store(), workflows=[graph], clock=env.clock, poll_s=None) as other:
            assert await other.handle(run.id).result() == {"node": 1}


async def test_an_operation_is_not_started_by_its_name(make_store: Callable[[], Store]) -> None:
    orders = handler([], ORDERS, "an order")
    async with Environment([orders], make_store) as env:
        with pytest.raises(InvalidArguments, match=r"is an operation, .* emit one on the topic 'orders'"):
            await env.engine.start("work", {})


@pytest.mark.parametrize("is_taken", [False, True])
async def test_runs_without_a_topic_are_claimed_by_the_right_handler(
    make_store: Callable[[], Store], is_taken: bool
) -> None:
    """As earlier versions have stored them: new, at work, suspended, and to be undone."""
    diary: list[str] = []
    orders, invoices = handler(diary, ORDERS, "an order"), handler(diary, INVOICES, "an invoice")
    parent = handler(diary, PARENT, "the parent", ORDERS)

    def earlier() -> Store:
        return EarlierCode(make_store())

    async with Environment([parent, *([orders] if is_taken else [])], earlier) as env:
        await env.engine.topics.register(ORDERS, "work")
        root = await env.engine.emit(PARENT, {})
        await env.settle()
        env.kill()
    async with Environment([invoices], make_store, clock=env.clock) as env:
        await env.settle()
        done = ["the parent", "an order"] if is_taken else ["the parent"]
        assert diary == done
        assert [run.hold for run in (await env.engine.runs.list()).runs] == [None, None]  # Nobody has claimed them.
        async with Engine(make_store(), workflows=[orders, parent], clock=env.clock, poll_s=None) as other:
            await other.handle(root.run_ids[0]).result()
            assert diary == ["the parent", "an order"]
            assert await other.handle(root.id).roll_back()
            assert (await outcome_of(other.session, root.run_ids[0]))[0].status == "rolled_back"
        assert diary == ["the parent", "an order", "undo an order", "undo the parent"]
        await agree(env, orders, invoices, parent)
