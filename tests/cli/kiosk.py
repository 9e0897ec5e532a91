"""Workflows to try the command line with. It is copied beside the stores of workers, as shop.py."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from perdure import (
    Engine,
    Event,
    Limits,
    Retry,
    Workflow,
    current_step,
    publish,
    receive,
    sleep,
    stage,
    step,
    task,
    workflow,
)
from perdure.graph import Graph


class Note(Event, event_name="note", on_target_terminated="dead_letter"):
    number: int


class Approval(msgspec.Struct):
    ok: bool
    remark: str = ""


@step
async def hello(name: str) -> str:
    return f"hello {name}"


@workflow
async def greet(name: str) -> str:
    return await hello(name)


@step(retry=Retry.never())
async def explode(name: str) -> str:
    if Path("mended").exists():
        return "mended"
    raise ValueError(f"no {name}")


@workflow
async def boom(name: str) -> str:
    return await explode(name)


@workflow
async def pays(order: str) -> Any:
    await publish("order", order)
    return await receive("paid")


@workflow
async def asks(order: str) -> str:
    got = await task(queue="refunds", title=f"Refund {order}?", payload={"order": order}, schema=Approval)
    return "refunded" if got.ok else got.remark


@workflow
async def family(children: int) -> list[str]:
    return [await greet(f"child {number}") for number in range(children)]


@step
async def render(text: str) -> None:
    current_step().stage("picture", text.encode() * 3, media_type="image/png")


@workflow
async def report(text: str) -> None:
    await render(text)
    await stage("report", {"text": text}, type="table")


@step
async def count(number: int) -> None:
    current_step().append("log", number)


@workflow
async def counts() -> None:
    for number in range(3):
        await count(number)


@workflow
async def ends_unread() -> None:
    await receive("go")


@step
async def idle(seconds: float) -> None:
    Path("idling").touch()
    await asyncio.sleep(seconds)


@workflow
async def works(seconds: float) -> str:
    await idle(seconds)
    return "worked"


@workflow
async def sleeps(seconds: float) -> None:
    await sleep(timedelta(seconds=seconds))


lookup = Graph("lookup")
lookup.node("find", hello, input={"name": "input.name"})
lookup.output({"found": "nodes.find"})

ALL: list[Workflow[Any, Any]] = [greet, boom, pays, asks, family, report, counts, ends_unread, works, sleeps, lookup]


def engine(store: str) -> Engine:
    return Engine(store, workflows=[greet])


def impatient(store: str) -> Engine:
    """One that stops soon if its store is unfit."""
    return Engine(store, workflows=[greet], limits=Limits(restarts_max=1, restart_first_s=0.01))
