"""A standby is promoted under load: with synchronous replication nothing is lost, else engines notice what was."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.fleet.convoy import Convoy
from tests.fleet.test_kills import LEASE_S, finish, seeded, tell
from tests.storage.postgres.server import VERSIONS, PostgresServer

WENT_BACK = re.compile(r"(the store went back|does not know engine).*; dropping \d+ runs and registering anew")


class Pair:
    """A primary and its standby. Each promotion leaves one server, which gets a new standby."""

    def __init__(self, *, is_synchronous: bool) -> None:
        self._is_synchronous = is_synchronous
        self.primary = PostgresServer(VERSIONS[-1])
        self.standby = PostgresServer(VERSIONS[-1], standby_of=self.primary)

    @property
    def url(self) -> str:
        """Both of them: whoever can be written to is the primary."""
        ports = [str(server.port) for server in (self.primary, self.standby)]
        return self.primary.url.replace(f":{ports[0]}/", f":{ports[0]},127.0.0.1:{ports[1]}/")

    async def follow(self) -> None:
        """Until the standby has all that the primary has, and, if synchronous, the primary waits for it from now on."""
        async with self.asked() as connection:
            if self._is_synchronous:
                await connection.execute("alter system set synchronous_standby_names = '*'")
                await connection.execute("select pg_reload_conf()")
            state = "sync" if self._is_synchronous else "async"
            query = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = $1"
            while not await connection.fetchval(query, state):
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def asked(self) -> AsyncGenerator[Any]:
        connection: Any = await asyncpg.connect(self.primary.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def cut_off(self) -> int:
        """From now on nothing reaches the standby. What stands still for that must be ended with the primary."""
        async with self.asked() as connection:
            sender: int = await connection.fetchval("select pid from pg_stat_replication")
        os.kill(sender, signal.SIGSTOP)
        return sender

    async def fail_over(self, stopped: int | None = None) -> None:
        """The primary dies, for good, and the standby is promoted."""
        await asyncio.to_thread(self.primary.kill)
        if stopped is not None:
            with suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGKILL)
        await asyncio.to_thread(self.standby.promote)

    def end(self) -> None:
        self.primary.end()
        self.standby.end()


@asynccontextmanager
async def pair(*, is_synchronous: bool) -> AsyncGenerator[Pair]:
    made = await asyncio.to_thread(Pair, is_synchronous=is_synchronous)
    try:
        await made.follow()
        yield made
    finally:
        await asyncio.to_thread(made.end)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(3))
def test_a_synchronous_standby_that_is_promoted_has_lost_and_doubled_nothing(tmp_path: Path, number: int) -> None:
    asyncio.run(promote(tmp_path, seeded(), runs=1000))


async def promote(folder: Path, chance: random.Random, *, runs: int) -> None:
    async with (
        pair(is_synchronous=True) as servers,
        Convoy(f"{servers.url}?lease={LEASE_S}", folder, size=3, runs=runs, at_once=20) as convoy,
    ):
        convoy.allow(runs)
        await convoy.began(chance.randint(1, runs))
        await servers.fail_over()
        begun = convoy.count()
        await finish(convoy)
        assert convoy.count() > begun, "all was done before the failover, so nothing was tested"
        assert WENT_BACK.search(convoy.messages()) is None


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(3))
def test_engines_notice_what_an_asynchronous_standby_has_lost_and_go_on(tmp_path: Path, number: int) -> None:
    asyncio.run(lose(tmp_path, seeded(), runs=1000))


async def lose(folder: Path, chance: random.Random, *, runs: int) -> None:
    async with (
        pair(is_synchronous=False) as servers,
        Convoy(f"{servers.url}?lease={LEASE_S}", folder, size=3, runs=runs, at_once=20) as convoy,
    ):
        convoy.allow(runs)
        await convoy.one_is_open(0)
        await convoy.one_is_open(1)
        await convoy.one_is_open(2)
        await convoy.began(chance.randint(1, runs // 2))
        stopped = await servers.cut_off()
        # Everybody is to lose something: so many that each of them has had its share.
        await convoy.began(300)
        await servers.fail_over(stopped)

        async def have_noticed() -> bool:
            return all(WENT_BACK.search(process.messages.read_text()) for process in convoy.processes)

        await convoy.until(have_noticed, "all engines are to notice that the store went back")
        # Starts and events that had been answered may be lost: who asks for the same again, with the same ids, gets it.
        for index in range(convoy.size):
            await convoy.kill(index)
            convoy.restart(index)
        await finish(convoy, is_lossy=True)
        found = sum(len(WENT_BACK.findall(process.messages.read_text())) for process in convoy.processes)
        tell(f"{found} times an engine noticed that the store went back")
