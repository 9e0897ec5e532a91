"""With a codec that encrypts, the database has no payload in plain text: no argument, result, error or answer."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import (
    Event,
    NamedEvent,
    Retry,
    compensate,
    continue_as,
    current_step,
    publish,
    receive,
    stage,
    step,
    stream,
    task,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import RunFailed, ScopeFailed
from perdure.graph import Graph, all_of, append
from perdure.models.functions.define import Workflow
from perdure.testing import Environment
from tests.storage.postgres.server import VERSIONS, Servers

SECRET = "umbrella"
DAY = 24 * 3600.0


class Hiding:
    """Stands for a codec that encrypts. Base32 has no lower-case letters, so no text of a payload shows through."""

    def encode(self, text: str) -> str:
        return base64.b32encode(text.encode()).decode()

    def decode(self, text: str) -> str:
        return base64.b32decode(text).decode()


class Noted(Event):
    text: str


@step(retry=Retry(attempts=2, initial=0.001))
async def keep(text: str) -> str:
    current_step().heartbeat({"so far": text})
    if current_step().attempt == 1:
        raise ConnectionError(f"no {text} yet")
    return text


@step(retry=Retry.never())
async def break_with(text: str) -> None:
    raise ValueError(f"cannot keep {text}")


@step
async def undo(text: str) -> None: ...


@workflow
async def child(text: str) -> str:
    return await keep(text)


@workflow
async def everything(text: str, is_again: bool = False) -> str:
    await publish("progress", text)
    await stream("log").append({"line": text})
    await stage("report", f"about an {text}")
    await keep(text)
    await child(text)
    noted = await receive(Noted)
    answer = await task(queue="q", payload={"order": text}, title="Look")
    with suppress(ValueError):
        await break_with(text)
    if not is_again:
        await continue_as(everything(text, True))
    return f"{text} {noted.text} {answer}"


@workflow
async def fails(text: str) -> None:
    await compensate(undo(text))
    await break_with(text)


@workflow
async def tries_tomorrow(text: str) -> None:
    await break_with.options(retry=Retry(initial=DAY, maximum=DAY))(text)


@step(transactional=True)
def write_to_sqlite(text: str) -> str:
    return text


@step(transactional=True)
async def write_to_postgres(text: str) -> str:
    return text


@workflow
async def writes(text: str, is_sqlite: bool) -> str:
    return await (write_to_sqlite if is_sqlite else write_to_postgres)(text)


graph: Graph[Any, Any] = Graph("hides")
graph.node("keep", keep, input={"text": "input.text"})
graph.node("each", keep, input={"text": "branch.item"})
graph.node("all", keep, input={"text": "state.texts[0]"})
graph.edge("keep", "each", foreach="[nodes.keep, nodes.keep]")
graph.edge("each", "all", join=all_of(), merge=append("state.texts"))
graph.output({"text": "nodes.all"})

failing_graph: Graph[Any, Any] = Graph("hides_failures")
failing_graph.node("breaks", break_with, input={"text": "input.text"})


class Order(msgspec.Struct):
    text: str


orders, parts = Topic("orders", Order), Topic("parts", Order)
place, part = Operation("place", orders), Operation("part", parts)


@place.step
async def emits(scope: Scope, order: Order) -> None:
    await scope.emit(parts, order)


@place.step
async def ends(scope: Scope, order: Order) -> None:
    raise ValueError(f"no place for {order.text}")


@emits.rollback
async def takes_back(scope: Scope, order: Order, cause: Failure) -> None: ...


@part.step
async def does(scope: Scope, order: Order) -> None: ...


later = Operation("later", Topic("later", Order))


@later.step(retry=Retry(initial=DAY, maximum=DAY))
async def tries(scope: Scope, order: Order) -> None:
    raise ConnectionError(f"no {order.text} yet")


async def fill(url: str) -> None:
    await fill_with_runs_that_end(url)
    await fill_with_runs_that_wait(url)


async def fill_with_runs_that_end(url: str) -> None:
    workflows: list[Workflow[Any, Any] | Operation[Any]] = [
        everything,
        child,
        fails,
        graph,
        failing_graph,
        place,
        part,
        writes,
    ]
    async with Environment(workflows, url, codec=Hiding()) as env:
        engine = env.engine
        run = await engine.start(everything(SECRET), id="e")
        for _ in range(2):
            await engine.send(Noted(text=SECRET), to="e")
            await env.settle()
            (asked,) = await engine.tasks.list(run="e", status="open")
            await engine.tasks.answer(asked.id, {"said": SECRET})
            await env.settle()
        assert SECRET in await run.result()
        for call in (fails(SECRET), failing_graph({"text": SECRET})):
            with pytest.raises(RunFailed, match=SECRET):
                await engine.run(call)
        assert (await engine.run(graph({"text": SECRET})))["text"] == SECRET
        root = await engine.emit(orders, Order(text=SECRET))
        with pytest.raises(ScopeFailed, match=SECRET):
            await root.finished()
        assert await engine.run(writes(SECRET, url.startswith("sqlite"))) == SECRET
        await engine.records.put("kind", "name", {"text": SECRET}, actor="ann")
        with pytest.raises(RunFailed, match=SECRET):  # A failure that was stored is read as it was.
            await engine.handle((await engine.runs.list(workflow="fails")).runs[0].id).result()


async def fill_with_runs_that_wait(url: str) -> None:
    workflows: list[Workflow[Any, Any] | Operation[Any]] = [tries_tomorrow, later]
    async with Environment(workflows, url, codec=Hiding(), autojump_s=None) as env:
        engine = env.engine
        await engine.send(Noted(text=SECRET), key="pending")  # No run waits for this one.
        await engine.send(NamedEvent("other", {"text": SECRET}), key="pending too")
        await engine.start(tries_tomorrow(SECRET), id="t")
        await engine.emit(later.topic, Order(text=SECRET))
        await env.quiet()
        assert {wait.kind for wait in (await engine.session.store.load(["t"]))["t"].waits} == {"retry"}


async def test_no_payload_is_in_the_files_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "hidden.db"
    await fill(f"sqlite:///{path}")
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file.name
    with sqlite3.connect(path) as connection:
        assert SECRET not in "\n".join(connection.iterdump())


async def test_no_payload_is_in_the_tables_of_postgres(postgres_servers: Servers) -> None:
    url = postgres_servers.fresh()
    await fill(url)
    dumped = postgres_servers.running(VERSIONS[-1]).dump(url.partition("schema=")[2])
    assert b"INSERT" in dumped
    assert SECRET.encode() not in dumped
