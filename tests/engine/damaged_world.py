"""A store with a bit of everything in it, and workflows to go on with it after one of its rows was damaged."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from perdure import (
    Engine,
    Event,
    NamedEvent,
    Retry,
    Workflow,
    current_step,
    event,
    first,
    publish,
    receive,
    sleep,
    stage,
    step,
    stream,
    task,
    timer,
    workflow,
)
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import RunFailed
from perdure.testing.control import kill

LARGE = 20_000  # characters: more than a row holds


class Note(Event, event_name="note", on_target_terminated="dead_letter"):
    number: int


class WorkFound(Event, event_name="damaged.news", consume_on_read=False, expire_after=timedelta(days=7)):
    text: str


class Order(msgspec.Struct):
    sku: str


@step
async def look(name: str) -> str:
    return f"seen {name}"


@step
async def carry(size: int) -> str:
    current_step().append("log", size)
    return "x" * size


@step(retry=Retry.never())
async def explode() -> None:
    raise ValueError("no")


@workflow
async def waits(name: str) -> str:
    await look(name)
    await carry(LARGE)
    await publish("progress", 0.5)
    await stream("words").append(name)
    await stage("paper", {"name": name})
    await first(event("go"), timer(days=30))
    return "went"


@workflow
async def sleeps() -> str:
    await sleep(timedelta(days=30))
    return "slept"


@workflow
async def asks() -> str:
    await task(queue="desk", title="?", payload={"a": 1})
    return "answered"


@workflow
async def parent(name: str) -> str:
    return await waits(name)


@workflow
async def booms() -> None:
    await look("boom")
    await explode()


@workflow
async def short() -> str:
    return await look("short")


@workflow
async def unread() -> None:
    await receive("end")


orders, stock = Topic("orders", Order), Topic("stock", Order)
place = Operation("place", orders)


@place.step
async def begin(scope: Scope, order: Order) -> None:
    scope.return_value("sku", order.sku)
    await scope.emit(stock, Order(sku=order.sku))


@place.step
async def finish(scope: Scope, order: Order) -> None: ...


ALL: list[Workflow[Any, Any] | Operation[Any]] = [waits, sleeps, asks, parent, booms, short, unread, place]


async def furnish(url: str) -> None:
    """Runs of every kind, once to be damaged (victim-…) and once to go on (other-…). Their engine was killed."""
    engine = Engine(url, workflows=ALL)
    await engine.open()
    await engine.topics.register(stock, "person")
    for who in ("victim", "other"):
        for call, name in ((waits(who), "wait"), (sleeps(), "sleep"), (asks(), "ask"), (parent(who), "parent")):
            await engine.start(call, id=f"{who}-{name}", tags={"who": who})
        await engine.start(unread(), id=f"{who}-unread")
        await engine.send(Note(number=1), to=f"{who}-unread")
        await engine.send(NamedEvent("end"), to=f"{who}-unread")
        await engine.handle(f"{who}-unread").result()
        with suppress(RunFailed):
            await engine.run(booms(), id=f"{who}-boom")
        with suppress(RunFailed):
            await (await engine.handle(f"{who}-boom").retry()).result()
        await engine.run(short(), id=f"{who}-short")
        await engine.emit(orders, Order(sku=who), id=f"{who}-message")
        await engine.send(Note(number=2), to=f"{who}-wait")
        await engine.send(NamedEvent(f"{who}-queued"), key=f"{who}-key")
        await engine.records.put("prompt", who, {"text": who})
        while not await _is_waiting(engine, who):
            await asyncio.sleep(0.001)
    kill(engine)


async def _is_waiting(engine: Engine, who: str) -> bool:
    names = [f"{who}-{name}" for name in ("wait", "sleep", "ask", "parent")]
    runs = (await engine.runs.list(limit=1000)).runs
    found = [run.status for run in runs if run.id in names or run.workflow in ("place", "waits")]
    return set(found) == {"suspended"}
