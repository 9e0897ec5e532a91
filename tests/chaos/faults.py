"""What goes wrong in a chaos run: one fault at a time begins, drawn by lot, and some last while others begin."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

from tests.chaos.fleet import LEASE_S, Fleet
from tests.chaos.record import FAULT, Record

TERMINATE = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where application_name like 'perdure%' and random() < 0.3
"""


class Faults:
    """Those that there are on a store, and how often each was made."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._fleet = fleet
        self._chance = chance
        self._lasting: set[asyncio.Task[None]] = set()
        self._busy: set[int] = set()  # engines that are stopped or about to be restarted
        self._record = Record(fleet.log, "faults")
        common = [self.kill, self.pause, self.pause_past_the_lease, self.kill_caller]
        of_the_store = [self.lock] if fleet.database.server is None else [
            self.crash, self.terminate, self.cut, self.delay, self.half_open, self.partition, self.lose_the_lease
        ]  # fmt: skip
        self._makers: list[Callable[[], Awaitable[None]]] = [*common, *of_the_store]

    @property
    def makers(self) -> list[Callable[[], Awaitable[None]]]:
        """Each once, in an order drawn by lot."""
        return self._chance.sample(self._makers, len(self._makers))

    async def one(self) -> None:
        await self._chance.choice(self._makers)()

    def _note(self, name: str, target: object = "", count: int = 1) -> None:
        self.counts[name] += count
        self._record.write(FAULT, str(target), name=name)

    async def end(self) -> None:
        """Wait for those that last, and see that the ways to the server are open."""
        while self._lasting:
            await asyncio.wait(self._lasting)
        for way in self._fleet.database.ways:
            way.heal()

    def _last(self, what: Callable[[], Awaitable[None]]) -> None:
        async def last() -> None:
            await what()

        task = asyncio.ensure_future(last())
        self._lasting.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._lasting.discard(task)
        task.result()

    async def _engine(self) -> int:
        """One to be hit. At least one of them is left alone, for there to be somebody to take over."""
        while True:
            free = [index for index in range(len(self._fleet.engines)) if index not in self._busy]
            if len(free) > 1:
                index = self._chance.choice(free)
                self._busy.add(index)
                return index
            await asyncio.wait(self._lasting, return_when=asyncio.FIRST_COMPLETED)

    async def kill(self) -> None:
        """SIGKILL; the next process in its place comes at once, or after its runs were taken over."""
        index = await self._engine()
        self._note("engines killed", index)
        self._fleet.engines[index].kill()
        pause_s = self._chance.choice((0.0, LEASE_S / 2, LEASE_S * 2))

        async def restart() -> None:
            await asyncio.sleep(pause_s)
            self._fleet.restart_engine(index)
            self._busy.discard(index)

        self._last(restart)

    async def pause(self) -> None:
        """SIGSTOP for less than the lease."""
        await self._stop("engines paused", self._chance.uniform(0.1, LEASE_S * 0.6))

    async def pause_past_the_lease(self) -> None:
        await self._stop("engines paused past the lease", LEASE_S * self._chance.uniform(1.5, 3))

    async def _stop(self, name: str, pause_s: float) -> None:
        index = await self._engine()
        self._note(name, index)
        self._fleet.engines[index].stop()

        async def wake() -> None:
            await asyncio.sleep(pause_s)
            self._fleet.engines[index].wake()
            self._busy.discard(index)

        self._last(wake)

    async def kill_caller(self) -> None:
        index = self._chance.randrange(len(self._fleet.callers))
        self._note("callers killed", index)
        self._fleet.restart_caller(index)

    async def lock(self) -> None:
        """Somebody else writes to the file, for a while."""
        self._note("files locked")
        pause_s = self._chance.uniform(0.1, 3.0)

        def hold() -> None:
            path = self._fleet.database.path
            connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
            with closing(connection), suppress(sqlite3.OperationalError):  # A stopped process may have it.
                connection.execute("begin immediate")
                time.sleep(pause_s)

        await asyncio.to_thread(hold)

    async def crash(self) -> None:
        """An immediate shutdown, or a kill of the first process; then it is started again."""
        server = self._fleet.database.server
        assert server is not None
        self._note("server crashes")
        await asyncio.to_thread(self._chance.choice((server.crash, server.kill)))
        await asyncio.sleep(self._chance.choice((0.0, LEASE_S / 2, LEASE_S * 1.5)))
        await asyncio.to_thread(server.revive)

    async def terminate(self) -> None:
        """An administrator ends sessions."""
        self._note("sessions terminated", count=len(await self._fleet.database.ask(TERMINATE)))

    async def cut(self) -> None:
        for way in self._fleet.database.ways:
            if self._chance.random() < 0.5:
                self._note("connections cut", way.port, way.cut(self._chance, self._chance.choice((0.3, 1.0))))

    async def delay(self) -> None:
        way = self._chance.choice(self._fleet.database.ways)
        self._note("ways delayed", way.port)
        way.delay_s = self._chance.uniform(0.02, 0.4)
        pause_s = self._chance.uniform(1.0, 5.0)

        async def recover() -> None:
            await asyncio.sleep(pause_s)
            way.delay_s = 0.0

        self._last(recover)

    async def half_open(self) -> None:
        """Some connections of a process."""
        self._silence("connections half-open", self._chance.uniform(0.1, 0.5))

    async def partition(self) -> None:
        """All connections of a process; new ones work."""
        self._silence("connections half-open", 1.0)

    async def lose_the_lease(self) -> None:
        """An engine's signs of life and its commits get lost for so long, and its steps do not."""
        index = await self._engine()
        self._note("leases lost", index)
        way = self._fleet.database.ways[index]
        way.lost = frozenset({"heartbeat", "writer"})
        pause_s = LEASE_S * self._chance.uniform(1.5, 4)

        async def heal() -> None:
            await asyncio.sleep(pause_s)
            way.heal()
            self._busy.discard(index)

        self._last(heal)

    def _silence(self, name: str, share: float) -> None:
        way = self._chance.choice(self._fleet.database.ways)
        lines = way.silence(self._chance, share)
        self._note(name, way.port, len(lines))
        pause_s = self._chance.uniform(0.5, 4 * LEASE_S)

        async def notice() -> None:
            await asyncio.sleep(pause_s)
            for line in lines:
                line.cut()

        self._last(notice)
