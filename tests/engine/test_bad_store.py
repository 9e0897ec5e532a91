"""Stores that are full, damaged, foreign, read-only or too new: what the engine's user is told, and what is left."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Engine, Limits, RunHandle, Workflow, resource, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import (
    EngineStopped,
    Misuse,
    SchemaTooNew,
    StoreBroken,
    StoreUnavailable,
    UnstorableValue,
)
from perdure.kernel.batch import Batch, Committed
from perdure.storage.sqlite import SqliteStore


class Gate(asyncio.Event):
    """Steps wait here."""


@step
async def grow(size: int) -> str:
    await resource(Gate).wait()
    return "x" * size


@workflow
async def growing(size: int) -> int:
    return len(await grow(size))


@workflow
async def taking(text: str) -> int:
    return len(text)


WORKFLOWS: list[Workflow[Any, Any]] = [growing, taking]


def sql(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


async def make(path: Path) -> None:
    async with Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
        await engine.run(taking("x"), id="r-1")


async def refused(path: Path) -> StoreBroken:
    engine = Engine(f"sqlite:///{path}", workflows=WORKFLOWS)
    with pytest.raises(StoreBroken) as caught:
        await engine.open()
    await engine.shutdown()
    assert str(path) in str(caught.value)
    return caught.value


async def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    sql(path, "update perdure_schema set version = 999")
    error = await refused(path)
    assert isinstance(error, SchemaTooNew)
    assert "schema version 999" in str(error)
    assert "upgrade Perdure" in str(error)


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("shopping list\n" * 500)
    assert "not an SQLite database" in str(await refused(path))
    assert path.read_text() == "shopping list\n" * 500


async def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    path.write_bytes(path.read_bytes()[:4096] + os.urandom(8192))
    assert "damaged" in str(await refused(path))


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    error = await refused(tmp_path / "missing" / "runs.db")
    assert "directory" in str(error)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mysql://host/db", "no store has the scheme 'mysql'"),
        ("runs.db", "is not a store's URL"),
        ("", "is not a store's URL"),
        ("sqlite://runs.db", "lacks a slash"),
        ("sqlite:///", "names no file"),
    ],
)
def test_a_url_that_names_no_store_shows_the_forms_there_are(url: str, hint: str) -> None:
    with pytest.raises(Misuse, match=hint) as caught:
        Engine(url)
    assert "secret" not in str(caught.value)
    assert "sqlite:///" in str(caught.value) or "memory://" in str(caught.value)


async def pages(store: SqliteStore, change: Callable[[int], int]) -> None:
    """Bound the file, as a full disk would."""

    def bound(connection: sqlite3.Connection) -> None:
        used = connection.execute("pragma page_count").fetchone()[0]
        connection.execute(f"pragma max_page_count = {change(used)}")

    await store._db.writer.run(bound)


IMPATIENT = Limits(patience_s=0.05, resend_max_s=0.01)


async def test_a_full_database_refuses_callers_and_works_again_once_there_is_room(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    async with Engine(store, workflows=WORKFLOWS, limits=IMPATIENT, resources={Gate: Gate}) as engine:
        await engine.run(taking("x"), id="before")
        await pages(store, lambda used: used)
        starts = [engine.start(taking("x" * 10_000), id=f"t-{number}") for number in range(100)]
        with pytest.raises(StoreUnavailable, match=r"did not answer for .* s: the disk .* is full; .*free some space"):
            await asyncio.gather(*starts)
        assert await engine.handle("before").result() == 1  # Reading goes on.
        await pages(store, lambda used: used * 1000)
        assert await engine.run(taking("ok")) == 2


async def full_while_a_step_runs(engine: Engine, store: SqliteStore) -> RunHandle[int]:
    """A run whose step has ended but whose result finds no room."""
    run = await engine.start(growing(1_000_000), id="growing")
    await pages(store, lambda used: used)
    resends = engine.engines.stats.resends
    engine.runtime.resources.get(Gate).set()
    while engine.engines.stats.resends == resends:
        await asyncio.sleep(0)
    return run


async def test_what_a_step_has_done_is_kept_until_there_is_room(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    async with Engine(store, workflows=WORKFLOWS, limits=IMPATIENT, resources={Gate: Gate}) as engine:
        run = await full_while_a_step_runs(engine, store)
        await pages(store, lambda used: used * 1000)
        assert await run.result() == 1_000_000
    async with Client(f"sqlite:///{tmp_path / 'runs.db'}") as client:  # A patient one, however slow the machine is.
        (entry,) = (await client.handle("growing").history()).journal
        assert entry.attempts == 1


async def test_whoever_calls_while_a_result_finds_no_room_is_told(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    async with Engine(store, workflows=WORKFLOWS, limits=IMPATIENT, resources={Gate: Gate}) as engine:
        await full_while_a_step_runs(engine, store)
        try:
            with pytest.raises(StoreUnavailable):
                await asyncio.wait_for(engine.start(taking("x")), 0.5)
        finally:
            await pages(store, lambda used: used * 1000)


async def test_an_engine_on_a_full_database_can_be_shut_down(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    async with Engine(store, workflows=WORKFLOWS, limits=IMPATIENT, resources={Gate: Gate}) as engine:
        await full_while_a_step_runs(engine, store)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Engine(url, workflows=WORKFLOWS, resources={Gate: Gate}) as engine:
        engine.runtime.resources.get(Gate).set()
        assert await engine.handle("growing").result() == 1_000_000


async def test_a_payload_over_the_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'runs.db'}", workflows=WORKFLOWS) as engine:
        with pytest.raises(
            UnstorableValue, match="store it elsewhere and pass a reference, or raise payload_bytes_max"
        ):
            await engine.start(taking("x" * 3_000_000))
        assert (await engine.runs.list()).runs == []
        assert await engine.run(taking("ok")) == 2


async def test_an_engine_that_loses_its_store_tells_whoever_waits_and_can_be_left(tmp_path: Path) -> None:
    released: list[str] = []

    class Pool:
        async def __aenter__(self) -> Pool:
            return self

        async def __aexit__(self, *_: object) -> None:
            released.append("pool")

    hangs = asyncio.Event()

    @step
    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    @workflow
    async def hanging() -> None:
        await hang()

    store = SqliteStore(tmp_path / "runs.db")
    limits = Limits(restarts_max=2, restart_first_s=0.01)
    async with Engine(store, workflows=[hanging, taking], resources={Pool: Pool}, limits=limits) as engine:
        run = await engine.start(hanging())
        result = asyncio.ensure_future(run.result())
        await hangs.wait()
        await store._db.writer.run(lambda connection: connection.execute("drop table journal"))
        await store._db.writer.run(lambda connection: connection.execute("drop table runs"))
        with pytest.raises(EngineStopped, match=r"has stopped: .*has not the tables"):
            await engine.run(taking("x"))
        with pytest.raises(EngineStopped):
            await result
        with pytest.raises(EngineStopped, match="has stopped"):
            await engine.runs.list()
        assert released == []
    assert released == ["pool"]


async def test_an_engine_that_cannot_recover_what_is_there_does_not_open_halfway(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)

    class Failing(SqliteStore):
        async def mark_dead_engines(self) -> list[str]:
            raise StoreBroken("no recovery today")

    engine = Engine(Failing(path), workflows=WORKFLOWS)
    with pytest.raises(StoreBroken, match="no recovery today"):
        await engine.open()
    with pytest.raises(EngineStopped):
        await engine.runs.list()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["runs.db"]


async def test_an_engine_that_cannot_register_its_handlers_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store failed after the engine had registered itself: what it had begun by then is ended with it."""
    fails = True
    commit = SqliteStore.commit

    async def commit_or_not(self: SqliteStore, batch: Batch) -> Committed:
        if fails and batch.shared is not None and batch.shared.handlers:
            raise StoreBroken("as asked")
        return await commit(self, batch)

    monkeypatch.setattr(SqliteStore, "commit", commit_or_not)
    place = Operation("place", Topic("orders", int))

    @place.step
    def take(scope: Scope, number: int) -> None:
        """Nothing is done."""

    engine = Engine(f"sqlite:///{tmp_path / 'shop.db'}", workflows=[place])
    with pytest.raises(StoreBroken):
        await engine.open()
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    fails = False
    await engine.open()
    await engine.shutdown()
