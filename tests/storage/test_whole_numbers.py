"""Stores from before whole numbers had one form: what waits in them finds what is sent now, and the other way round."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perdure import Delivered, Engine, Event, receive, workflow
from perdure.storage.postgres.schema import MIGRATIONS as POSTGRES_MIGRATIONS
from perdure.storage.sqlite.schema import MIGRATIONS as SQLITE_MIGRATIONS
from tests.storage.postgres.meddler import meddler


class Weighed(Event, event_name="whole-numbers.weighed"):
    kilos: float
    label: str = ""


@workflow(name="whole-numbers.waits")
async def waits(kilos: float, label: str) -> float:
    return (await receive(Weighed, where={"kilos": kilos, "label": label})).kilos


OLD_FILTER = '[["kilos","5.0"],["label","\\"5.0\\""]]'
OLD_FIELDS = '{"kilos":"5.0","label":"\\"5.0\\""}'
TEXT = "5.0"


def migration(known: dict[int, str]) -> str:
    (text,) = [text for text in known.values() if text.startswith("-- A whole number")]
    return text


async def prepare(engine: Engine) -> None:
    await engine.start(waits(5.0, TEXT), id="waits")
    await engine.send(Weighed(kilos=5.0, label=TEXT), to=(await engine.start(waits(6.0, TEXT), id="other")).id)


async def check(engine: Engine) -> None:
    assert await engine.send(Weighed(kilos=5, label=TEXT)) == Delivered(("waits",))
    assert await engine.handle("waits").result() == 5
    (event,) = await engine.events.pending(to="other")
    assert event.value["kilos"] == 5.0


async def test_in_a_file(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'old.db'}", tmp_path / "old.db"
    async with Engine(url, workflows=[waits]) as engine:
        await prepare(engine)
    with sqlite3.connect(path) as connection:
        assert connection.execute("update waits set filter = ? where run_id = 'waits'", (OLD_FILTER,)).rowcount == 1
        assert connection.execute("update events set fields = ?", (OLD_FIELDS,)).rowcount == 1
        connection.executescript(migration(SQLITE_MIGRATIONS))
        ((fields,),) = connection.execute("select fields from events").fetchall()
        assert fields == OLD_FIELDS.replace(':"5.0"', ':"5"')
    connection.close()
    async with Engine(url, workflows=[waits]) as engine:
        await check(engine)


async def test_in_postgres(empty_schema: pytest.FixtureRequest) -> None:
    url: str = empty_schema()  # type: ignore[operator]
    async with Engine(url, workflows=[waits]) as engine:
        await prepare(engine)
    async with meddler(url) as other:
        await other.execute("update waits set filter = $1 where run_id = 'waits'", OLD_FILTER)
        await other.execute("update events set fields = $1", OLD_FIELDS)
        await other.execute(migration(POSTGRES_MIGRATIONS))
        assert await other.fetchval("select fields from events") == OLD_FIELDS.replace(':"5.0"', ':"5"')
    async with Engine(url, workflows=[waits]) as engine:
        await check(engine)
