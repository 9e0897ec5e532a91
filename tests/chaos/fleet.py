"""The processes of a chaos run, and the database with the ways to it."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg

from perdure.kernel.status import Status
from perdure.ports import RunFilter, Store
from perdure.storage import open_store
from tests.chaos import ledger, record
from tests.chaos.callers import number_of
from tests.chaos.network import Way
from tests.chaos.record import ASKED, ENDED
from tests.chaos.witness import TABLE
from tests.fleet.convoy import Process
from tests.storage.postgres.server import VERSIONS, PostgresServer

ENGINES, CALLERS = 3, 2
ACTIVE = (
    Status.CREATED,
    Status.RUNNING,
    Status.SUSPENDED,
    Status.CANCELLING,
    Status.ROLLING_BACK,
)
LEASE_S = 2.0
PATIENCE_S = 180.0  # so long nothing may happen at all, on any machine, before it counts as stuck


class Database:
    """Where the store is. On SQLite there is no way to it, and nothing to be cut."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.server = PostgresServer(VERSIONS[-1]) if kind == "postgres" else None
        self.path = folder / "chaos.db"
        self.ways: list[Way] = []
        self.url = f"sqlite:///{self.path}" if self.server is None else f"{self.server.url}?lease={LEASE_S}"

    async def way(self) -> str:
        """The URL for a process, which has a way of its own."""
        if self.server is None:
            return self.url
        way = Way(self.server.port)
        await way.open()
        self.ways.append(way)
        return self.url.replace(f":{self.server.port}/", f":{way.port}/")

    async def ask(self, statement: str) -> list[tuple[Any, ...]]:
        if self.server is None:
            with closing(sqlite3.connect(self.path, isolation_level=None)) as file:
                return file.execute(statement).fetchall()
        driver: Any = asyncpg
        connection = await driver.connect(self.server.url, timeout=10)
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    async def close(self) -> None:
        for way in self.ways:
            await way.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.end)


class Fleet:
    """Engines and callers. Leaving the context ends them all, whatever happened."""

    def __init__(self, kind: str, folder: Path, *, at_once: int) -> None:
        self.kind = kind
        self.folder = folder
        self.log = folder / "record"
        self.at_once = at_once
        self.engines: list[Process] = []
        self.callers: list[Process] = []
        self._make: dict[str, Callable[[], Process]] = {}
        self._limit = 0

    async def __aenter__(self) -> Fleet:
        self.log.mkdir()
        self.database = await asyncio.to_thread(Database, self.kind, self.folder)
        try:
            self.store: Store = open_store(self.database.url)
            await self.store.open()
            await self.database.ask(TABLE)
            await self.database.ask(ledger.TABLE)
            for index in range(ENGINES):
                words = [await self.database.way(), self.database.url, str(self.log)]
                self._make[f"engine-{index}"] = self._maker("engines", f"engine-{index}", words)
                self.engines.append(self._make[f"engine-{index}"]())
            await self.until(lambda: all(one.is_open for one in self.engines), "all engines are to open")
            for index in range(CALLERS):
                words = [await self.database.way(), str(self.log), str(index), str(CALLERS), str(self.at_once)]
                self._make[f"caller-{index}"] = self._maker("callers", f"caller-{index}", words)
                self.callers.append(self._make[f"caller-{index}"]())
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in (*self.engines, *self.callers):
            process.kill()
        await self.store.close()
        await self.database.close()

    def _maker(self, module: str, name: str, words: list[str]) -> Callable[[], Process]:
        command = [sys.executable, "-m", f"tests.chaos.{module}", *words]
        return lambda: Process(command, self.folder / f"messages-{name}.txt")

    def restart_engine(self, index: int) -> None:
        self.engines[index].kill()
        self.engines[index] = self._make[f"engine-{index}"]()

    def restart_caller(self, index: int) -> None:
        self.callers[index].kill()
        self.callers[index] = self._make[f"caller-{index}"]()
        self.callers[index].allow(self._limit)

    def allow(self, limit: int) -> None:
        """Let callers go on, up to this number."""
        self._limit = limit
        for process in self.callers:
            process.allow(limit)

    def numbers(self, what: str) -> set[int]:
        """Of which numbers callers said something."""
        return {number_of(line.run_id) for line in record.read(self.log) if line.what == what}

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something while there is progress, and for so long after the last."""
        seen, give_up_at = self._progress(), time.monotonic() + PATIENCE_S
        while not condition():
            if (now_seen := self._progress()) != seen:
                seen, give_up_at = now_seen, time.monotonic() + PATIENCE_S
            if time.monotonic() > give_up_at:
                raise AssertionError(f"no progress for {PATIENCE_S} s: {what}\n{self.messages()[-20_000:]}")
            for process in (*self.engines, *self.callers):
                process.check()
            await asyncio.sleep(0.1)

    def _progress(self) -> int:
        return sum(path.stat().st_size for path in self.log.glob("*.jsonl"))

    async def highest(self) -> int:
        """The number after all that callers have asked for so far."""
        self.allow(0)
        await asyncio.sleep(1.0)  # They are told. Who asks for one more meanwhile has said so by then.
        return max(self.numbers(ASKED), default=-1) + 1

    async def finish(self, limit: int) -> None:
        """Let callers see through all numbers below the limit, and have everybody leave in peace."""
        self.allow(limit)
        await self.until(lambda: len(self.numbers(ENDED)) == limit, "all that was asked for is to end")
        give_up_at = time.monotonic() + PATIENCE_S
        while await self.store.list(RunFilter(statuses=ACTIVE, limit=1)) and time.monotonic() < give_up_at:
            await asyncio.sleep(0.1)  # Children that nobody waits for.
        for process in (*self.callers, *self.engines):
            process.check()
        await asyncio.gather(*(process.leave() for process in self.callers))
        await asyncio.gather(*(process.leave() for process in self.engines))

    def messages(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("messages-*.txt")))
