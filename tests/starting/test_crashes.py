"""Whoever dies before the commit leaves nothing, and takes nobody with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import asyncpg
import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from perdure import Client, Engine, workflow
from perdure.cooperation import Topic
from perdure.errors import RunNotFound
from tests.starting.conftest import Begin
from tests.starting.transactions import ON_POSTGRES
from tests.storage.postgres.meddler import meddler

# However each driver has it.
CUT = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, psycopg.Error, DBAPIError)
ORDERS = Topic("emitted.orders", dict[str, str])
ROOT = Path(__file__).resolve().parent.parent.parent


@workflow
async def ship(order: str) -> str:
    return f"{order} shipped"


@pytest.mark.parametrize("driver", [f"postgres: {name}" for name in ON_POSTGRES])
async def test_a_connection_that_is_cut_before_the_commit(url: str, begin: Begin, new_id: str) -> None:
    async with Engine(url, workflows=[ship]) as engine, meddler(url) as other:
        async with begin() as mine:
            await mine.execute(f"set application_name = '{new_id}'")
            run = await engine.start(ship(new_id), id=new_id, connection=mine.connection)
            query = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = $1"
            assert await other.fetchval(query, new_id)
            with pytest.raises(CUT):
                await mine.commit()
        with pytest.raises(RunNotFound):
            await run.status()
        assert await engine.run(ship(new_id), id=new_id) == f"{new_id} shipped"


@pytest.mark.parametrize("mode", ["emit", "commit"])
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_a_process_that_is_killed_before_or_after_it_commits_a_message(
    urls: dict[str, str], backend: str, mode: str, new_id: str
) -> None:
    url = urls[backend]
    async with Client(url) as client:
        await client.topics.register(ORDERS, "clerk")
        with subprocess.Popen(
            [sys.executable, "-m", "tests.starting.deaths", url, new_id, mode], stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            process.kill()
        waiting = (await client.runs.list(workflow="clerk", status="created")).runs
        assert len(waiting) == (1 if mode == "commit" else 0)
        root = await client.emit(ORDERS, {"id": new_id}, id=new_id)
        assert [run.id for run in waiting] in ([], list(root.run_ids))
        for run_id in root.run_ids:
            await client.topics.complete(run_id)
        await root.finished()
        await client.topics.retire(ORDERS, "clerk")


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
async def test_a_process_that_is_killed_before_the_commit(urls: dict[str, str], backend: str, new_id: str) -> None:
    url = urls[backend]
    async with Client(url) as client:
        with subprocess.Popen(
            [sys.executable, "-m", "tests.starting.deaths", url, new_id], stdout=subprocess.PIPE, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"started\n"
            process.kill()
        async with Engine(url, workflows=[ship]) as engine:
            with pytest.raises(RunNotFound):
                await client.handle(new_id).status()
            # It waits for what a server may not have noticed yet.
            assert await engine.run(ship(new_id), id=new_id) == f"{new_id} shipped"
