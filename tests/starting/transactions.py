"""Callers' own connections, of each driver, in one form: begin, execute, commit, roll back."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

ON_POSTGRES = (
    "asyncpg",
    "psycopg",
    "psycopg async",
    "sqlalchemy connection",
    "sqlalchemy session",
    "sqlalchemy async connection",
    "sqlalchemy async session",
)
ON_SQLITE = (
    "sqlite3",
    "sqlalchemy connection",
    "sqlalchemy session",
    "sqlalchemy async connection",
    "sqlalchemy async session",
)
DRIVERS = [*(f"postgres: {name}" for name in ON_POSTGRES), *(f"sqlite: {name}" for name in ON_SQLITE)]


class Transaction:
    """A transaction of somebody who knows nothing of Perdure, beginning with the first statement."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection  # what is given to start()

    @property
    def blocks(self) -> bool:
        return True

    async def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class OfAsyncpg(Transaction):
    @property
    def blocks(self) -> bool:
        return False

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def commit(self) -> None:
        await self.connection.execute("commit")

    async def rollback(self) -> None:
        await self.connection.execute("rollback")
        await self.connection.execute("begin")


class OfPsycopgAsync(OfAsyncpg):
    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class OfSqlalchemy(Transaction):
    async def execute(self, sql: str) -> None:
        is_session = isinstance(self.connection, Session)
        (self.connection.connection() if is_session else self.connection).exec_driver_sql(sql)


class OfSqlalchemyAsync(OfPsycopgAsync):
    async def execute(self, sql: str) -> None:
        is_session = isinstance(self.connection, AsyncSession)
        await (await self.connection.connection() if is_session else self.connection).exec_driver_sql(sql)


@asynccontextmanager
async def opened(driver: str, url: str) -> AsyncGenerator[Transaction]:
    """A transaction on the database of a store's URL, rolled back if it is left open. On SQLite too, its connection can
    be used in any thread, by one at a time."""
    url = url.partition("?")[0]
    database, _, name = driver.partition(": ")
    if name == "sqlite3":
        lite = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
        try:
            yield Transaction(lite)
        finally:
            lite.close()
    elif name == "asyncpg":
        pg: Any = await asyncpg.connect(url)
        try:
            await pg.execute("begin")
            yield OfAsyncpg(pg)
        finally:
            pg.terminate()
    elif name == "psycopg":
        connection = psycopg.connect(url)
        try:
            yield Transaction(connection)
        finally:
            connection.close()
    elif name == "psycopg async":
        awaited = await psycopg.AsyncConnection.connect(url)
        try:
            yield OfPsycopgAsync(awaited)
        finally:
            await awaited.close()
    elif "async" in name:
        # One driver for the connection, the other for the session.
        dialect = "postgresql+asyncpg" if name.endswith("connection") else "postgresql+psycopg"
        dialect = dialect if database == "postgres" else "sqlite+aiosqlite"
        there = create_async_engine(f"{dialect}:{url.partition(':')[2]}", poolclass=NullPool)
        async with there.connect() if name.endswith("connection") else AsyncSession(there) as used:
            yield OfSqlalchemyAsync(used)
        await there.dispose()
    else:
        if database == "postgres":
            here = create_engine(f"postgresql+psycopg:{url.partition(':')[2]}", poolclass=NullPool)
        else:
            here = create_engine(url, poolclass=NullPool, connect_args={"check_same_thread": False})
        with here.connect() if name.endswith("connection") else Session(here) as own:
            yield OfSqlalchemy(own)
        here.dispose()
