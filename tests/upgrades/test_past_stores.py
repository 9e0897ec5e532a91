"""Stores that earlier code made, with runs in flight: today's code opens them, and every run goes on where it was."""

from __future__ import annotations

import json
import lzma
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure import Engine
from perdure.errors import ScopeFailed
from perdure.storage import open_store
from perdure.testing import assert_readiness_agrees, check_store
from tests.storage.postgres.server import VERSIONS, Servers
from tests.upgrades import past
from tests.upgrades.record import DATA, SCHEMA

PAST = sorted(path.name.removesuffix(".sqlite.xz") for path in DATA.glob("*.sqlite.xz"))

# Steps that were running when the process died: they run again, and nothing else does.
AGAIN = Counter({"step: second": 1, "broken: put back": 1})

EXPECTED = Counter(
    [
        "event: take", "event: ship", "mail: take", "mail: ship", "sleep: before", "sleep: after", "step: first",
        "step: second", "retry attempt 1", "retry attempt 2", "failed: kept", "failed: again", "failed: again",
        "parent: part 0", "parent: part 1", "parent: part 2", "parent/child: take", "parent/child: ship",
        "parent/apart: before", "parent/apart: after", "loop: life 1", "loop: life 2", "loop: life 3",
        "undo: first", "undo: second", "undo: undo second", "undo: undo first", "paused: before", "paused: after",
        "sold: ask", "sold: take", "sold: pack", "sold: look again", "sold: confirm ['parcel of sold']",
        "broken: ask", "broken: take", "broken: pack", "broken: look again", "broken: confirm ['parcel of broken']",
        "broken: unpack", "broken: put back", "broken: apologise", "emits: bill", "emits: billed",
        "outline 3", "write a", "write b", "write c", "print 3",
    ]
)  # fmt: skip


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    async with Engine(url, workflows=past.ALL) as engine:
        yield engine


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setenv("PAST_LOG", str(path))
    return path


@pytest.mark.parametrize("name", PAST)
async def test_every_run_of_an_earlier_sqlite_file_goes_on(name: str, tmp_path: Path, log: Path) -> None:
    path = tmp_path / "past.db"
    path.write_bytes(lzma.decompress((DATA / f"{name}.sqlite.xz").read_bytes()))
    await go_on(f"sqlite:///{path}", f"{name}.sqlite", log)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PAST)
async def test_every_run_of_an_earlier_postgres_database_goes_on(
    name: str, version: int, postgres_servers: Servers, log: Path
) -> None:
    server = postgres_servers.running(version)
    server.psql(f"drop schema if exists {SCHEMA} cascade")
    server.psql(lzma.decompress((DATA / f"{name}.postgres.xz").read_bytes()).decode())
    await go_on(f"{server.url}?schema={SCHEMA}", f"{name}.postgres", log)


async def go_on(url: str, name: str, log: Path) -> None:
    async with opened(url) as engine:
        await ask_for_the_rest(engine)
        await check_results(engine)
        await check_what_is_beside_runs(engine)
    store = open_store(url)
    await store.open()
    try:
        assert await check_store(store) > len(RESULTS)
        assert await assert_readiness_agrees(store, [past.place, past.pick, past.bill], now=time.time_ns() // 1000)
    finally:
        await store.close()
    before = Counter(json.loads((DATA / f"{name}.json").read_text()))
    assert before + Counter(log.read_text().splitlines()) == EXPECTED + AGAIN


async def ask_for_the_rest(engine: Engine) -> None:
    """Give each run what it waits for."""
    await engine.send(past.Paid(amount=5), to="event")
    await engine.send(past.Opened(door="front"), to="choice")
    await engine.send(past.Opened(door="parent"), to="parent")
    (child,) = [run for run in (await engine.runs.list(parent="parent")).runs if run.workflow == "past-event"]
    await engine.send(past.Paid(amount=5), to=child.id)
    await engine.send(past.Tick(number=3), to="loop")
    await engine.send(past.Paid(amount=7), to="shown")
    assert await engine.handle("undo").cancel("changed our mind")
    assert await engine.handle("paused").resume()
    await engine.handle("failed").retry()
    for queue in ("past", "past-pages"):
        for one in await engine.tasks.list(queue=queue, status="open"):
            await engine.tasks.answer(one.id, {"ok": True}, actor="ben")


async def check_results(engine: Engine) -> None:
    results = {run_id: await engine.handle(run_id).result() for run_id in RESULTS}
    assert results == RESULTS
    assert (await engine.handle("step").result()).startswith("step: second with key ")
    book = await engine.handle("book").result()
    assert (len(book["pages"]), book["printed"]) == (3, "PRINT 3")
    assert await engine.handle("undo").status() == "rolled_back"
    await (await engine.emit(past.orders, past.Order(sku="sold"), id="sold")).finished()
    with pytest.raises(ScopeFailed, match="nobody is at home"):
        await (await engine.emit(past.orders, past.Order(sku="broken", fails=True), id="broken")).finished()


async def check_what_is_beside_runs(engine: Engine) -> None:
    assert [one.name for one in await engine.events.pending()] == ["past.unread"]
    assert (await engine.records.get("past", "settings")).body == {"limit": 5}
    lines = [item.value async for item in engine.handle("shown").stream("lines")]
    assert lines == ["one", "two"]
    assert await engine.handle("shown").published("progress") == {"done": 2}


RESULTS = {
    "event": "EVENT: TAKE 5 EVENT: SHIP",
    "mail": "MAIL: TAKE 5 MAIL: SHIP",
    "choice": "choice opened front",
    "sleep": "SLEEP: AFTER",
    "retry": "retry",
    "failed": "failed: again",
    "parent": [
        "PARENT: PART 0", "PARENT: PART 1", "PARENT: PART 2",
        "PARENT/CHILD: TAKE 5 PARENT/CHILD: SHIP", "parent",
    ],
    "parent/apart": "PARENT/APART: AFTER",
    "loop": "loop ended in life 3",
    "paused": "PAUSED: AFTER",
    "shown": "shown",
    "task": "task True",
    "emits": "EMITS: BILLED",
}  # fmt: skip
