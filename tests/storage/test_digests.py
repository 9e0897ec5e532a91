"""Stores from before entries had digests: what is in them goes on, and engines from then go on writing to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from perdure import Engine, NamedEvent, Retry, receive, step, workflow
from perdure.storage.postgres.schema import MIGRATIONS as POSTGRES_MIGRATIONS
from perdure.storage.sqlite.schema import MIGRATIONS as SQLITE_MIGRATIONS
from perdure.testing import Environment
from perdure.testing.conformance.base import a_run, an_entry, insert
from tests.storage.postgres.meddler import author_on, meddler


@step(retry=Retry.never())
async def charge(order: str) -> str:
    if order == "":
        raise ValueError("no order")
    return order


@workflow(name="digests.checkout")
async def checkout(order: str) -> str:
    done = await charge(order)
    await receive("go")
    return done + await charge(done)


@workflow(name="digests.checkout")
async def changed(order: str) -> str:
    done = await charge(order + "!")
    await receive("go")
    return done + await charge(done)


def before(known: dict[int, str]) -> int:
    """The version of the schema without digests."""
    (number,) = [number for number, text in known.items() if text.startswith("-- What steps and children were called")]
    return number - 1


async def prepare(url: str) -> None:
    async with Environment([checkout], url) as env:
        await env.engine.start(checkout("o-17"), id="r")
        await env.engine.start(checkout(""), id="failed")
        await env.quiet()
        await env.engine.handle("failed").retry()
        await env.quiet()


async def check(url: str) -> None:
    """The entry from before is not compared; those from now on have digests."""
    async with Engine(url, workflows=[changed]) as engine:
        await engine.send(NamedEvent("go", None), to="r")
        assert await engine.handle("r").result() == "o-17o-17"
        _, entries = await engine.session.store.journal("r")
        assert [bool(entry.digest) for entry in entries] == [False, False, True]
        (aside,) = await engine.session.store.archived("failed")
        assert aside[1].digest == ""


async def test_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    await prepare(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from journal where digest <> ''").fetchone() == (2,)
        for table in ("journal", "journal_archive"):
            connection.execute(f"alter table {table} drop column digest")
        for index in ("engines_living", "engines_ended", "engines_code"):
            connection.execute(f"drop index {index}")
        connection.execute("alter table engines drop column ended_at")
        for table in ("perdure_tokens", "perdure_sessions"):
            connection.execute(f"drop table {table}")
        connection.execute("update perdure_schema set version = ?", (before(SQLITE_MIGRATIONS),))
        connection.commit()
    await check(f"sqlite:///{path}")


DROP = """
drop function require_v1, is_name_v1, is_now_v1, are_short_tags_v1;
drop function are_tags_v1, obstacle_v1, insert_created_v1, start_v2, emit_v2, put_token_v1;
drop table perdure_tokens, perdure_sessions;
drop function enter_step_v2, stage_v2, end_step_v1, end_dead_steps_v1, is_step_open_v1, step_key_v1, step_family_v1;
drop index engines_ended, engines_code;
alter table engines drop column ended_at;
drop function write_journal_v1, finish_journal_v1;
drop type entry_v2;
alter table journal drop column digest;
alter table journal_archive drop column digest;
"""


async def test_in_postgres(empty_schema: Callable[[], str]) -> None:
    url = empty_schema()
    await prepare(url)
    async with meddler(url) as other:
        assert await other.fetchval("select count(*) from journal where digest <> ''") == 2
        await other.execute(DROP)
        await other.execute("update perdure_schema set version = $1", before(POSTGRES_MIGRATIONS))
    await check(url)


OLD_WRITE = """
select write_rest_v1(row(
    '{}', '{}', $1::archive_v1[], '{}', $2::entry_v1[], '{}', '{}', '{}', '{}', '{}', '{}'
)::writes_v1)
"""


async def test_an_engine_of_an_earlier_perdure_writes_entries_without_digests(empty_schema: Callable[[], str]) -> None:
    url = empty_schema()
    async with author_on(url) as author:
        await author.commit(insert(a_run()), journal=[an_entry(seq=1, digest="0d4cbb29")])
        async with meddler(url) as other:
            row: tuple[Any, ...] = ("r-1", 1, "1", "step", "reserve", '"1"', None, 1, 1, 2)
            await other.execute(OLD_WRITE, [("r-1", 1, 1)], [row])
        assert await author.store.archived("r-1") == [(1, an_entry(seq=1, digest="0d4cbb29"))]
        assert (await author.store.journal("r-1"))[1] == [an_entry(seq=1)]
