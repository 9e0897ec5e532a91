"""The process that is killed: an engine under a mixed load. `python -m tests.kill.load STORE LOG EPOCH`

Lanes run one workflow after the other, each with an id made of the lane and a number, so that a new process goes on
where the last one was killed. Every attempt of a step first writes a line to the log (epoch, run, position, attempt),
then a byte to standard output, by which the parent chooses its moment. On SIGTERM lanes finish what they have begun,
and the process ends in peace.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from perdure import Engine, Limits, Retry, RunCall, current_step, sleep, step, workflow

LANES = 24
BRISK = Retry(attempts=4, initial=timedelta(milliseconds=5))
SLOW = Retry(attempts=2, delay=lambda _: timedelta(seconds=1.1))  # long enough to be a durable pause

OPENING = b"o"
STARTED = b"."


class Flaked(Exception):
    """On purpose; the next attempt does better."""


class Log:
    """Where steps report to. A line is one write: it is there whole or not at all, whenever the kill comes."""

    epoch = 0
    file = -1

    def report(self) -> int:
        me = current_step()
        os.write(self.file, f"{self.epoch} {me.run_id} {me.position} {me.attempt}\n".encode())
        os.write(sys.stdout.fileno(), STARTED)
        return me.attempt


LOG = Log()


@step
async def add(number: int, pause_ms: int = 0) -> int:
    LOG.report()
    if pause_ms:
        await asyncio.sleep(pause_ms / 1000)
    return number + 1


@step
def add_in_thread(number: int) -> int:
    LOG.report()
    time.sleep(0.002)
    return number + 1


@step(retry=BRISK)
async def add_flaky(number: int) -> int:
    if LOG.report() < 3:
        raise Flaked(f"{number}")
    return number + 1


@step(retry=SLOW)
async def add_slowly(number: int) -> int:
    if LOG.report() < 2:
        raise Flaked(f"{number}")
    return number + 1


@step(retry=BRISK)
async def add_one_by_one(number: int, count: int) -> int:
    """Goes on where its heartbeats say that it was, in another attempt as in another process."""
    attempt, me = LOG.report(), current_step()
    added = me.heartbeat_details or 0
    while added < count:
        added += 1
        me.heartbeat(added)
        await asyncio.sleep(0.001)
        if attempt == 1 and added >= count // 2:
            raise Flaked(f"{number}")
    return number + int(added)


@workflow
async def sequence(number: int) -> int:
    for _ in range(6):
        number = await add(number)
    return number


@workflow
async def fan_out(number: int) -> int:
    added = await asyncio.gather(*[add(number, pause) for pause in (0, 3, 1, 0, 8)])
    return await add(sum(added))


@workflow
async def naps(number: int) -> int:
    number = await add(number)
    await sleep(0.05)
    number = await add(number, 2)
    await asyncio.gather(sleep(0.02), add(0), sleep(0.08))
    return number


@workflow
async def stubborn(number: int) -> int:
    return await add_flaky(await add_flaky(number))


@workflow
async def patient(number: int) -> int:
    return await add(await add_slowly(number))


@workflow
async def threaded(number: int) -> int:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(add_in_thread(number)) for _ in range(3)]
    return await add_in_thread(sum(task.result() for task in tasks))


@workflow
async def reporting(number: int) -> int:
    return await add_one_by_one(await add_one_by_one(number, 4), 8)


MIX: list[tuple[Callable[[int], RunCall[int]], Callable[[int], int]]] = [
    (sequence, lambda n: n + 6),
    (fan_out, lambda n: 5 * (n + 1) + 1),
    (naps, lambda n: n + 2),
    (stubborn, lambda n: n + 2),
    (threaded, lambda n: 3 * (n + 1) + 1),
    (reporting, lambda n: n + 12),
    (patient, lambda n: n + 2),
]


def chosen(lane: int, number: int) -> tuple[RunCall[int], int]:
    """The workflow call of a lane's run, and what it must return. Patient ones are rare, since they take a second."""
    kinds = len(MIX) if number % 4 == 3 else len(MIX) - 1
    call, result = MIX[(lane + number) % kinds]
    return call(number), result(number)


def last_numbers(log: Path) -> dict[int, int]:
    """Where each lane was, by the log: a run that got no further than its start is simply started again."""
    last: dict[int, int] = {}
    for line in log.read_text().splitlines():
        lane, _, number = line.split(" ")[1].partition("-")
        last[int(lane)] = max(last.get(int(lane), 0), int(number))
    return last


async def main(store: str, begin_at: dict[int, int]) -> None:
    finishing = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, finishing.set)
    loop.add_reader(sys.stdin.fileno(), os._exit, 3)  # the parent is gone
    os.write(sys.stdout.fileno(), OPENING)

    async def lane(number: int, k: int) -> None:
        while not finishing.is_set():
            call, expected = chosen(number, k)
            result = await (await engine.start(call, id=f"{number}-{k}")).result()
            if result != expected:
                raise AssertionError(f"run {number}-{k} gave {result}, not {expected},")
            k += 1

    # These kills are no run's fault: however often one is hit in a row, it must not be set aside as poison.
    async with (
        Engine(f"sqlite:///{store}", limits=Limits(recoveries_max=1_000_000)) as engine,
        asyncio.TaskGroup() as lanes,
    ):
        for number in range(LANES):
            lanes.create_task(lane(number, begin_at.get(number, 0)))


if __name__ == "__main__":
    LOG.file = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    LOG.epoch = int(sys.argv[3])
    asyncio.run(main(sys.argv[1], last_numbers(Path(sys.argv[2]))))
