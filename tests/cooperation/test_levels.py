"""How deep operations, functions and graphs may call each other: levels count through all of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, compensate, sleep, start, workflow
from perdure.cooperation import Failure, Operation, Scope, emit
from perdure.errors import HierarchyTooDeep, RunCancelled, ScopeFailed
from perdure.graph import Graph
from perdure.graph import emit as emit_node
from perdure.models.cooperation.context import ABOVE, Context
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation import engines
from tests.cooperation.shop import topic

PING, LEAF = topic("ping"), topic("leaf")
LEVELS: list[int] = []
Message = dict[str, Any]


@pytest.fixture(autouse=True)
def no_levels() -> None:
    LEVELS.clear()


@workflow
async def pong(n: int) -> None:
    await emit(PING, {"n": n + 1})


@workflow
async def pong_below(n: int) -> None:
    await pong(n)


@workflow
async def pong_started(n: int) -> None:
    await (await start(pong(n))).result()


@workflow
async def pong_detached(n: int) -> None:
    await start(pong(n), detached=True)


def node() -> Graph[Any, Any]:
    made = Graph("node")
    made.node("send", emit_node(PING), input={"n": "input.n + 1"})
    return made


def node_with_child() -> Graph[Any, Any]:
    made = Graph("node_with_child")
    made.node("call", pong, input={"n": "input.n"})
    return made


GRAPHS = [node(), node_with_child()]


def ping(call: Any, *, last: int | None = None) -> Operation[Message]:
    """An operation that starts a workflow, which emits to it again: without end, or until the last one, which waits."""
    made = Operation("ping", PING)

    @made.step
    async def go_down(scope: Scope, message: Message) -> None:
        LEVELS.append(message["n"])
        if last is not None and message["n"] >= last:
            scope.sleep(timedelta(days=1))
        else:
            await scope.start(call(message["n"]))

    return made


def graph_call(graph: Graph[Any, Any]) -> Any:
    return lambda n: graph({"n": n})


async def all_runs(env: Environment) -> list[Any]:
    return list((await env.engine.runs.list(limit=1000)).runs)


async def reasons(env: Environment) -> list[str]:
    """Why functions and graphs failed that were refused themselves: not those that only pass it on."""
    found: list[str] = []
    for run in await all_runs(env):
        view = await env.engine.runs.get(run.id)
        assert view is not None
        if view.failure is not None and view.failure.type.endswith("HierarchyTooDeep"):
            found.append(view.failure.message)
    return found


@pytest.mark.parametrize(
    ("call", "levels"),
    [(pong, 2), (pong_below, 3), (pong_started, 3), (graph_call(GRAPHS[0]), 2), (graph_call(GRAPHS[1]), 3)],
    ids=["function", "child", "started child", "graph", "child of a graph"],
)
@pytest.mark.parametrize("levels_max", [12, 13])
async def test_calls_without_end_come_to_an_end(call: Any, levels: int, levels_max: int, source: StoreSource) -> None:
    """Of a lap, each of the `levels` counts: that of the operation, and of what it has started."""
    made: list[Any] = [ping(call), pong, pong_below, pong_started, *GRAPHS]
    async with Environment(made, source, limits=Limits(hierarchy_levels_max=levels_max, steps_max=2)) as env:
        root = await env.engine.emit(PING, {"n": 1})
        with pytest.raises(ScopeFailed, match="HierarchyTooDeep" if levels == 2 else None):
            await root.finished()
        await env.settle()
        assert len(LEVELS) == -(-levels_max // levels)
        assert {run.status for run in await all_runs(env)} <= {"rolled_back", "failed"}
        (reason,) = await reasons(env)
        assert f" {levels_max + 1} levels below the " in reason
        await env.check()


async def test_a_function_that_emits_too_deep_says_so(source: StoreSource) -> None:
    made = Operation("ping", PING)

    @made.step
    async def go_down(scope: Scope, message: Message) -> None:
        await scope.start(asks(message["n"]))

    @workflow(name="asks")
    async def asks(n: int) -> str:
        try:
            await emit(PING, {"n": n + 1})
        except HierarchyTooDeep as error:
            return f"{error.level} of {error.levels_max}: {error}"
        return ""

    async with Environment([made, asks], source, limits=Limits(hierarchy_levels_max=4)) as env:
        root = await env.engine.emit(PING, {"n": 1})
        await root.finished()
        runs = [run for run in await all_runs(env) if run.workflow == "asks"]
        assert {run.status for run in runs} == {"succeeded"}
        results = [await env.engine.handle(run.id).result() for run in runs]
        (told,) = [result for result in results if result]
        assert told.startswith("5 of 4: run ")
        assert "emits on topic 'ping', 5 levels below the top of its hierarchy, which may have 4" in told


async def test_levels_do_not_count_through_what_is_on_its_own(source: StoreSource) -> None:
    """A detached child, an emission on the global scope, and a workflow that continues."""
    globally, leaf = Operation("ping", PING), Operation("leaf", LEAF)

    @globally.step
    async def begin(scope: Scope, message: Message) -> None:
        LEVELS.append(message["n"])
        if message["n"] < 9:
            await scope.start(to_leaf(message["n"]))

    @leaf.step
    async def again(scope: Scope, message: Message) -> None:
        if message["n"] % 2:
            await scope.emit_globally(PING, {"n": message["n"] + 1})
        else:
            await scope.start(pong_detached(message["n"]))

    @workflow
    async def to_leaf(n: int) -> None:
        await emit(LEAF, {"n": n})

    async with Environment(
        [globally, leaf, to_leaf, pong_detached, pong], source, limits=Limits(hierarchy_levels_max=4)
    ) as env:
        await env.engine.emit(PING, {"n": 1})
        await env.settle()
        assert [*range(1, 10)] == LEVELS
        assert {run.status for run in await all_runs(env)} == {"succeeded"}


async def test_a_function_from_outside_may_emit_as_deep_as_anybody(source: StoreSource) -> None:
    deep = Operation("ping", PING)

    @deep.step
    async def go_down(scope: Scope, message: Message) -> None:
        LEVELS.append(message["n"])
        if message["n"] < 5:
            await scope.emit(PING, {"n": message["n"] + 1})

    async with Environment([deep, pong], source, limits=Limits(hierarchy_levels_max=5)) as env:
        await (await env.engine.start(pong(0))).result()
        assert LEVELS == [1, 2, 3, 4, 5]


async def test_what_the_last_level_did_can_be_undone_with_an_emission(source: StoreSource) -> None:
    """A compensation, and what the rollback of an operation starts, may go a tenth deeper."""
    deep, leaf = Operation("ping", PING), Operation("leaf", LEAF)

    @workflow
    async def undo(what: str) -> None:
        await emit(LEAF, {"what": what})

    @workflow
    async def last() -> None:
        await compensate(undo("of a function"))

    @deep.step
    async def do(scope: Scope, message: Message) -> None:
        await scope.start(last())

    @do.rollback
    async def undo_it(scope: Scope, message: Message, cause: Failure) -> None:
        await scope.start(undo("of an operation"))

    @deep.step
    async def fail(scope: Scope, message: Message) -> None:
        raise ValueError("too late")

    undone: list[str] = []

    @leaf.step
    async def note(scope: Scope, message: Message) -> None:
        undone.append(message["what"])

    async with Environment([deep, leaf, last, undo], source, limits=Limits(hierarchy_levels_max=20)) as env:
        root = await env.engine.emit(PING, {}, context=Context().put(ABOVE, 18))
        with pytest.raises(ScopeFailed, match="too late"):
            await root.finished()
        await env.settle()
        assert undone == ["of a function", "of an operation"]
        assert {run.status for run in await all_runs(env)} == {"rolled_back", "succeeded"}


async def test_levels_are_counted_after_crashes(source: StoreSource) -> None:
    @workflow
    async def slow(n: int) -> None:
        await sleep(timedelta(hours=1))
        await pong(n)

    async with Environment(
        [ping(slow), slow, pong], source, autojump_s=None, limits=Limits(hierarchy_levels_max=7)
    ) as env:
        await env.engine.emit(PING, {"n": 1}, id="m")
        for _ in range(5):
            await env.settle()
            await env.restart()
            await env.advance(timedelta(hours=1))
        with pytest.raises(ScopeFailed):
            await (await env.engine.emit(PING, {"n": 1}, id="m")).finished()
        assert LEVELS == [1, 2, 3]


async def test_cancelling_the_top_ends_a_long_chain(source: StoreSource) -> None:
    async with Environment([ping(pong, last=40), pong], source, autojump_s=None, limits=Limits(steps_max=3)) as env:
        run = await env.engine.start(pong(0))
        await env.settle()
        assert len(LEVELS) == 40
        assert await run.cancel()
        await env.settle()
        with pytest.raises(RunCancelled):
            await run.result()
        assert {one.status for one in await all_runs(env)} == {"rolled_back"}
        await env.check()


async def test_cancelling_the_top_ends_a_chain_that_grows(source: StoreSource) -> None:
    """It may grow faster than the cancellation follows: then it meets its limit."""
    async with Environment(
        [ping(pong), pong], source, autojump_s=None, limits=Limits(hierarchy_levels_max=80, steps_max=3)
    ) as env:
        root = await env.engine.emit(PING, {"n": 1})
        while len(LEVELS) < 5:
            await asyncio.sleep(0)
        assert await root.cancel()
        await env.settle()
        assert len(LEVELS) <= 40
        for one in await all_runs(env):
            # Only a function that had emitted nothing yet has nothing to undo, and is cancelled at once.
            journal = (await env.engine.handle(one.id).history()).journal
            has_emitted = any(entry.kind == "compensate" for entry in journal)
            is_bare = one.model == "function" and not has_emitted
            assert one.status == ("cancelled" if is_bare else "rolled_back"), (one.workflow, one.status)


@pytest.mark.parametrize("on", ["memory", "sqlite", "postgres"])
async def test_the_limit_survives_crashes(on: str) -> None:
    async def scenario(env: Environment) -> tuple[int, set[str]]:
        root = await env.engine.emit(PING, {"n": 1}, id="m")
        with pytest.raises(ScopeFailed):
            await root.finished()
        await env.settle()
        runs = await all_runs(env)
        return len(runs), {run.status for run in runs}

    points: Any = ("before", "before_effects") if on == "memory" else ("before_effects",)
    report = await run_with_crashes(
        scenario,
        workflows=[ping(pong), pong],
        store=engines.SOURCES[on],
        points=points,
        limits=Limits(hierarchy_levels_max=4),
    )
    assert report.result == (4, {"rolled_back"})
