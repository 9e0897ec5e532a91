"""Events and workflows that wait for them, to test sending with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure import Event, TimeReached, Workflow, first, receive, sleep, timer, workflow
from perdure.testing import Environment

HOUR = timedelta(hours=1)


class Ping(Event):
    number: int


class Brief(Event, expire_after=HOUR):
    number: int


class Lost(Event, on_target_terminated="dead_letter"):
    number: int


class Shared(Event, on_target_terminated="broadcast"):
    number: int


class Topic(Event, consume_on_read=False, delivery="all"):
    number: int


@workflow
async def pinged(count: int = 1) -> list[int]:
    return [(await receive(Ping)).number for _ in range(count)]


@workflow
async def brief() -> list[Any]:
    await sleep(2 * HOUR)
    got = await first(Brief, timer(HOUR))
    return ["nothing"] if isinstance(got, TimeReached) else [got.number]


@workflow
async def ends(how: str) -> str:
    await receive("end")
    if how == "failed":
        raise ValueError("as asked")
    return how


@workflow
async def shared() -> int:
    return (await receive(Shared)).number


@workflow
async def found() -> int:
    return (await receive(Lost)).number


@workflow
async def topic() -> int:
    return (await receive(Topic)).number


@workflow
async def sleeper() -> str:
    await sleep(timedelta(days=30))
    return "rested"


WORKFLOWS: list[Workflow[Any, Any]] = [pinged, brief, ends, shared, found, topic, sleeper]

Open = Callable[..., Environment]
