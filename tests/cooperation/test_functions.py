"""Functions and graphs that take part: they emit, wait for the whole hierarchy, and have it undone with themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import compensate, step, workflow
from perdure.api import function_emissions
from perdure.cooperation import Operation, Scope, emit
from perdure.errors import RunFailed, ScopeFailed
from perdure.graph import Graph, assign, terminate
from perdure.graph import emit as emit_node
from perdure.models.cooperation.message_events import State
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation.engines import EngineWorld
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_cooperation_engine import Diary
from tests.cooperation.world import Seen

TOP, ROOT, CHILD = topic("top"), topic("root"), topic("child")
DIARY = Diary()


@step
async def reserve() -> str:
    DIARY.append("reserve")
    return "reserved"


@step
async def release() -> None:
    DIARY.append("release")


@workflow
async def checkout(fails: bool) -> str:
    found = await reserve()
    await compensate(release())
    await emit(ROOT, {"n": 1})
    if fails:
        raise ValueError("too late")
    return found


@workflow
async def forgiving() -> str:
    try:
        await emit(ROOT, {})
    except ScopeFailed as error:
        return str(error)
    return "no failure"


def operations(**options: Any) -> list[Any]:
    DIARY.clear()
    return [DIARY.operation("root", ROOT, [CHILD], []), DIARY.operation("child", CHILD, [], **options)]


async def test_a_function_waits_for_the_whole_hierarchy(source: StoreSource) -> None:
    async with Environment([checkout, *operations()], source) as env:
        run = await env.engine.start(checkout(False))
        assert await run.result() == "reserved"
        assert DIARY == ["reserve", "root 0", "child 0", "root 1"]
        await env.check()


async def test_a_function_that_fails_has_the_hierarchy_undone(source: StoreSource) -> None:
    async with Environment([checkout, *operations()], source) as env:
        run = await env.engine.start(checkout(True))
        with pytest.raises(RunFailed, match="too late"):
            await run.result()
        assert DIARY[4:] == ["root undo 1", "child undo 0", "root undo 0", "release"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_function_that_is_cancelled_has_the_hierarchy_give_up(source: StoreSource) -> None:
    taking_part = operations()
    taking_part[1].sleep(timedelta(days=1))
    async with Environment([checkout, *taking_part], source, autojump_s=None) as env:
        run = await env.engine.start(checkout(False))
        await env.settle()
        assert await run.cancel()
        await env.settle()
        assert DIARY == ["reserve", "root 0", "child 0", "child undo 0", "root undo 0", "release"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_function_may_catch_the_failure_of_a_hierarchy(source: StoreSource) -> None:
    async with Environment([forgiving, *operations(fails_at=0)], source) as env:
        run = await env.engine.start(forgiving())
        assert "ChildRolledBack: 1 handler of messages from step" in await run.result()


async def test_a_function_and_its_hierarchy_survive_crashes(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> str:
        run = await env.engine.start(checkout(False), id="o-17")
        return await run.result()

    def once(result: str) -> None:
        assert result == "reserved"

    report = await run_with_crashes(scenario, workflows=[checkout, *operations()], store=fresh, check=once)
    assert report.restarts > 10


async def test_a_message_that_comes_after_its_function_has_given_up_is_handled_by_nobody(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is cancelled while its message is on the way: that arrives when all is undone."""
    async with Environment([checkout, *operations()], source, autojump_s=None) as env:
        engine, asked, gate = env.engine, asyncio.Event(), asyncio.Event()
        emissions: Any = vars(function_emissions)["emit_root"]
        late: list[asyncio.Task[Any]] = []

        async def emit_late(*args: Any, **options: Any) -> Any:
            async def wait() -> Any:
                asked.set()
                await gate.wait()
                return await emissions(*args, **options)

            late.append(asyncio.ensure_future(wait()))
            return await asyncio.shield(late[0])

        monkeypatch.setattr(function_emissions, "emit_root", emit_late)
        run = await engine.start(checkout(False))
        await asked.wait()
        assert await run.cancel()
        await env.settle()
        assert await run.status() == "rolled_back"
        gate.set()
        assert (await late[0]).run_ids == ()
        await env.settle()
        assert DIARY == ["reserve", "release"]
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Graphs


def shopping(fails: bool = False, **options: Any) -> Graph[Any, Any]:
    graph = Graph("shopping")
    graph.node("reserve", reserve)
    graph.node("order", emit_node(ROOT, **options), input={"n": "input.n"})
    graph.node("tell", terminate("failed", "'too late'") if fails else assign({"state.told": "nodes.order"}))
    graph.edge("reserve", "order")
    graph.edge("order", "tell")
    return graph


async def test_a_graph_waits_for_the_whole_hierarchy(source: StoreSource) -> None:
    graph = shopping()
    async with Environment([graph, *operations()], source) as env:
        run = await env.engine.start(graph({"n": 1}))
        await run.result()
        assert DIARY == ["reserve", "root 0", "child 0", "root 1"]
        await env.check()


async def test_a_graph_that_fails_has_the_hierarchy_undone(source: StoreSource) -> None:
    graph = shopping(fails=True)
    async with Environment([graph, *operations()], source) as env:
        run = await env.engine.start(graph({"n": 1}))
        with pytest.raises(RunFailed, match="too late"):
            await run.result()
        assert DIARY[4:] == ["root undo 1", "child undo 0", "root undo 0"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_graph_may_catch_the_failure_of_a_hierarchy(source: StoreSource) -> None:
    graph = shopping(on_failure="catch")
    async with Environment([graph, *operations(fails_at=0)], source) as env:
        run = await env.engine.start(graph({"n": 1}))
        await run.result()
        assert DIARY == ["reserve", "root 0", "child 0", "root undo 0"]


async def test_a_graph_that_an_operation_has_called_is_undone_with_the_rest(fresh: Callable[[], StoreSource]) -> None:
    """Down through all models: an operation calls a graph, which emits, and its hierarchy is undone again, wherever
    the process dies."""
    graph = shopping()
    top = Operation("top", TOP)

    @top.step
    async def call(scope: Scope, message: Any) -> None:
        await scope.start(graph({"n": 1}))

    @top.step
    async def fail(scope: Scope, message: Any) -> None:
        raise ValueError("too late")

    async def scenario(env: Environment) -> list[str]:
        if not env.restarts:
            DIARY.clear()
        root = await env.engine.emit(TOP, {}, id="m")
        with pytest.raises(ScopeFailed, match="too late"):
            await root.finished()
        await env.settle()
        return [one for place, one in enumerate(DIARY) if DIARY.index(one) == place]

    report = await run_with_crashes(
        scenario, workflows=[top, graph, *operations()], store=fresh, points=("before", "before_effects")
    )
    assert report.result == [
        "reserve", "root 0", "child 0", "root 1", "root undo 1", "child undo 0", "root undo 0"
    ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_and_its_hierarchy_survive_crashes(everywhere: Everywhere, fails: bool) -> None:
    """One of those whom it waits for is a person, who acts long after the node has emitted, unless all is undone."""
    book = Book()

    def scenario(**options: Any) -> Any:
        root = operation(book, "root", ROOT, [[CHILD], []])
        child = operation(book, "child", CHILD, [[]])
        graph = shopping(fails)
        world = EngineWorld(root, child, workflows=[graph], **options)
        book.world = world  # type: ignore[assignment]
        if not fails:
            world.register(CHILD, "person")
        world.start(graph({"n": 1}), "g")
        world.run()
        if not fails:
            assert world.log == ["root 0", "child 0"]
            assert world.status("g") == "suspended"
            world.complete("person")
            world.run()
        assert world.status("g") == ("rolled_back" if fails else "succeeded")
        return world

    def check(world: Seen) -> None:
        undone = ["root undo 1", "child undo 0", "root undo 0"] if fails else []
        assert world.log == ["root 0", "child 0", "root 1", *undone]
        assert sorted(run.handler for run in world.runs) == ["child", *([] if fails else ["person"]), "root"]
        assert set(world.states().values()) == {State.ROLLED_BACK if fails else State.COMMITTED}

    everywhere.on_engines(scenario, check)
