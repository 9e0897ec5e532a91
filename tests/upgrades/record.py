"""Record a store with runs in flight: `python -m tests.upgrades.record NAME` writes data/NAME.*, with the code of now.

A process starts every workflow of past.py and is killed when each of its runs is where it should be. While that process
is stopped, and before it dies, a client leaves mail for it. Stored stores are never written anew: a store of newer code
is one more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from perdure import Client, Engine, NamedEvent
from tests.storage.postgres.server import PostgresServer
from tests.upgrades import past

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "past"  # in Postgres


async def fill(url: str) -> None:
    """Start everything, wait until it is where it should be, say so, and wait to be killed."""
    async with Engine(url, workflows=past.ALL) as engine:
        await engine.send(NamedEvent("past.unread", {"kept": True}))
        await engine.records.put("past", "settings", {"limit": 5})
        calls = {
            "event": past.waits_for_an_event("event"),
            "mail": past.waits_for_an_event("mail"),
            "choice": past.waits_for_either("choice"),
            "sleep": past.sleeps("sleep"),
            "step": past.dies_in_a_step("step"),
            "retry": past.waits_for_an_attempt("retry"),
            "failed": past.fails("failed"),
            "parent": past.has_children("parent"),
            "loop": past.continues("loop", 1),
            "undo": past.has_compensations("undo"),
            "paused": past.sleeps("paused"),
            "shown": past.shows_itself("shown"),
            "task": past.asks_somebody("task"),
            "emits": past.emits("emits"),
            "book": past.book(past.Pages(titles=["a", "b", "c"])),
        }
        for run_id, call in calls.items():
            await engine.start(call, id=run_id, tags={"recorded": "yes"})
        await engine.emit(past.orders, past.Order(sku="sold"), id="sold")
        await engine.emit(past.orders, past.Order(sku="broken", fails=True), id="broken")
        await engine.send(past.Tick(number=1), to="loop")
        await _until(lambda: _has_noted("loop: life 2"))
        await engine.handle("loop").pause("kept in its second life")
        await engine.send(past.Tick(number=2), to="loop")
        await engine.handle("loop").resume()
        await _until(lambda: _has_noted("loop: life 3"))
        await engine.handle("paused").pause("for the record")
        await _until(lambda: _has_noted("broken: put back"))
        await _until_open_tasks(engine, "past-pages", 3)
        one = (await engine.tasks.list(queue="past-pages"))[0]
        await engine.tasks.answer(one.id, {"ok": True}, actor="ann")
        await _until_status(engine, "failed", "failed")
        for run_id in ("event", "mail", "choice", "sleep", "retry", "parent", "loop", "undo", "shown", "task", "emits"):
            await _until_status(engine, run_id, "suspended")
        await asyncio.sleep(2)  # Nothing is being written by then: a process that is stopped keeps its locks.
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


async def leave_mail(url: str) -> None:
    """Send an event to a run whose engine is stopped: it stays in the store as mail."""
    async with Client(url) as client:
        await client.send(past.Paid(amount=5), to="mail")


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.02)


async def _until_status(engine: Engine, run_id: str, status: str) -> None:
    while await engine.handle(run_id).status() != status:
        await asyncio.sleep(0.02)


async def _until_open_tasks(engine: Engine, queue: str, count: int) -> None:
    while len(await engine.tasks.list(queue=queue, status="open")) < count:
        await asyncio.sleep(0.02)


def _has_noted(line: str) -> bool:
    log = Path(os.environ["PAST_LOG"])
    return log.exists() and line in log.read_text().splitlines()


def record(url: str, log: Path, mail_count: Callable[[], int]) -> list[str]:
    """Fill a store in a process of its own, and kill it. Return the effects of its steps."""
    environment = {**os.environ, "PAST_LOG": str(log), "PAST_RECORDING": "1"}
    command = [sys.executable, "-m", "tests.upgrades.record"]
    filler = subprocess.Popen([*command, "--fill", url], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    client: subprocess.Popen[str] | None = None
    try:
        assert filler.stdout is not None
        assert filler.stdout.readline() == "ready\n"
        filler.send_signal(signal.SIGSTOP)
        client = subprocess.Popen([*command, "--mail", url], env=environment, cwd=ROOT, text=True)
        while not mail_count():
            with suppress(subprocess.TimeoutExpired):
                client.wait(0.05)
    finally:
        for process in (client, filler):
            if process is not None:
                process.kill()
                process.wait()
    return log.read_text().splitlines()


def record_sqlite(name: str, folder: Path) -> None:
    path, whole = folder / "past.db", folder / "whole.db"

    def mail_count() -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("select count(*) from mail").fetchone()[0])

    effects = record(f"sqlite:///{path}", folder / "log", mail_count)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("vacuum into ?", (str(whole),))
    _keep(f"{name}.sqlite", whole.read_bytes(), effects)


def record_postgres(name: str, folder: Path) -> None:
    server = PostgresServer(16)
    try:

        def mail_count() -> int:
            return int(server.psql(f"select count(*) from {SCHEMA}.mail"))

        effects = record(f"{server.url}?schema={SCHEMA}", folder / "log-postgres", mail_count)
        _keep(f"{name}.postgres", server.dump(SCHEMA), effects)
    finally:
        server.end()


def _keep(name: str, content: bytes, effects: list[str]) -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.xz").write_bytes(lzma.compress(content, preset=9))
    (DATA / f"{name}.json").write_text(json.dumps(effects, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--fill")
    parser.add_argument("--mail")
    given = parser.parse_args()
    jobs: dict[str, Callable[[str], Coroutine[Any, Any, None]]] = {"fill": fill, "mail": leave_mail}
    for job, run in jobs.items():
        if (url := getattr(given, job)) is not None:
            asyncio.run(run(url))
            return
    with tempfile.TemporaryDirectory() as folder:
        record_sqlite(given.name, Path(folder))
        record_postgres(given.name, Path(folder))


if __name__ == "__main__":
    main()
