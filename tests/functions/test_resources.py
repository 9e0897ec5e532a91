"""Resources: made once when the engine opens, released in reverse when it ends, found by their type in steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from perdure import resource, step, workflow
from perdure.errors import Misuse, NotInStep, RunFailed
from perdure.testing import Environment


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name


class Client(Pool): ...


class Cache(Pool): ...


class Bus(Pool): ...


def factories(log: list[str]) -> dict[type[Any], Callable[[], Any]]:
    @contextmanager
    def cache() -> Iterator[Cache]:
        log.append("make cache")
        yield Cache("cache")
        log.append("release cache")

    @asynccontextmanager
    async def bus() -> AsyncIterator[Bus]:
        log.append("make bus")
        yield Bus("bus")
        log.append("release bus")

    async def client() -> Client:
        log.append("make client")
        return Client("client")

    def pool() -> Pool:
        log.append("make pool")
        return Pool("pool")

    return {Pool: pool, Cache: cache, Client: client, Bus: bus}


@step
async def names() -> list[str]:
    return [resource(kind).name for kind in (Pool, Client, Cache, Bus)]


@step
def names_in_a_thread() -> list[str]:
    return [resource(kind).name for kind in (Pool, Client, Cache, Bus)]


@workflow
async def ask() -> list[list[str]]:
    return [await names(), await names_in_a_thread()]


async def test_each_is_made_once_and_released_in_reverse() -> None:
    log: list[str] = []
    async with Environment([ask], resources=factories(log)) as env:
        assert await env.engine.run(ask()) == [["pool", "client", "cache", "bus"]] * 2
        assert await env.engine.run(ask()) == [["pool", "client", "cache", "bus"]] * 2
        assert log == ["make pool", "make cache", "make client", "make bus"]
    assert log[4:] == ["release bus", "release cache"]


async def test_a_missing_one_fails_the_step_and_says_how_to_give_it() -> None:
    calls: list[int] = []

    @step
    async def need() -> None:
        calls.append(1)
        resource(Bus)

    @workflow
    async def flow() -> None:
        await need()

    async with Environment([flow], resources={Pool: lambda: Pool("p")}) as env:
        with pytest.raises(RunFailed, match=r"no resource Bus; it has .*Pool.*Engine\(resources=\{Bus: factory\}\)"):
            await env.engine.run(flow())
        assert len(calls) == 1


async def test_a_factory_that_fails_keeps_the_engine_shut_and_releases_the_others() -> None:
    log: list[str] = []

    def broken() -> Pool:
        raise OSError("no database")

    made = factories(log)
    env = Environment([ask], resources={Cache: made[Cache], Bus: made[Bus], Pool: broken})
    with pytest.raises(OSError, match="no database"):
        async with env:
            raise AssertionError("never")
    assert log == ["make cache", "make bus", "release bus", "release cache"]


async def test_resources_are_for_steps() -> None:
    @workflow
    async def flow() -> None:
        resource(Pool)

    with pytest.raises(NotInStep):
        resource(Pool)
    async with Environment([flow], resources={Pool: lambda: Pool("p")}) as env:
        with pytest.raises(RunFailed) as caught:
            await env.engine.run(flow())
        assert isinstance(caught.value.__cause__, Misuse)
