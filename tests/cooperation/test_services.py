"""Services with different handlers, in processes of their own that are killed again and again: every hierarchy ends
as a whole, committed or rolled back."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from perdure.client import Client
from perdure.engine import AnyClient
from perdure.errors import ScopeFailed, StoreBusy
from perdure.models.cooperation.message_events import EventType, State, state_of
from perdure.models.cooperation.row_codec import RowCodec
from perdure.ports import PlainCodec, Store
from perdure.storage import open_store
from perdure.testing import check_store
from perdure.testing.readiness import assert_readiness_agrees
from tests.cooperation.service import GROUPS, LEVELS, OPEN, TOPICS, operation
from tests.storage.postgres.server import Servers

T = TypeVar("T")

FOLDER = Path(__file__).resolve().parents[2]
SKEWS_S = (0.0, 5.0, -5.0)
PATIENCE_S = 120.0


class Service:
    """One process, started again whenever it was killed."""

    def __init__(self, url: str, group: int) -> None:
        self._command = [sys.executable, "-m", "tests.cooperation.service", url, str(group), str(SKEWS_S[group])]
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line.decode().strip() == OPEN

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def survive(url: str, *, roots: int, kills: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown if it fails
    chance = random.Random(seed)
    services = [Service(url, group) for group in range(len(GROUPS))]
    ids: list[str] = []
    try:
        await asyncio.gather(*[service.start() for service in services])
        async with Client(url) as client:
            ended = asyncio.create_task(emit_and_wait(client, chance, roots, ids))
            for _ in range(kills):
                await asyncio.wait({ended}, timeout=chance.uniform(0.1, 0.6))
                service = chance.choice(services)
                await service.kill()
                await service.start()
            outcomes = await ended
    finally:
        await asyncio.gather(*[service.kill() for service in services])
    assert outcomes["failed"] > 0
    assert outcomes["committed"] > 0
    store = open_store(url)
    await store.open()
    try:
        await check(store, ids)
    finally:
        await store.close()


async def emit_and_wait(client: AnyClient, chance: random.Random, roots: int, ids: list[str]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    room = asyncio.Semaphore(50)

    async def one(id: str) -> None:
        async with room:
            fails = chance.choice([*LEVELS, None, None, None, None, None])
            root = await submit_internal(partial(client.emit, TOPICS[0], {"fails": fails}, id=id))
            ids.append(root.id)
            try:
                await submit_internal(root.finished)
            except ScopeFailed:
                assert fails is not None
                outcomes["failed"] += 1
            else:
                assert fails is None
                outcomes["committed"] += 1

    async with asyncio.timeout(PATIENCE_S * max(1, roots // 200)):
        await asyncio.gather(*[one(f"root-{number}") for number in range(roots)])
    return outcomes


async def submit_internal(request: Callable[[], Awaitable[T]]) -> T:
    """Ask again while the store is too busy: where everything is killed all the time, this process may starve too."""
    while True:
        try:
            return await request()
        except StoreBusy:
            await asyncio.sleep(0.1)


async def check(store: Store, roots: list[str]) -> None:
    """Each hierarchy has ended as a whole, and each step that was executed was undone once, or never."""
    operations = [operation(name) for name in LEVELS]
    await assert_readiness_agrees(store, operations, now=2**60)
    await check_store(store)
    for root in roots:
        scopes = RowCodec(PlainCodec()).read(await store.hierarchy(root))
        hierarchy = scopes.hierarchy()
        states = {state_of(hierarchy.own(run.lineage)) for run in scopes.runs.values()}
        assert states in ({State.COMMITTED}, {State.ROLLED_BACK}), (root, states)
        for run in scopes.runs.values():
            steps = [row.step or "" for row in hierarchy.own(run.lineage) if row.type is EventType.SUSPENDED]
            done = [step for step in steps if not step.startswith("Rollback of")]
            undone = [step for step in steps if step.startswith("Rollback of") and step.endswith(",]")]
            expected = [f"Rollback of {step}[0,]" for step in reversed(done)]
            assert undone == (expected if states == {State.ROLLED_BACK} else []), (root, run.handler)


@pytest.mark.timeout(600)
def test_services_on_one_file_survive_kills(tmp_path: Path) -> None:
    asyncio.run(survive(f"sqlite:///{tmp_path / 'services.db'}", roots=200, kills=6))


@pytest.mark.timeout(600)
def test_services_on_postgres_survive_kills(postgres_servers: Servers) -> None:
    asyncio.run(survive(f"{postgres_servers.fresh()}&lease=2", roots=200, kills=6))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_hierarchies_on_postgres_survive_kills(postgres_servers: Servers) -> None:
    asyncio.run(survive(f"{postgres_servers.fresh()}&lease=2", roots=5_000, kills=60))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_hierarchies_on_one_file_survive_kills(tmp_path: Path) -> None:
    asyncio.run(survive(f"sqlite:///{tmp_path / 'services.db'}", roots=5_000, kills=60))
