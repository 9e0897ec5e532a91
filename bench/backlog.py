"""What has piled up: overdue timers of runs that nobody has in memory, and events that one run has yet to read.

`python -m bench.backlog`, or with `--timers 20000 --events 20000` less of it; with `--url postgresql://…` on that
database, which must be new. Sleepers are started by an engine whose clock is a day behind, and all are overdue for the
next one. Beside them, runs of one step are started one after the other: how long each takes, from call to result.

Beside rates it tells the processor's time for each, of all threads: on a machine that others use, that says more.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import loop
from bench.figures import Figures, percentile
from perdure import Engine, Event, Limits, Workflow, receive, sleep, step, workflow
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.status import Status
from perdure.ports import Store, SystemClock
from perdure.storage import open_store
from perdure.testing.proxy import StoreProxy

_DAY_US: Final = 24 * 3600 * 1_000_000
_AT_ONCE: Final = 500
_APART_S: Final = 0.02


class Reading(Event, event_name="bench.reading"):
    """What one run reads many of."""

    number: int


@step
async def small(number: int) -> int:
    return number


@workflow
async def overdue(number: int) -> int:
    await sleep(3600)
    return number


@workflow
async def one_step(number: int) -> int:
    return await small(number)


@workflow
async def reader(count: int) -> int:
    await receive(Reading, where={"number": -1})
    total = 0
    for _ in range(count):
        total += (await receive(Reading)).number
    return total


WORKFLOWS: Final[list[Workflow[Any, Any]]] = [overdue, one_step, reader]


class Yesterday(SystemClock):
    """A clock that is a day behind."""

    def now(self) -> int:
        return super().now() - _DAY_US


class Counting(StoreProxy):
    """A store, with a note of how many runs of one workflow have come to a status, and when all of them had."""

    def __init__(self, inner: Store, status: Status, count: int) -> None:
        super().__init__(inner)
        self._status = status
        self._left = count
        self.all = asyncio.Event()

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        for write in batch.runs.values():
            if write.run.status is self._status and write.run.workflow == "overdue":
                self._left -= 1
        if self._left <= 0:
            self.all.set()
        return committed


async def fill(url: str, timers: int) -> None:
    """Leave so many sleeping runs in a store, all overdue."""
    store = Counting(open_store(url), Status.SUSPENDED, timers)
    async with Engine(store, workflows=WORKFLOWS, clock=Yesterday(), limits=Limits(live_runs_max=2 * timers)) as engine:
        for start in range(0, timers, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, timers))
            await asyncio.gather(*[engine.start(overdue(number)) for number in numbers])
        await store.all.wait()


async def measure_timers(url: str, timers: int) -> Figures:
    """How fast overdue timers go, and what a new run takes meanwhile."""
    await fill(url, timers)
    began, used = time.perf_counter(), time.process_time()
    took: list[float] = []
    spent: list[float] = []
    store = Counting(open_store(url), Status.SUCCEEDED, timers)
    async with Engine(store, workflows=WORKFLOWS) as engine:
        opened = time.perf_counter() - began
        while not store.all.is_set():
            asked, free = time.perf_counter(), time.process_time()
            await engine.run(one_step(len(took)))
            took.append((time.perf_counter() - asked) * 1000)
            spent.append((time.process_time() - free) * 1000)
            await asyncio.sleep(_APART_S)
        rate = timers / (time.perf_counter() - began)
        used = time.process_time() - used
    return {
        "open_s": opened,
        "timers_per_s": rate,
        "timer_cpu_us": used / timers * 1e6,
        "new_runs": float(len(took)),
        "new_p50_ms": percentile(took, 50),
        "new_p99_ms": percentile(took, 99),
        "new_max_ms": max(took),
        "new_p99_cpu_ms": percentile(spent, 99),
    }


async def measure_events(url: str, events: int) -> Figures:
    """How fast one run reads what was sent to it before it asked."""
    async with Engine(url, workflows=WORKFLOWS, limits=Limits(events_pending_max=events + 1)) as engine:
        run = await engine.start(reader(events))
        began, used = time.perf_counter(), time.process_time()
        for start in range(0, events, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, events))
            await asyncio.gather(*[engine.send(Reading(number=number), to=run.id) for number in numbers])
        sent, sent_used = time.perf_counter(), time.process_time()
        await engine.send(Reading(number=-1), to=run.id)
        if await run.result() != sum(range(events)):
            raise SystemExit("events were lost or read twice")
        read, read_used = time.perf_counter(), time.process_time()
    return {
        "sent_per_s": events / (sent - began),
        "sent_cpu_us": (sent_used - used) / events * 1e6,
        "read_per_s": events / (read - sent),
        "read_cpu_us": (read_used - sent_used) / events * 1e6,
    }


async def _measure(url: str, timers: int, events: int) -> None:
    for name, value in (await measure_timers(url, timers)).items():
        print(f"{name:<16}{value:>12,.1f}")
    for name, value in (await measure_events(url, events)).items():
        print(f"{name:<16}{value:>12,.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description="Overdue timers and unread events.")
    parser.add_argument("--timers", type=int, default=100_000, help="how many are overdue (100000)")
    parser.add_argument("--events", type=int, default=50_000, help="how many one run has yet to read (50000)")
    parser.add_argument("--url", help="a database on Postgres; without it, a new SQLite file")
    options = parser.parse_args()
    print(f"{options.timers:,} overdue timers, {options.events:,} events; load of the machine {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'backlog.db'}"
        loop.run(_measure(url, options.timers, options.events))


if __name__ == "__main__":
    main()
