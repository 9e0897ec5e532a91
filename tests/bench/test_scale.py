"""An engine on a file with 20,000 suspended runs takes up those that something happens to, and no others.

`make bench-scale` measures a million; here nothing is timed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from bench.events import settled
from bench.filling import WORKFLOWS, Popular, event_for, fill, id_of
from bench.report import table
from bench.scale import ROWS, EndingStore, measure
from perdure import Engine, Limits

RUNS = 20_000
YEAR_US = 365 * 24 * 3600 * 1_000_000
DUE, PAID, POPULAR = 9_001, 12_346, 10


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scale") / "runs.db"
    fill(path, RUNS)
    return path


@asynccontextmanager
async def engine_on(filled: Path, folder: Path, *, live_runs_max: int = 20_000) -> AsyncIterator[Engine]:
    path = folder / "runs.db"
    path.write_bytes(filled.read_bytes())
    async with Engine(f"sqlite:///{path}", workflows=WORKFLOWS, limits=Limits(live_runs_max=live_runs_max)) as engine:
        yield engine


def live_runs(engine: Engine) -> int:
    return engine.runtime.functions.live_runs


def loaded(engine: Engine) -> list[int]:
    return [number for number in range(1, RUNS + 1) if engine.session.coordinator.loaded(id_of(number)) is not None]


async def test_starting_loads_none_of_them(filled: Path, tmp_path: Path) -> None:
    async with engine_on(filled, tmp_path) as engine:
        await settled(engine)
        assert (loaded(engine), live_runs(engine)) == ([], 0)
        report = await engine.recover()
        assert (report.resumed, report.waiting, report.held) == (0, 0, 0)


async def test_an_event_ends_the_one_it_was_sent_to(filled: Path, tmp_path: Path) -> None:
    async with engine_on(filled, tmp_path) as engine:
        await engine.send(event_for(PAID), to=id_of(PAID), strict=True)
        assert await engine.handle(id_of(PAID)).result() == PAID
        await settled(engine)
        assert (loaded(engine), live_runs(engine)) == ([], 0)


async def test_a_broadcast_ends_the_longest_waiting_or_the_one_that_it_fits(filled: Path, tmp_path: Path) -> None:
    async with engine_on(filled, tmp_path) as engine:
        for event, number in ((Popular(number=0), POPULAR), (event_for(PAID), PAID)):
            sent = await engine.send(event, strict=True)
            assert getattr(sent, "run_ids", ()) == (id_of(number),)
            assert await engine.handle(id_of(number)).result() == number
        await settled(engine)
        assert (loaded(engine), live_runs(engine)) == ([], 0)


async def test_a_timer_that_is_due_ends_its_run_alone(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "due.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path)) as db:  # One of them did what it did a year earlier.
        for table_, key, times in (
            ("runs", "id", ("created_at", "started_at", "updated_at")),
            ("journal", "run_id", ("started_at", "at")),
            ("waits", "run_id", ("since", "due_at")),
        ):
            earlier = ", ".join(f"{time} = {time} - {YEAR_US}" for time in times)
            db.execute(f"update {table_} set {earlier} where {key} = ?", (id_of(DUE),))
        db.commit()
    async with Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
        assert await engine.handle(id_of(DUE)).result() == DUE
        await settled(engine)
        assert (loaded(engine), live_runs(engine)) == ([], 0)


async def test_those_in_memory_are_bounded(filled: Path, tmp_path: Path) -> None:
    bound, touched = 20, [id_of(number) for number in range(1, 401, 2)]
    async with engine_on(filled, tmp_path, live_runs_max=bound) as engine:
        await asyncio.gather(*[engine.handle(run_id).pause() for run_id in touched])
        await asyncio.gather(*[engine.handle(run_id).resume() for run_id in touched])  # Each is taken up, and waits on.
        await settled(engine)
        assert live_runs(engine) <= bound
        assert len(loaded(engine)) <= bound
        assert {view.status for view in (await engine.runs.get_many(touched)).values()} == {"suspended"}


async def test_what_is_measured_has_a_row_each(tmp_path: Path) -> None:
    figures = await measure(tmp_path, runs=400, sends=10, broadcasts=5, idle_ms=10)
    text = table({"scale": [figures]}, ROWS, judged=True)
    assert [row.label for row in ROWS if row.label not in text] == []
    assert all(value > 0 for value in figures.values())


async def test_the_end_of_a_run_is_heard_of_once(tmp_path: Path) -> None:
    path = tmp_path / "few.db"
    await asyncio.to_thread(fill, path, 20)
    store = EndingStore(path)
    async with Engine(store, workflows=WORKFLOWS) as engine:
        await asyncio.gather(engine.send(event_for(2), to=id_of(2)), store.ended())
        assert (await engine.handle(id_of(2)).status()) == "succeeded"
        ended = asyncio.ensure_future(store.ended())
        await settled(engine)
        assert not ended.done()
        ended.cancel()
