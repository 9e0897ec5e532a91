"""Services that use one name for workflows of different kinds: neither takes the other's runs."""

from __future__ import annotations

from typing import Any

import pytest

from perdure import Client, NamedEvent, continue_as, receive, step, workflow
from perdure.graph import Graph
from perdure.models.functions.define import Workflow
from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


@step
async def note(text: str) -> str:
    return text


def function() -> Workflow[[], str]:
    @workflow(name="report")
    async def report() -> str:
        await receive("go")
        return await note("by the function")

    return report


def graph() -> Graph[Any, Any]:
    drawn = Graph("report")
    drawn.node("note", note, input={"text": "'by the graph'"})
    drawn.output({"text": "nodes.note"})
    return drawn


@pytest.fixture
def shared(source: StoreSource) -> StoreSource:
    if source is None:
        database = MemoryDatabase()
        return lambda: MemoryStore(database)
    return source


async def test_a_graph_leaves_a_function_of_its_name_alone(shared: StoreSource) -> None:
    report = function()
    async with Environment([report], shared, autojump_s=None) as service:
        await service.engine.start(report(), id="r-1")
        await service.quiet()
        await service.engine.send(NamedEvent("go"), to="r-1", strict=False)
        service.kill()
    async with Environment([graph()], shared, autojump_s=None) as other:
        assert (await other.engine.recover()).total == 0
        await other.quiet()
        view = await other.engine.runs.get("r-1")
        assert view is not None
        assert (view.model, view.hold) == ("function", None)
    async with Environment([report], shared, autojump_s=None) as service:
        await service.engine.handle("r-1").result()


async def test_a_graph_leaves_a_function_alone_that_nobody_has_taken(shared: StoreSource) -> None:
    report = function()
    async with Environment([graph()], shared, autojump_s=None) as other:
        async with Client(_store(shared)) as client:
            await client.start(report(), id="known")
            await client.start("report", id="by-name")
        assert (await other.engine.recover()).resumed == 1
        assert await other.engine.handle("by-name").result() == {"text": "by the graph"}
        view = await other.engine.runs.get("known")
        assert view is not None
        assert (view.status, view.model, view.owner) == ("created", "function", None)
        assert await other.engine.handle("known").pause()
        assert await other.engine.handle("known").resume()
        await other.quiet()
        view = await other.engine.runs.get("known")
        assert view is not None
        assert (view.status, view.owner) == ("created", None)
    async with Environment([report], shared, autojump_s=None) as service:
        await service.engine.send(NamedEvent("go"), to="known")
        assert await service.engine.handle("known").result() == "by the function"


async def test_a_function_that_goes_on_as_a_graph_is_taken_by_the_graph(shared: StoreSource) -> None:
    drawn = graph()

    @workflow
    async def first() -> None:
        await receive("go")
        await continue_as(drawn())

    async with Environment([first], shared, autojump_s=None) as service:
        await service.engine.start(first(), id="r-1")
        await service.engine.send(NamedEvent("go"), to="r-1")
        await service.quiet()
        service.kill()
    async with Environment([drawn], shared, autojump_s=None) as other:
        assert await other.engine.handle("r-1").result() == {"text": "by the graph"}
        view = await other.engine.runs.get("r-1")
        assert view is not None
        assert view.model == "graph"


def _store(source: StoreSource) -> Store | str:
    assert source is not None
    return source if isinstance(source, str) else source()
