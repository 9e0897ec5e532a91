"""One store per database for all tests of a module, with a table of the caller's beside it. Each test takes new ids."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from perdure.storage import open_store
from tests.starting.transactions import Transaction, opened
from tests.storage.postgres.server import Servers

Begin = Callable[[], AbstractAsyncContextManager[Transaction]]

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def urls(postgres_servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {
        "postgres": postgres_servers.fresh(),
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('starting') / 'shop.db'}",
    }
    asyncio.run(_prepare(found))
    return found


async def _prepare(urls: dict[str, str]) -> None:
    for url in urls.values():
        store = open_store(url)
        await store.open()
        await store.close()
    connection = await asyncpg.connect(urls["postgres"].partition("?")[0])
    await connection.execute("create table if not exists orders (id text)")
    await connection.close()
    lite = sqlite3.connect(path_of(urls["sqlite"]))
    lite.execute("create table orders (id text)")
    lite.close()


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@pytest.fixture
def url(driver: str, urls: dict[str, str]) -> str:
    return urls[driver.partition(":")[0]]


@pytest.fixture
def begin(driver: str, url: str) -> Begin:
    """Opens transactions of the driver that the test is about."""

    @asynccontextmanager
    async def begun() -> AsyncGenerator[Transaction]:
        async with opened(driver, url) as transaction:
            yield transaction

    return begun


@pytest.fixture
def new_id() -> str:
    return f"o-{next(_NUMBERS)}"
