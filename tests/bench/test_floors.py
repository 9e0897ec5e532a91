"""The floors write what the engine writes: else their ratio would say nothing."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from bench import events_floor, fanout, fanout_floor, floor, hierarchies, hierarchies_floor, postgres, steps
from bench.events import send_all, start_waiters, waiter
from bench.events_floor import EventsFloor
from perdure import Engine
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.server import Servers

# What no two runs of anything have in common: ids, times and numbers of a count.
OWN = {
    "id", "run_id", "parent_id", "target", "owner", "number", "born", "since", "at", "expires_at", "created_at",
    "started_at", "updated_at", "completed_at", "scope", "message_id", "coroutine_identifier",
}  # fmt: skip
ID_OR_TIME = re.compile(r"[0-9a-f-]{36}|\d{16}")


def columns(path: Path, table: str) -> dict[str, Counter[Any]]:
    """How often each value is in each column of a table."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for _, name, *_ in db.execute(f"pragma table_info({table})")]
        rows = db.execute(f"select * from {table}").fetchall()
    return {
        name: Counter(ID_OR_TIME.sub("…", value) if isinstance(value, str) else value for value in values)
        for name, values in zip(names, zip(*rows, strict=True), strict=False)
        if name not in OWN
    }


def assert_alike(one: Path, other: Path) -> None:
    for table in ("runs", "journal", "audit", "waits", "events", "sequence", "messages", "message_event"):
        assert columns(one, table) == columns(other, table), table


async def test_for_steps(tmp_path: Path) -> None:
    sizes = {"runs": 6, "steps": 3, "in_flight": 2, "singles": 2}
    await floor.measure(tmp_path, **sizes)
    await steps.measure(tmp_path, **sizes)
    assert_alike(tmp_path / "floor.db", tmp_path / "steps.db")


async def test_for_steps_on_postgres(postgres_servers: Servers) -> None:
    sizes = {"runs": 6, "steps": 3, "in_flight": 2, "singles": 2}
    url = postgres_servers.running(18).url
    await postgres.measure_floor_on(url, "bench_floor", **sizes)
    await steps.measure_on(f"{url}?schema=bench_steps", **sizes)
    for table in ("runs", "journal", "audit", "waits", "events"):
        found = [await postgres_columns(url, schema, table) for schema in ("bench_floor", "bench_steps")]
        assert found[0] == found[1], table


async def postgres_columns(url: str, schema: str, table: str) -> dict[str, Counter[Any]]:
    async with meddler(f"{url}?schema={schema}") as connection:
        rows = [dict(row) for row in await connection.fetch(f"select * from {table}")]
    names = [name for name in (rows[0] if rows else ()) if name not in OWN]
    return {name: Counter(row[name] for row in rows) for name in names}


async def test_for_events_while_runs_wait_and_when_they_have_ended(tmp_path: Path) -> None:
    limit = EventsFloor(tmp_path / "floor.db")
    async with Engine(f"sqlite:///{tmp_path / 'events.db'}", workflows=[waiter]) as engine:
        ids = await start_waiters(engine, 5)
        for run_id in ids:
            limit.wait(run_id)
        await limit.durable()
        assert_alike(tmp_path / "floor.db", tmp_path / "events.db")
        await send_all(engine, ids, senders=2)
        for number, run_id in enumerate(ids):
            await limit.send(run_id, number)
        await limit.durable()
        limit.close()
    assert_alike(tmp_path / "floor.db", tmp_path / "events.db")


async def test_an_event_of_the_floor_stands_there_until_it_is_read(tmp_path: Path) -> None:
    limit = EventsFloor(tmp_path / "floor.db")
    limit.wait("a")
    await limit.send("a", 1)  # What follows from it is in no commit yet.
    assert columns(tmp_path / "floor.db", "events")["position"] == Counter({"1": 1})
    assert columns(tmp_path / "floor.db", "waits")["due_at"] == Counter({0: 1})
    limit.close()


async def test_for_children(tmp_path: Path) -> None:
    await fanout_floor.measure(tmp_path, children=7)
    await fanout.measure(tmp_path, children=7)
    assert_alike(tmp_path / "floor.db", tmp_path / "fanout.db")


async def test_for_hierarchies(tmp_path: Path) -> None:
    await hierarchies_floor.measure(tmp_path, hierarchies=3, in_flight=1)
    await hierarchies.measure(tmp_path, hierarchies=3, in_flight=1)
    assert_alike(tmp_path / "floor.db", tmp_path / "hierarchies.db")


async def test_for_events_it_is_measured_like_the_engine(tmp_path: Path) -> None:
    figures = await events_floor.measure(tmp_path, waiters=20, senders=3)
    assert figures["events_per_s"] > 0
    assert columns(tmp_path / "floor.db", "runs")["status"] == Counter({"succeeded": 20})
