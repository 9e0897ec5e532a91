"""W6: a process with many suspended runs is killed; another starts, sends each its event, until all have ended.

The time runs from the launch of the interpreter, as W9's does. All events are sent with one `send_many`, by a process
that has a list of them.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from bench import loop
from bench.events import Go, check_status, settled, start_waiters, waiter
from bench.figures import Figures
from perdure import Engine, To


async def _before(store: str, waiters: int) -> None:
    async with Engine(store, workflows=[waiter]) as engine:
        await start_waiters(engine, waiters)
        print("waiting", flush=True)
        await asyncio.sleep(60)  # It is killed long before.


async def _after(store: str, waiters: int) -> None:
    async with Engine(store, workflows=[waiter]) as engine:
        print("open", flush=True)
        ids = [f"waiter-{number:06}" for number in range(waiters)]
        await engine.send_many(To(Go(number=number), to=run_id) for number, run_id in enumerate(ids))
        await settled(engine)
        print("done", flush=True)
        await check_status(engine, ids, "succeeded")


def _measure(folder: Path, waiters: int) -> Figures:
    command = [sys.executable, "-m", "bench.recovery", f"sqlite:///{folder / 'recovery.db'}", str(waiters)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        _expect(process, b"waiting\n")
        process.kill()
    began = time.perf_counter()
    with subprocess.Popen([*command, "again"], stdout=subprocess.PIPE) as process:
        _expect(process, b"open\n")
        opened = time.perf_counter() - began
        _expect(process, b"done\n")
        done = time.perf_counter() - began
    if process.returncode != 0:
        raise SystemExit(f"{command} failed")
    return {"open_s": opened, "all_done_s": done}


def _expect(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != line:
        process.kill()
        raise SystemExit(f"{process.args!r} failed")


async def measure(folder: Path, *, waiters: int) -> Figures:
    return await asyncio.to_thread(_measure, folder, waiters)


def main(store: str, waiters: str, again: str = "") -> None:
    loop.run((_after if again else _before)(store, int(waiters)))


if __name__ == "__main__":
    main(*sys.argv[1:])
