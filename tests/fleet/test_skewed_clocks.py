"""Two engines on one store, in two processes whose machines are an hour apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure import Client, Engine, RunHandle
from perdure.testing.control import kill
from tests.fleet.skewed import HERE, LIMITS, Gate, process, sleeps, sleeps_there, works

HOUR_S = 3600
SKEWS = [HOUR_S, -HOUR_S]
PATIENCE_S = 90  # far less than an hour, and enough for a busy machine


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('quick_path') / 'runs.db'}"
    return f"{request.getfixturevalue('empty_schema')()}&lease=30"


@asynccontextmanager
async def right(url: str, gate: Gate) -> AsyncGenerator[Engine]:
    """An engine in this process, whose clock is right."""
    async with Engine(url, workflows=HERE, resources={Gate: lambda: gate}, limits=LIMITS, poll_s=0.1) as engine:
        yield engine


async def suspended(run: RunHandle[str]) -> None:
    while await run.status() != "suspended":
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("skew_s", SKEWS)
async def test_engines_an_hour_apart_do_not_take_each_other_for_dead(url: str, skew_s: int, tmp_path: Path) -> None:
    notes, gate = tmp_path / "notes.txt", Gate()
    async with right(url, gate) as engine:
        run = await engine.start(works(str(notes)), id="held-up")
        await gate.is_reached.wait()
        async with process(url, skew_s), Client(url) as client, asyncio.timeout(PATIENCE_S):
            # A sleep lasts as long as it should on either side, and the other engine looks around many times meanwhile.
            assert await client.run(sleeps_there(3)) == "awake"
            assert await engine.run(sleeps(0.1)) == "awake"
            # Both engines, and the client.
            assert [one.alive for one in await engine.session.store.engines()] == [True] * 3
            gate.open.set()
            assert await run.result() == "passed"
            assert await client.run(sleeps_there(0.1)) == "awake"
    assert notes.read_text() == "began\n"


@pytest.mark.parametrize("skew_s", SKEWS)
async def test_on_postgres_who_takes_over_is_neither_early_nor_late(
    empty_schema: Callable[[], str], skew_s: int
) -> None:
    url = f"{empty_schema()}&lease=2"
    async with process(url, skew_s), Client(url) as client, asyncio.timeout(PATIENCE_S):
        async with right(url, Gate()) as engine:
            far = await engine.start(sleeps(HOUR_S / 2), id="far")
            near = await engine.start(sleeps(3), id="near")
            await suspended(far)
            await suspended(near)
            (due,) = await far.waits()
            kill(engine)
        assert await client.handle("near").result() == "awake"
        near_view = await client.runs.get("near")
        assert near_view is not None
        assert near_view.completed_at is not None
        assert 3 <= (near_view.completed_at - near_view.created_at).total_seconds() < PATIENCE_S
        # What was overdue by its clock would have gone on before this one.
        assert await client.run(sleeps_there(0.1)) == "awake"
        assert await client.handle("far").status() == "suspended"
        assert await client.handle("far").waits() == [due]


async def test_on_a_file_an_engine_that_is_behind_leaves_overdue_sleeps_to_one_that_is_right(quick_path: Path) -> None:
    url = f"sqlite:///{quick_path / 'runs.db'}"
    async with process(url, -HOUR_S), Client(url) as client, asyncio.timeout(PATIENCE_S):
        async with right(url, Gate()) as engine:
            near = await engine.start(sleeps(3), id="near")
            await suspended(near)
            kill(engine)
        assert await client.run(sleeps_there(3.5)) == "awake"
        assert await client.handle("near").status() == "suspended"  # A file has no clock: the engine goes by its own.
        async with right(url, Gate()):
            assert await client.handle("near").result() == "awake"
