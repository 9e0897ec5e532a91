"""`payload_bytes_max` counts bytes, at every door: a text of 600 umlauts takes 1,200."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import (
    Limits,
    NamedEvent,
    NewArtifact,
    Retry,
    compensate,
    continue_as,
    current_step,
    publish,
    stage,
    start,
    step,
    stream,
    task,
    workflow,
)
from perdure.cooperation import Context, Key, Operation, Scope, emit
from perdure.errors import RunFailed, ScopeFailed, UnstorableValue
from perdure.graph import Graph, assign, child, metric
from perdure.testing import Environment
from tests.cooperation.shop import topic

WIDE = "ä" * 600
SMALL = Limits(payload_bytes_max=1_000)
REFUSED = r"(takes|has) 1,[2-9]\d\d bytes.* 1,000"
LARGE = Limits(payload_bytes_max=3_000_000)
MUCH = ["x" * 1_000] * 2_500

ROOT, CHILD = topic("root"), topic("child")
NOTE = Key[Any]("long-note", object)


@workflow
async def takes(text: Any) -> int:
    return len(text)


@step(retry=Retry.never())
async def counts(text: Any) -> int:
    return len(text)


@step(retry=Retry.never())
async def gives() -> str:
    return WIDE


@step(retry=Retry.never())
async def beats() -> None:
    current_step().heartbeat(WIDE)


@step(retry=Retry.never())
async def appends() -> None:
    current_step().append("log", WIDE)


@step(retry=Retry.never())
async def stages() -> None:
    current_step().stage("note", {"text": WIDE})


async def returns() -> str:
    return WIDE


Body = Callable[[], Awaitable[Any]]
BODIES: dict[str, Body] = {
    "result": returns,
    "step": gives,
    "heartbeat": beats,
    "item of a step": appends,
    "artifact of a step": stages,
    "published": lambda: publish("key", WIDE),
    "item": lambda: stream("log").append(WIDE),
    "awaited child": lambda: takes(WIDE),
    "started child": lambda: start(takes(WIDE)),
    "continuation": lambda: continue_as(takes(WIDE)),
    "compensation": lambda: compensate(counts(WIDE)),
    "artifact": lambda: stage("note", {"text": WIDE}),
    "task": lambda: task(queue="desk", payload=WIDE),
    "message": lambda: emit(ROOT, {"text": WIDE}),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_of_a_function(body: Body) -> None:
    @workflow(name="does")
    async def does() -> Any:
        return await body()

    async with Environment([does, takes], limits=SMALL) as env:
        await env.engine.topics.register(ROOT, "person")
        with pytest.raises(RunFailed, match=REFUSED):
            await env.engine.run(does())


ANSWERS: dict[str, Callable[[Environment, str], Awaitable[Any]]] = {
    "input": lambda env, _: env.engine.start(takes(WIDE)),
    "input by name": lambda env, _: env.engine.start("takes", {"text": WIDE}),
    "event": lambda env, _: env.engine.send(NamedEvent("news", WIDE)),
    "record": lambda env, _: env.engine.records.put("prompt", "greeting", WIDE),
    "answer": lambda env, task_id: env.engine.tasks.answer(task_id, WIDE),
    "answer with artifacts": lambda env, task_id: env.engine.tasks.answer(
        task_id, "ä" * 300, artifacts=[NewArtifact(name="a", value="ä" * 300)]
    ),
    "message": lambda env, _: env.engine.emit(ROOT, {"text": WIDE}),
    "context": lambda env, _: env.engine.emit(ROOT, {}, context=Context().put(NOTE, WIDE)),
}


@pytest.mark.parametrize("asked", ANSWERS.values(), ids=ANSWERS)
async def test_of_a_caller(asked: Callable[[Environment, str], Awaitable[Any]]) -> None:
    @workflow(name="asks")
    async def asks() -> Any:
        return await task(queue="desk")

    async with Environment([asks, takes], limits=SMALL) as env:
        await env.engine.topics.register(ROOT, "person")
        await env.engine.start(asks())
        await env.quiet()
        (one,) = await env.engine.tasks.list()
        with pytest.raises(UnstorableValue, match=REFUSED):
            await asked(env, one.id)


async def test_of_a_person_who_is_a_handler() -> None:
    async with Environment([], limits=SMALL) as env:
        await env.engine.topics.register(ROOT, "person")
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(UnstorableValue, match=REFUSED):
            await env.engine.topics.complete(emitted.run_ids[0], {"text": WIDE})


SCOPES: dict[str, Callable[[Scope], object]] = {
    "message": lambda scope: scope.emit(CHILD, {"text": WIDE}),
    "global message": lambda scope: scope.emit_globally(CHILD, {"text": WIDE}),
    "return value": lambda scope: scope.return_value("text", WIDE),
    "context": lambda scope: scope.put(NOTE, WIDE),
    "input of a workflow": lambda scope: scope.start(takes(WIDE)),
}


@pytest.mark.parametrize("what", SCOPES.values(), ids=SCOPES)
async def test_of_an_operation(what: Callable[[Scope], object]) -> None:
    root = Operation[dict[str, Any]]("root", ROOT)

    @root.step
    async def do(scope: Scope, message: dict[str, Any]) -> None:
        what(scope)

    async with Environment([root, takes], limits=SMALL) as env:
        with pytest.raises(ScopeFailed, match=REFUSED):
            await (await env.engine.emit(ROOT, {})).finished()


def of_one(kind: Any, **options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("one")
    graph.node("begin", assign({"state.text": "lists.range(60).map(x, 'ääääääääää').join()"}))
    graph.node("work", kind, **options)
    graph.edge("begin", "work")
    return graph


GRAPHS: dict[str, Graph[Any, Any]] = {
    "output": of_one(assign({"output.text": "state.text"})),
    "child": of_one(takes, input={"text": "state.text"}),
    "child by name": of_one(child("takes"), input={"text": "state.text"}),
    "metric": of_one(metric("m", attributes={"text": "state.text"})),
}


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
async def test_of_a_graph(graph: Graph[Any, Any]) -> None:
    async with Environment([graph, takes], limits=SMALL) as env:
        with pytest.raises(RunFailed, match=REFUSED):
            await env.engine.run(graph())


async def test_a_raised_limit_holds_inside_of_runs_too() -> None:
    @workflow(name="inside")
    async def inside() -> list[int]:
        await compensate(counts(MUCH))
        return [await counts(MUCH), await takes(MUCH), await (await start(takes(MUCH))).result()]

    graph: Graph[Any, Any] = Graph("outside", input=list[str])
    graph.node("step", counts, input={"text": "input"})
    graph.node("child", takes, input={"text": "input"})
    graph.node("by_name", child("takes"), input={"text": "input"})
    graph.edge("step", "child")
    graph.edge("child", "by_name")
    graph.output("[nodes.step, nodes.child, nodes.by_name]")
    root = Operation[dict[str, Any]]("root", ROOT)

    @root.step
    async def do(scope: Scope, message: dict[str, Any]) -> None:
        scope.start(takes(MUCH))

    async with Environment([inside, graph, takes, root], limits=LARGE) as env:
        assert await env.engine.run(inside()) == [2_500, 2_500, 2_500]
        assert await env.engine.run(graph(MUCH)) == [2_500, 2_500, 2_500]
        await (await env.engine.emit(ROOT, {})).finished()


async def test_arguments_of_steps_are_not_stored_and_a_lower_limit_does_not_bind_them() -> None:
    @workflow(name="short")
    async def short() -> int:
        return await counts([WIDE])

    graph = of_one(counts, input={"text": "[state.text]"})
    async with Environment([short, graph], limits=SMALL) as env:
        assert await env.engine.run(short()) == 1
        await env.engine.run(graph())
