"""A fleet behind PgBouncer in transaction mode: processes are killed and stopped, PgBouncer is, and the server is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.fleet.convoy import Convoy
from tests.fleet.test_kills import LEASE_S, finish, seeded, survive
from tests.storage.postgres.bouncer import PgBouncer
from tests.storage.postgres.server import VERSIONS, PostgresServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    made = PostgresServer(VERSIONS[-1])
    yield made
    made.end()


@pytest.fixture
def bouncer(server: PostgresServer) -> Iterator[PgBouncer]:
    made = PgBouncer(server, pool=8)
    yield made
    made.end()


@pytest.mark.parametrize("has_direct_way", [True, False])
def test_it_survives_the_loss_of_any_process(
    tmp_path: Path, server: PostgresServer, bouncer: PgBouncer, has_direct_way: bool
) -> None:
    way = f"direct={quote(server.url, safe='')}" if has_direct_way else "pgbouncer=true"
    asyncio.run(survive(f"{bouncer.url}?lease={LEASE_S}&{way}", tmp_path))


def test_it_survives_crashes_of_pgbouncer_and_of_the_server_behind_it(
    tmp_path: Path, server: PostgresServer, bouncer: PgBouncer
) -> None:
    asyncio.run(outlast(tmp_path, server, bouncer, runs=1000, crashes=6))


async def outlast(folder: Path, server: PostgresServer, bouncer: PgBouncer, *, runs: int, crashes: int) -> None:
    chance = seeded()
    url = f"{bouncer.url}?lease={LEASE_S}&pgbouncer=true"
    async with Convoy(url, folder, size=3, runs=runs, at_once=12) as convoy:
        for number in range(1, crashes + 1):
            convoy.allow(runs * number // crashes)
            await convoy.began(chance.randint(1, runs // crashes))
            victim: PgBouncer | PostgresServer = bouncer if number % 2 else server
            await asyncio.to_thread(victim.crash)
            await asyncio.sleep(chance.choice((0.0, LEASE_S / 2, LEASE_S)))
            await asyncio.to_thread(victim.start)
        await finish(convoy)
        assert "is sent again" in convoy.messages(), "nobody was hit, so nothing was tested"
