"""What a caller's connection writes is what a commit writes, to the last column."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Event, workflow
from perdure.ports import SystemClock
from tests.starting.conftest import path_of
from tests.starting.transactions import opened
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.server import VERSIONS, Servers

NOW = time.time_ns() // 1_000  # The server refuses a time that is far from its own.
# These tell of engines and their liveness, not of runs.
OTHERS = {"engines", "heartbeats", "perdure_schema"}
TRICKY = 'a "quoted", (bracketed) \\ {braced} text: NULL, naïve, \U0001f422,\n and a second line'


class Paid(Event):
    amount: int


class StoppedClock(SystemClock):
    def now(self) -> int:
        return NOW


@workflow
async def ship(order: str, note: str) -> str:
    return order


class Turned:
    """A codec that leaves no payload as it was."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def start_some(url: str, driver: str | None) -> dict[str, list[Any]]:
    """Start runs in a new store, by commits or by a connection; all rows there are then."""
    async with Client(url, clock=StoppedClock(), codec=Turned(), poll_s=None) as client:
        await client.send(Paid(amount=1))  # So that a run is born after something.
        for number, note in enumerate(["", TRICKY, "x" * 20_000, "\u20ac" * 5_000]):
            run: dict[str, Any] = {
                "id": f"r {number} {TRICKY[:20]}",
                "actor": f"somebody {TRICKY}",
                "deadline": timedelta(days=1),
            }
            tags = {"tenant": TRICKY, TRICKY: "value"} if number % 2 else None
            if driver is None:
                await client.start(ship(TRICKY, note), tags=tags, **run)
                continue
            async with opened(driver, url) as mine:
                await client.start(ship(TRICKY, note), tags=tags, connection=mine.connection, **run)
                await mine.commit()
        await client.send(Paid(amount=2))
        return await all_rows(url)


async def all_rows(url: str) -> dict[str, list[Any]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_of(url))) as lite:
            names = [name for (name,) in lite.execute("select name from sqlite_master where type = 'table'")]
            return {name: sorted(lite.execute(f"select * from {name}"), key=repr) for name in names}
    async with meddler(url) as other:
        tables = await other.fetch("select tablename from pg_tables where schemaname = current_schema()")
        return {
            name: sorted((tuple(row.items()) for row in await other.fetch(f"select * from {name}")), key=repr)
            for (name,) in tables
        }


def told(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """What has an id of its own in each store is an event."""
    return {name: found for name, found in rows.items() if name not in OTHERS | {"events", "sqlite_sequence"}}


def check(committed: dict[str, list[Any]], inserted: dict[str, list[Any]], payloads: int) -> None:
    assert told(inserted) == told(committed)
    assert len(inserted["runs"]) == len(inserted["audit"]) == 4
    assert len(inserted["run_tags"]) == 4
    assert len(inserted["events"]) == len(committed["events"]) == 2
    assert len(inserted.get("payloads", [])) == payloads


@pytest.mark.parametrize("driver", ["sqlite: sqlite3", "sqlite: sqlalchemy connection"])
async def test_rows_on_sqlite(tmp_path: Path, driver: str) -> None:
    committed = await start_some(f"sqlite:///{tmp_path / 'one.db'}", None)
    check(committed, await start_some(f"sqlite:///{tmp_path / 'two.db'}", driver), payloads=2)


@pytest.mark.parametrize("version", VERSIONS)
async def test_rows_on_postgres(postgres_servers: Servers, version: int) -> None:
    committed = await start_some(postgres_servers.fresh(version), None)
    for driver in ("asyncpg", "psycopg"):
        inserted = await start_some(postgres_servers.fresh(version), f"postgres: {driver}")
        check(committed, inserted, payloads=0)
