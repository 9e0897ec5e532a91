"""Processes that share a store, each with an engine: started, killed, stopped and woken from outside."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from perdure.errors import StoreError
from perdure.kernel.status import FINISHED
from perdure.ports import Store
from perdure.storage import open_store
from tests.fleet.load import OPEN, STARTED, run_id
from tests.fleet.takeovers import Takeovers

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
POLL_S = 0.05


class Line(Struct, frozen=True):
    """What a step wrote when it began."""

    what: str
    run_id: str
    position: str
    attempt: int
    at: float
    pid: int


class Process:
    """One process of the load. Its messages are kept, for those of all processes in its place."""

    def __init__(self, command: list[str], messages: Path) -> None:
        self.messages = messages
        self._is_killed = False
        with messages.open("ab") as file:
            self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=file, bufsize=0)

    @property
    def pid(self) -> int:
        return self._process.pid

    def allow(self, limit: int) -> None:
        """Let it go on, up to this number of a run."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `check` tells why.
            self._process.stdin.write(f"{limit}\n".encode())

    @property
    def is_open(self) -> bool:
        """Whether its engine is, and not just about to be."""
        return f" {self.pid} INFO {OPEN}\n" in self.messages.read_text()

    def check(self) -> None:
        """See that it has not ended by itself."""
        code = self._process.poll()
        assert code is None or self._is_killed, f"a process ended by itself with {code}:\n{self.messages.read_text()}"

    def kill(self) -> None:
        """Idempotent. A stopped one is killed as well."""
        self._is_killed = True
        with self._process:  # closes the pipe, and waits
            self._process.kill()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def leave(self) -> None:
        """Have it shut down gracefully, and see that it does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = await asyncio.to_thread(self._process.wait, PATIENCE_S)
        assert code == 0, f"a process ended with {code}:\n{self.messages.read_text()}"


class Convoy:
    """A few processes under load on the store at `url`. Leaving the context ends them all, whatever happened."""

    def __init__(self, url: str, folder: Path, *, size: int, runs: int, at_once: int) -> None:
        self.size = size
        self.runs = runs
        self.store: Store = open_store(url)
        self.takeovers = Takeovers(self.store)
        self.processes: list[Process] = []
        self._url = url
        self._at_once = at_once
        self._folder = folder
        self._log = folder / "steps.log"
        self._log.touch()
        self._limit = 0
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Convoy:
        await self.store.open()
        self._watching = asyncio.create_task(self.takeovers.watch())
        self.processes = [self._process(index) for index in range(self.size)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.store.close()

    def _process(self, index: int) -> Process:
        numbers = [str(number) for number in (index, self.size, self.runs, self._at_once)]
        command = [sys.executable, "-m", "tests.fleet.load", self._url, str(self._log), *numbers]
        process = Process(command, self._folder / f"messages-{index}.txt")
        process.allow(self._limit)
        return process

    def allow(self, limit: int) -> None:
        """Let all go on, up to this number of a run."""
        self._limit = limit
        for process in self.processes:
            process.allow(limit)

    async def kill(self, index: int) -> None:
        """SIGKILL."""
        engines = await self._engines(index)
        self.processes[index].kill()
        self.takeovers.lost(engines)

    def restart(self, index: int) -> None:
        self.processes[index] = self._process(index)

    async def stop(self, index: int, *, is_lost: bool) -> list[str]:
        """SIGSTOP; its engines. If it is lost, others must take its runs over."""
        engines = await self._engines(index)
        self.processes[index].stop()
        if is_lost:
            self.takeovers.lost(engines)
        return engines

    async def one_is_open(self, *indexes: int) -> None:
        """Wait until one of these processes has an engine that is open."""

        async def is_one() -> bool:
            return any(self.processes[index].is_open for index in indexes)

        await self.until(is_one, "a process is to open its engine")

    def others(self, index: int) -> list[int]:
        return [other for other in range(self.size) if other != index]

    async def _engines(self, index: int) -> list[str]:
        """The engines that a process has, by the store."""
        found = await self._ask(self.store.engines)
        return [engine.id for engine in found if engine.alive and engine.pid == self.processes[index].pid]

    async def are_marked_dead(self, engine_ids: list[str]) -> bool:
        found = {engine.id for engine in await self._ask(self.store.engines) if engine.alive}
        return found.isdisjoint(engine_ids)

    async def has_ended(self) -> bool:
        """Whether all runs have that were allowed to begin."""
        ids = [run_id(number) for number in range(self._limit)]
        for start in range(0, len(ids), 1000):
            page = ids[start : start + 1000]
            found = await self._ask(partial(self.store.load, page))
            if len(found) < len(page) or any(one.run.status not in FINISHED for one in found.values()):
                return False
        return True

    async def has_no_mail(self) -> bool:
        return not await self._ask(lambda: self.store.mail("nobody", 1))

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait for something while there is progress, and for so long after the last."""
        seen, give_up_at = self.size_of_log(), time.monotonic() + PATIENCE_S
        while not await condition():
            if (now_seen := self.size_of_log()) != seen:
                seen, give_up_at = now_seen, time.monotonic() + PATIENCE_S
            assert time.monotonic() < give_up_at, f"no progress for {PATIENCE_S} s: {what}\n{self.messages()}"
            for process in self.processes:
                process.check()
            await asyncio.sleep(POLL_S)

    async def began(self, count: int) -> None:
        """Wait until so many more attempts of steps have begun. Raises if there was nothing left to begin."""
        count += self.count()

        async def have() -> bool:
            assert self.count() >= count or not await self.has_ended(), "all runs have ended too soon"
            return self.count() >= count

        await self.until(have, f"{count} steps are to begin")

    async def leave(self) -> None:
        for process in self.processes:
            process.check()
        await asyncio.gather(*(process.leave() for process in self.processes))

    def size_of_log(self) -> int:
        return self._log.stat().st_size

    def count(self) -> int:
        return self._log.read_bytes().count(STARTED.encode())

    def lines(self) -> list[Line]:
        found: list[Line] = []
        for line in self._log.read_text().splitlines():
            what, of_run, position, attempt, at, pid = line.split(" ")
            found.append(Line(what, of_run, position, int(attempt), float(at), int(pid)))
        return found

    def messages(self) -> str:
        return "".join(path.read_text() for path in sorted(self._folder.glob("messages-*.txt")))

    async def _ask(self, request: Callable[[], Awaitable[T]]) -> T:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await request()
            except StoreError:
                if time.monotonic() > give_up_at:
                    raise
                await asyncio.sleep(POLL_S)
