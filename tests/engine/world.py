"""Workflows and steps to test an engine with, and what they do to the world."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from perdure import Retry, Workflow, resource, sleep, step, workflow
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class World:
    """What steps do is seen here, and here is how they are made to fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.broken: set[str] = set()
        self.cancelled: list[str] = []


@step(retry=Retry.never())
async def touch(name: str) -> str:
    world = resource(World)
    world.calls.append(name)
    if name in world.broken:
        raise ConnectionError(f"{name} is down")
    return name.upper()


@step
async def hang() -> str:
    try:
        await asyncio.Event().wait()
    finally:
        resource(World).cancelled.append("hang")
    return "never"


@workflow
async def steps(*names: str) -> list[str]:
    return [await touch(name) for name in names]


@workflow
async def waiting() -> str:
    await sleep(timedelta(days=1))
    return "waited"


@workflow
async def hanging() -> str:
    await touch("before")
    return await hang()


WORKFLOWS: list[Workflow[Any, Any]] = [steps, waiting, hanging]


def environment(source: StoreSource, world: World | None = None, **options: Any) -> Environment:
    world = world or World()
    return Environment(WORKFLOWS, source, autojump_s=None, resources={World: lambda: world}, **options)
