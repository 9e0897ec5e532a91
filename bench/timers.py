"""W4: many runs sleep durably for a second, started together. How late is the commit that delivers each timer?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode

from bench.figures import Figures, percentile
from perdure import Engine, sleep, workflow
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Entry
from perdure.storage.sqlite import SqliteStore


class Fired(Struct):
    """What the journal keeps of a timer, in microseconds."""

    due: int
    fired: int


class WatchedStore(SqliteStore):
    """The SQLite store, with a note of when each commit was done. Nothing is computed while it runs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._done: list[tuple[int, list[Entry]]] = []

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        self._done.append((time.time_ns() // 1000, batch.journal))
        return committed

    def lateness_ms(self) -> list[float]:
        return [
            (at - decode(entry.value or "", type=Fired).due) / 1000
            for at, entries in self._done
            for entry in entries
            if entry.kind == "timer"
        ]


@workflow
async def nap() -> int:
    await sleep(1)
    return 1


async def measure(folder: Path, *, timers: int) -> Figures:
    store = WatchedStore(folder / "timers.db")
    async with Engine(store) as engine:
        began = time.perf_counter()
        await asyncio.gather(*[engine.run(nap()) for _ in range(timers)])
        took = time.perf_counter() - began
    late = store.lateness_ms()
    if len(late) != timers:
        raise SystemExit(f"{timers} timers were set, but {len(late)} were delivered")
    return {"late_p50_ms": percentile(late, 50), "late_p99_ms": percentile(late, 99), "total_s": took}
