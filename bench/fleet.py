"""Several engines on one Postgres: the steps of two processes together, and what three that have nothing to do ask for.

The work of W1 is shared out: as many runs, and as many in flight, as one engine has there.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from bench import loop
from bench.events import start_waiters, waiter
from bench.figures import Figures
from bench.steps import sequence
from perdure import Engine
from tests.storage.postgres.server import PostgresServer


async def _engine(store: str, runs: int, steps: int, in_flight: int) -> None:
    async with Engine(store, workflows=[sequence]) as engine:

        async def lane(numbers: Iterator[int]) -> None:
            for _ in numbers:
                await engine.run(sequence(steps))

        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        numbers = iter(range(runs))
        await asyncio.gather(*[lane(numbers) for _ in range(in_flight)])
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def measure_two(folder: Path, *, runs: int, steps: int, in_flight: int, singles: int) -> Figures:
    del singles
    server = PostgresServer(18, folder)
    processes: list[asyncio.subprocess.Process] = []
    command = [sys.executable, "-m", "bench.fleet", server.url, str(runs // 2), str(steps), str(in_flight // 2)]
    try:
        for _ in range(2):
            pipe = asyncio.subprocess.PIPE
            processes.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
        for process in processes:
            await _expect(process, b"open\n")
        began = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
        await asyncio.gather(*[_expect(process, b"done\n") for process in processes])
        took = time.perf_counter() - began
        for process in processes:
            await process.communicate(b"done\n")
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        server.end()
    return {"steps_per_s": runs // 2 * 2 * steps / took}


async def _expect(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdout is not None
    if await process.stdout.readline() != line:
        raise SystemExit("an engine failed, see above")


async def measure_idle(folder: Path, *, waiters: int, milliseconds: int) -> Figures:
    """What the server is asked, counted by its log."""
    server = PostgresServer(18, folder)
    try:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(Engine(server.url, workflows=[waiter])) for _ in range(3)]
            await start_waiters(engines[0], waiters)
            admin = await asyncpg.connect(server.url)
            try:
                await admin.execute("alter system set log_statement = 'all'")
                await admin.execute("select pg_reload_conf()")
                await asyncio.sleep(1)
                before = server.statements()
                await asyncio.sleep(milliseconds / 1000)
                asked = server.statements() - before
            finally:
                await admin.close()
    finally:
        server.end()
    return {"queries_per_s": asked / (milliseconds / 1000)}


def main(store: str, runs: str, steps: str, in_flight: str) -> None:
    loop.run(_engine(store, int(runs), int(steps), int(in_flight)))


if __name__ == "__main__":
    main(*sys.argv[1:])
