"""Stores and engines to test with, and somebody else's connection to meddle with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from perdure.storage import open_store
from perdure.testing.conformance.base import Author


@asynccontextmanager
async def author_on(url: str, engine_id: str = "e-1") -> AsyncGenerator[Author]:
    store = open_store(url)
    await store.open()
    try:
        yield await Author.enroll(store, engine_id)
    finally:
        await store.close()


def schema_of(url: str) -> str:
    return url.partition("?schema=")[2].partition("&")[0]


@asynccontextmanager
async def meddler(url: str) -> AsyncGenerator[Any]:
    """A connection of somebody else, in the store's schema."""
    connection: Any = await asyncpg.connect(url.partition("?")[0], server_settings={"search_path": schema_of(url)})
    try:
        yield connection
    finally:
        await connection.close()


async def until_somebody_waits(connection: Any, kind: str | None = None, count: int = 1) -> None:
    """Until so many statements wait for locks (of a kind) that others hold."""
    query = "select count(*) from pg_locks where not granted and ($1::text is null or locktype = $1)"
    while await connection.fetchval(query, kind) < count:
        await asyncio.sleep(0.005)
