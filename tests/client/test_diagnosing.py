"""Why a run does not go on, and which schema a store has: what engines and clients can find out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Engine, event, first, sleep, timer, workflow
from perdure.engine import AnyClient
from perdure.errors import Misuse, RunNotFound
from perdure.ports import Store
from perdure.testing import VirtualClock
from perdure.upgrade import look, upgrade
from tests.fleet.conftest import until
from tests.storage.postgres.server import Servers

Make = Callable[[], Store]


@workflow(name="diagnosed")
async def waits(order: str) -> Any:
    return await first(event("paid", where={"order": order, "amount": 100}), timer(hours=1))


@workflow(name="diagnosed sleeper")
async def sleeps() -> None:
    await sleep(3600)


@workflow(name="diagnosed nap")
async def naps() -> None:
    await sleep(0.005)


async def is_suspended(client: AnyClient, id: str) -> bool:
    return await client.handle(id).status() == "suspended"


async def test_what_a_run_waits_for_can_be_asked(make_store: Make) -> None:
    async with Engine(make_store(), workflows=[waits]) as engine:
        await engine.start(waits("o-17"), id="w")
        await until(lambda: is_suspended(engine, "w"))
        by_kind = {one.kind: one for one in await engine.handle("w").waits()}
        assert by_kind["event"].name == "paid"
        assert by_kind["event"].where == {"order": "o-17", "amount": 100}
        due = by_kind["timer"].due_at
        assert due is not None
        assert timedelta(minutes=59) < due - datetime.now(UTC) <= timedelta(hours=1)
        with pytest.raises(RunNotFound):
            await engine.handle("nobody").waits()


async def test_how_late_timers_were_can_be_asked(make_store: Make) -> None:
    async with Engine(make_store(), workflows=[naps]) as engine:
        await engine.run(naps(), id="n")
        [fired] = await engine.runs.timers(["n", "nobody"])
        assert fired.run_id == "n"
        assert timedelta(0) <= fired.fired_at - fired.due_at < timedelta(minutes=1)
        assert await engine.runs.timers([]) == []


async def test_runs_are_counted_by_how_they_stand_and_when_they_were_started(make_store: Make) -> None:
    began = datetime.now(UTC) - timedelta(minutes=1)
    async with Engine(make_store(), workflows=[naps, sleeps]) as engine:
        for number in range(3):
            await engine.run(naps(), id=f"n-{number}")
        await engine.start(sleeps(), id="s")
        await until(lambda: is_suspended(engine, "s"))
        [found] = await engine.runs.tally()
        assert (found["succeeded"], found["suspended"], found["failed"]) == (3, 1, 0)
        assert await engine.runs.tally(statuses=["succeeded"], limit=2) == [{"succeeded": 2}]
        hour = timedelta(hours=1)
        before, now, after = await engine.runs.tally([began - hour, began, began + hour, began + 2 * hour])
        assert (sum(before.values()), now, sum(after.values())) == (0, found, 0)
        assert await engine.runs.tally([began]) == []


async def test_what_nobody_takes_in_time_is_overdue(make_store: Make) -> None:
    async with Engine(make_store(), workflows=[sleeps]) as engine:
        await engine.start(sleeps(), id="s", deadline=timedelta(hours=3))
        await until(lambda: is_suspended(engine, "s"))
    for hours, expected in ((0, []), (2, [("s", False)])):
        later = VirtualClock(datetime.now(UTC) + timedelta(hours=hours))
        async with Client(make_store(), clock=later, poll_s=None) as client:
            assert [(one.run_id, one.deadline) for one in await client.engines.overdue()] == expected
            with pytest.raises(Misuse):
                await client.engines.overdue(limit=0)


async def test_a_schema_is_looked_at_without_touching_anything(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    found = await look(url)
    assert (found.found, found.is_current) == (None, False)
    assert list(tmp_path.iterdir()) == []
    assert await upgrade(url) == found
    assert (await look(url)).is_current
    with pytest.raises(Misuse, match="roles can be granted on Postgres only"):
        await upgrade(url, runtime_role="shop")
    with pytest.raises(Misuse, match="no store has the scheme"):
        await look("mysql://somewhere")


async def test_a_schema_on_postgres_is_looked_at_and_made(postgres_servers: Servers) -> None:
    url = postgres_servers.fresh()
    assert (await look(url)).found is None
    await upgrade(url)
    assert (await look(url)).is_current
