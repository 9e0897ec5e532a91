"""Engines that share a store, in one process and in real time: what is awaited is what they do, never a delay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.models.functions.define import Workflow
from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from tests.storage.postgres.server import Servers

Workflows = Sequence[Workflow[Any, Any]]


class Fleet:
    """Opens engines on one store, and shuts down those that are left in the end."""

    def __init__(self, make: Callable[[], Store], stack: AsyncExitStack) -> None:
        self._make = make
        self._stack = stack

    async def engine(self, workflows: Workflows, **options: Any) -> Engine:
        options = {"poll_s": 0.2, "grace_s": 0, **options}
        return await self._stack.enter_async_context(Engine(self._make(), workflows=workflows, **options))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    if request.param == "memory":
        database = MemoryDatabase()
        return lambda: MemoryStore(database)
    if request.param == "postgres":
        servers: Servers = request.getfixturevalue("postgres_servers")
        url = servers.fresh()
        return lambda: open_store(url)
    return lambda: open_store(f"sqlite:///{tmp_path / 'runs.db'}")


Sailing = Callable[[], AbstractAsyncContextManager[Fleet]]


@pytest.fixture
def fleet(make_store: Callable[[], Store]) -> Sailing:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Fleet]:
        async with AsyncExitStack() as stack:
            yield Fleet(make_store, stack)

    return opened


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)
