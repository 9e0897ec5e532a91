"""Connections that cannot start a run say why, and go on; those with settings of their own can all the same."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, insert
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from perdure import Client, Engine, workflow
from perdure.engine import AnyClient
from perdure.errors import Misuse, RunNotFound
from perdure.kernel.status import Status
from perdure.storage.postgres import caller_grants
from tests.starting.conftest import path_of
from tests.starting.transactions import ON_POSTGRES, opened
from tests.storage.postgres.meddler import meddler


@workflow
async def ship(order: str) -> str:
    return order


@pytest.fixture
def postgres(urls: dict[str, str]) -> str:
    return urls["postgres"]


@pytest.fixture
def lite(urls: dict[str, str]) -> str:
    return urls["sqlite"]


def plain(url: str, driver: str = "postgresql") -> str:
    return url.partition("?")[0].replace("postgresql", driver, 1)


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncGenerator[Any]:
    connection: Any = await asyncpg.connect(plain(url))
    try:
        yield connection
    finally:
        await connection.close()


async def refused(client: AnyClient, connection: object, match: str) -> None:
    with pytest.raises(Misuse, match=match):
        await client.start(ship("o"), id="refused", connection=connection)
    with pytest.raises(RunNotFound):
        await client.handle("refused").status()


# ---------------------------------------------------------------------------------------------------------------------
# Kinds


async def test_what_is_no_connection_is_refused(postgres: str) -> None:
    pool = await asyncpg.create_pool(plain(postgres), min_size=1)
    here = create_engine(plain(postgres, "postgresql+psycopg"), poolclass=NullPool)
    async with Client(postgres) as client:
        for other in ("postgresql://db", object(), pool, here, sessionmaker(here)):
            await refused(client, other, "connection= takes a connection of asyncpg or psycopg 3")
        with closing(psycopg.connect(plain(postgres))) as connection, connection.cursor() as cursor:
            await refused(client, cursor, "of a cursor its connection")
    await pool.close()


async def test_a_connection_of_a_pool_will_do(postgres: str, new_id: str) -> None:
    async with asyncpg.create_pool(plain(postgres), min_size=1) as pool, Client(postgres) as client:
        async with pool.acquire() as connection, connection.transaction():
            run = await client.start(ship("o"), id=new_id, connection=connection)
        assert await run.status() == Status.CREATED


async def test_a_store_in_memory_has_no_connections() -> None:
    async with Client("memory://") as client:
        await refused(client, sqlite3.connect(":memory:"), "memory:// has none")


async def test_a_connection_to_another_kind_of_database_is_refused(postgres: str, lite: str) -> None:
    with closing(sqlite3.connect(path_of(lite))) as own, closing(psycopg.connect(plain(postgres))) as other:
        async with Client(postgres) as client:
            await refused(client, own, "the store is on postgresql, and this connection is to sqlite")
        async with Client(lite) as client:
            await refused(client, other, "the store is on sqlite, and this connection is to postgresql")


async def test_code_that_blocks_is_told_to_await_what_must_be(postgres: str) -> None:
    async with Client(postgres) as client, of_asyncpg(postgres) as connection:
        prepared = await client.prepare_start(ship("o"), id="refused")
        with pytest.raises(Misuse, match="is an async connection"):
            prepared.insert(connection)


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_code_that_blocks_starts_in_its_own_thread(urls: dict[str, str], backend: str, new_id: str) -> None:
    """A connection of sqlite3 is bound to the thread that made it."""
    url = urls[backend]

    def connect() -> Any:
        return sqlite3.connect(path_of(url)) if backend == "sqlite" else psycopg.connect(plain(url))

    async with Client(url) as client:
        prepared = await client.prepare_start("ship", {"order": new_id}, version="", id=new_id)

        def work() -> None:
            with closing(connect()) as connection:
                assert prepared.insert(connection).id == new_id
                connection.commit()

        await asyncio.to_thread(work)
        view = await client.runs.get(new_id)
        assert view is not None
        assert (view.status, view.input) == (Status.CREATED, {"order": new_id})


async def test_scoped_sessions(postgres: str, new_id: str) -> None:
    here = create_engine(plain(postgres, "postgresql+psycopg"), poolclass=NullPool)
    there = create_async_engine(plain(postgres, "postgresql+asyncpg"), poolclass=NullPool)
    async with Client(postgres) as client:
        scoped = scoped_session(sessionmaker(here))
        run = await client.start(ship("o"), id=f"{new_id}-sync", connection=scoped)
        scoped.commit()
        scoped.remove()
        assert await run.status() == Status.CREATED
        awaited = async_scoped_session(async_sessionmaker(there), scopefunc=lambda: 1)
        run = await client.start(ship("o"), id=f"{new_id}-async", connection=awaited)
        await awaited.commit()
        await awaited.remove()
        assert await run.status() == Status.CREATED
    await there.dispose()


# ---------------------------------------------------------------------------------------------------------------------
# Postgres


async def test_without_a_transaction_nothing_is_started(postgres: str) -> None:
    async with Client(postgres) as client:
        async with of_asyncpg(postgres) as connection:
            await refused(client, connection, "not in a transaction")
        with closing(psycopg.connect(plain(postgres), autocommit=True)) as own:
            await refused(client, own, "not in a transaction")
            with own.transaction():
                run = await client.start(ship("o"), connection=own)
            assert await run.status() == Status.CREATED
        here = create_engine(plain(postgres, "postgresql+psycopg"), poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with here.connect() as connection:
            await refused(client, connection, "not in a transaction")
        there = create_async_engine(
            plain(postgres, "postgresql+asyncpg"), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        async with there.connect() as connection:
            await refused(client, connection, "not in a transaction")
        await there.dispose()


@pytest.mark.parametrize("driver", [f"postgres: {name}" for name in ON_POSTGRES])
async def test_a_transaction_that_has_failed_must_be_rolled_back(postgres: str, driver: str) -> None:
    async with Client(postgres) as client, opened(driver, postgres) as mine:
        with pytest.raises((asyncpg.PostgresError, psycopg.Error, DBAPIError)):
            await mine.execute("select 1 / 0")
        await refused(client, mine.connection, "roll it back, and begin a new one")
        await mine.rollback()
        run = await client.start(ship("o"), connection=mine.connection)
        await mine.commit()
        assert await run.status() == Status.CREATED


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders_once"
    id: Mapped[str] = mapped_column(primary_key=True)


async def test_a_session_whose_flush_has_failed_must_be_rolled_back(postgres: str, new_id: str) -> None:
    here = create_engine(plain(postgres, "postgresql+psycopg"), poolclass=NullPool)
    Base.metadata.create_all(here)
    async with Client(postgres) as client:
        with Session(here) as session:
            session.execute(insert(Order).values(id=new_id))
            session.add(Order(id=new_id))
            with pytest.raises(IntegrityError):
                session.flush()
            await refused(client, session, "roll it back, and begin a new one")
            session.rollback()
            session.add(Order(id=new_id))
            run = await client.start(ship(new_id), connection=session)
            session.commit()
        assert await run.status() == Status.CREATED


async def test_a_read_only_transaction_is_refused_and_goes_on(postgres: str) -> None:
    async with Client(postgres) as client, of_asyncpg(postgres) as connection:
        await connection.execute("begin read only")
        await refused(client, connection, "read-only")
        assert await connection.fetchval("select 1") == 1


async def test_another_database_is_refused_and_goes_on(postgres: str) -> None:
    async with meddler(postgres) as other:
        await other.execute("create database elsewhere")
    away = plain(postgres).removesuffix("postgres") + "elsewhere"
    async with Client(postgres) as client, of_asyncpg(away) as connection:
        async with connection.transaction():
            await refused(client, connection, "leads to another database than the store, which is postgresql://")
            assert await connection.fetchval("select 1") == 1
        # It may have a schema of the same name, with Perdure's tables, and yet be another.
        async with Client(postgres.replace("/postgres?", "/elsewhere?")), connection.transaction():
            await refused(client, connection, "leads to another database")
    async with meddler(postgres) as other:
        await other.execute("drop database elsewhere")


async def test_a_user_without_rights_is_refused_and_goes_on(postgres: str) -> None:
    schema = postgres.partition("?schema=")[2]
    async with Client(postgres) as client, meddler(postgres) as other:
        await other.execute("create role visitor login")
        async with of_asyncpg(postgres.replace("postgres@", "visitor@")) as visitor:
            for grant in (f"revoke all on schema {schema} from visitor", f"grant usage on schema {schema} to visitor"):
                await other.execute(grant)
                async with visitor.transaction():
                    await refused(client, visitor, f'grant it usage on the schema "{schema}"')
                    assert await visitor.fetchval("select 1") == 1
            await other.execute(caller_grants("visitor", schema))
            async with visitor.transaction():
                run = await client.start(ship("o"), tags={"a": "b"}, connection=visitor)
            assert await run.status() == Status.CREATED
        await other.execute("drop owned by visitor")
        await other.execute("drop role visitor")


async def test_settings_of_the_connection_do_not_matter(postgres: str, new_id: str) -> None:
    class Raw(psycopg.RawCursor[Any]):
        pass

    async with Client(postgres) as client:
        with closing(psycopg.Connection[Any].connect(plain(postgres), row_factory=dict_row)) as own:
            own.cursor_factory = Raw
            own.execute("set search_path = pg_catalog")
            own.execute("set timezone = 'Asia/Tokyo'")
            own.execute("set datestyle = 'SQL, DMY'")
            for _ in range(2):
                await client.start(ship("o"), id=new_id, connection=own)
            own.commit()
        assert await client.handle(new_id).status() == Status.CREATED


async def test_whoever_started_it_need_not_be_there_at_the_commit(postgres: str, new_id: str) -> None:
    with closing(psycopg.connect(plain(postgres))) as own:
        async with Client(postgres) as client:
            await client.start(ship(new_id), id=new_id, connection=own)
        own.commit()
    async with Engine(postgres, workflows=[ship], poll_s=0.05) as engine:
        assert await engine.handle(new_id).result() == new_id


async def test_a_repeatable_read_that_is_overtaken_fails_as_the_driver_has_it(postgres: str, new_id: str) -> None:
    """So that whoever tries such transactions again does so with this one."""
    async with Client(postgres) as client, of_asyncpg(postgres) as connection:
        await connection.execute("begin isolation level repeatable read")
        await connection.fetchval("select count(*) from orders")
        await client.start(ship("o"), id=new_id)
        with pytest.raises(asyncpg.SerializationError):
            await client.start(ship("o"), id=new_id, connection=connection)


# ---------------------------------------------------------------------------------------------------------------------
# SQLite


async def test_another_file_is_refused(lite: str, tmp_path: Path) -> None:
    path = path_of(lite)
    async with Client(lite) as client:
        with closing(sqlite3.connect(":memory:")) as memory:
            await refused(client, memory, "is to a database in memory")
            memory.execute("attach ? as shop", [str(path)])
            await refused(client, memory, "only attached")
        with closing(sqlite3.connect(tmp_path / "other.db")) as other:
            await refused(client, other, "other.db, and the store to")
        link = tmp_path / "link.db"
        link.symlink_to(path)
        with closing(sqlite3.connect(link)) as same:
            run = await client.start(ship("o"), connection=same)
            same.commit()
        assert await run.status() == Status.CREATED


async def test_autocommit_on_sqlite_is_refused_outside_a_transaction(lite: str) -> None:
    async with Client(lite) as client:
        with closing(sqlite3.connect(path_of(lite), isolation_level=None)) as own:
            await refused(client, own, "autocommit mode")
            own.execute("begin immediate")
            run = await client.start(ship("o"), connection=own)
            own.execute("commit")
            assert await run.status() == Status.CREATED
        here = create_engine(lite, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with here.connect() as connection:
            await refused(client, connection, "autocommit mode")


async def test_a_read_only_connection_to_the_file_is_refused(lite: str) -> None:
    async with Client(lite) as client:
        with closing(sqlite3.connect(f"file:{path_of(lite)}?mode=ro", uri=True)) as own:
            await refused(client, own, "read-only")
        with closing(sqlite3.connect(path_of(lite))) as own:
            own.execute("pragma query_only = on")
            await refused(client, own, "read-only")
        here = create_engine(f"sqlite:///file:{path_of(lite)}?mode=ro&uri=true", poolclass=NullPool)
        with here.connect() as connection:
            await refused(client, connection, "read-only")


async def test_factories_of_the_connection_do_not_matter(lite: str, new_id: str) -> None:
    async with Client(lite) as client:
        with closing(sqlite3.connect(path_of(lite))) as own:
            own.row_factory = sqlite3.Row
            own.text_factory = bytes
            for _ in range(2):
                await client.start(ship("o"), id=new_id, connection=own)
            own.commit()
        assert await client.handle(new_id).status() == Status.CREATED


async def test_a_statement_that_fails_half_way_takes_all_of_the_start_with_it(lite: str, new_id: str) -> None:
    """Whoever goes on after an error, and commits, does not leave half a run behind."""
    async with Client(lite) as client:
        with closing(sqlite3.connect(path_of(lite))) as own:
            own.execute("insert into orders (id) values (?)", [new_id])
            own.set_authorizer(lambda action, table, *_: int(table == "audit" and action == sqlite3.SQLITE_INSERT))
            with pytest.raises(sqlite3.DatabaseError):
                await client.start(ship("o"), id=new_id, connection=own)
            own.set_authorizer(None)
            own.commit()
            assert own.execute("select count(*) from orders where id = ?", [new_id]).fetchone() == (1,)
            assert own.execute("select count(*) from runs where id = ?", [new_id]).fetchone() == (0,)
