"""Engines that share a store, in one process and in real time: what is awaited is what they do, never a delay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from perdure import Engine, Limits
from perdure.models.functions.define import Workflow
from perdure.ports import Store

Workflows = Sequence[Workflow[Any, Any]]


class Fleet:
    """Opens engines on one store, and shuts down those that are left in the end."""

    def __init__(self, make: Callable[[], Store], stack: AsyncExitStack) -> None:
        self._make = make
        self._stack = stack

    async def engine(self, workflows: Workflows, *, store: Store | None = None, **options: Any) -> Engine:
        options = {"poll_s": 0.2, "limits": Limits(grace_s=0), **options}
        engine = Engine(store or self._make(), workflows=workflows, **options)
        return await self._stack.enter_async_context(engine)


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
