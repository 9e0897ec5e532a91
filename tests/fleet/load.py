"""One process of a fleet that is killed: `python -m tests.fleet.load URL LOG INDEX OF RUNS AT_ONCE`

It starts its share of the runs and sends its share of the events, to runs that another one has started; with ids and
keys that are fixed, so that a process that follows a killed one simply does it all again. Standard input tells up to
which run it may go by now; once that is closed, it leaves in peace.

Every attempt of a step first writes a line to the log (STARTED, run, position, attempt, time, process), and then looks
whether the journal has an entry for it already: LATE says so. UNSEEN says that it did not find out soon enough.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from perdure import Client, Engine, Event, Limits, RunCall, current_step, first, receive, sleep, step, timer, workflow
from perdure.errors import RunFinished, RunNotFound, StoreError
from perdure.ports import Store
from perdure.storage import open_store

STARTED, LATE, UNSEEN = "STARTED", "LATE", "UNSEEN"
OPEN = "the engine is open"
FORGOTTEN = "a run that was started is forgotten, and started again"
LOOK_WITHIN_S = 1.0  # after which the process may have been stopped in between
AGAIN_S = 0.05

MESSAGES = logging.getLogger("load")


class Paid(Event):
    """Sent to a run."""

    amount: int


class Ticket(Event):
    """Sent to whoever waits, for one of them to read."""

    number: int


class Log:
    """Where steps report to. A line is one write: it is there whole or not at all, whenever the kill comes."""

    file = -1
    store: Store

    def write(self, what: str) -> None:
        me = current_step()
        line = f"{what} {me.run_id} {me.position} {me.attempt} {time.monotonic():.6f} {os.getpid()}\n"
        os.write(self.file, line.encode())

    async def report(self) -> None:
        began_at = time.monotonic()
        self.write(STARTED)
        me = current_step()
        try:
            _, entries = await self.store.journal(me.run_id)
        except StoreError:
            entries = None
        if entries is None or time.monotonic() - began_at > LOOK_WITHIN_S:
            self.write(UNSEEN)
        elif any(entry.position == me.position for entry in entries):
            self.write(LATE)


LOG = Log()


@step
async def add(number: int) -> int:
    await LOG.report()
    await asyncio.sleep(number * 37 % 150 / 1000)  # long enough to be caught in it
    return number + 1


@workflow
async def works(number: int) -> int:
    for _ in range(3):
        number = await add(number)
    return number


@workflow
async def is_paid(number: int) -> int:
    number = await add(number)
    paid = await receive(Paid)
    return await add(number + paid.amount)


@workflow
async def is_paid_in_time(number: int) -> int:
    found = await first(Paid, timer(hours=1))
    return await add(number + (found.amount if isinstance(found, Paid) else 1_000_000))


@workflow
async def takes_a_ticket() -> int:
    await add(0)
    ticket = await receive(Ticket)
    return await add(ticket.number - 1)


@workflow
async def naps(number: int) -> int:
    number = await add(number)
    await sleep(0.2)
    return await add(number)


@workflow
async def helps(number: int) -> int:
    return await add(number)


@workflow
async def has_children(number: int) -> int:
    one, other = await asyncio.gather(helps(number), helps(number))
    return await add(one + other)


KINDS = 6
PAYABLE = (1, 2)
TICKET = 3


def chosen(number: int) -> tuple[RunCall[int], int | None]:
    """The workflow call of a run, and what it must return; one that takes a ticket returns any ticket's number."""
    calls: list[tuple[RunCall[int], int | None]] = [
        (works(number), number + 3),
        (is_paid(number), 2 * number + 2),
        (is_paid_in_time(number), 2 * number + 1),
        (takes_a_ticket(), None),
        (naps(number), number + 2),
        (has_children(number), 2 * (number + 1) + 1),
    ]
    return calls[number % KINDS]


def run_id(number: int) -> str:
    return f"r-{number}"


class Worker:
    """One engine of the fleet, and what is asked of it."""

    def __init__(self, engine: Engine, index: int, of: int, runs: int, at_once: int) -> None:
        self._at_once = at_once
        self._engine = engine
        self._runs = range(index, runs, of)
        self._others = range((index + 1) % of, runs, of)
        self._limit = 0
        self._may_go_on = asyncio.Event()

    def allow(self, limit: int) -> None:
        self._limit = limit
        self._may_go_on.set()

    async def _allowed(self, numbers: Iterator[int]) -> AsyncIterator[int]:
        for number in numbers:
            while number >= self._limit:
                self._may_go_on.clear()
                await self._may_go_on.wait()
            yield number

    async def start_all(self) -> None:
        numbers = iter(self._runs)
        await asyncio.gather(*(self._start(numbers) for _ in range(self._at_once)))

    async def _start(self, numbers: Iterator[int]) -> None:
        async for number in self._allowed(numbers):
            await until_taken(partial(self._run, number))

    async def _run(self, number: int) -> None:
        call, expected = chosen(number)
        run = await self._engine.start(call, id=run_id(number))
        try:
            result = await run.result()
        except RunNotFound:
            # Only a store that lost what it had answered does that; who checks looks for these words.
            MESSAGES.warning("%s: %s", FORGOTTEN, run.id)
            await self._run(number)
            return
        if expected not in (None, result):
            raise AssertionError(f"run {number} gave {result}, not {expected}")

    async def send_all(self) -> None:
        """In the order in which runs are started, so that some events come before the wait for them, some after."""
        numbers = iter(self._others)
        await asyncio.gather(*(self._send(numbers) for _ in range(4)))

    async def _send(self, numbers: Iterator[int]) -> None:
        async for number in self._allowed(numbers):
            if number % KINDS in PAYABLE:
                await until_taken(partial(self._pay, number))
            elif number % KINDS == TICKET:
                await until_taken(partial(self._broadcast, number))

    async def _pay(self, number: int) -> None:
        while True:
            try:
                await self._engine.send(Paid(amount=number), to=run_id(number), key=f"pay-{number}")
            except RunNotFound:
                await asyncio.sleep(AGAIN_S)
            except RunFinished:
                return  # A process before this one has sent it.
            else:
                return

    async def _broadcast(self, number: int) -> None:
        await self._engine.send(Ticket(number=number), key=f"ticket-{number}")


async def until_taken(request: Callable[[], Awaitable[None]]) -> None:
    """Ask again while there is no store to be had: all that is asked here can be asked twice."""
    while True:
        try:
            return await request()
        except StoreError as error:
            MESSAGES.warning("asked again: %s", error)
            await asyncio.sleep(AGAIN_S)


Opened = TypeVar("Opened", Engine, Client, Store)


async def opened(make: Callable[[], Opened]) -> Opened:
    """An engine, a client or a store, as soon as one can be opened. Each has one try."""
    while True:
        made = make()
        try:
            await made.open()
        except StoreError as error:
            MESSAGES.warning("opened again: %s", error)
            await asyncio.sleep(AGAIN_S)
        else:
            return made


async def main(url: str, index: int, of: int, runs: int, at_once: int) -> None:
    words = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
    LOG.store = await opened(lambda: open_store(url))
    # These kills are no run's fault: however often one is hit in a row, it must not be set aside as poison.
    engine = await opened(lambda: Engine(url, limits=Limits(recoveries_max=1_000_000)))
    MESSAGES.info(OPEN)
    async with asyncio.TaskGroup() as group:
        worker = Worker(engine, index, of, runs, at_once)
        tasks: list[asyncio.Task[Any]] = [group.create_task(one) for one in (worker.start_all(), worker.send_all())]
        async for limit in words:
            worker.allow(int(limit))
        for task in tasks:
            task.cancel()
    await engine.shutdown()
    await LOG.store.close()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.INFO)
    LOG.file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[3:7])))
