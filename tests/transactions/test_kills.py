"""A real process makes transfers and is killed at random moments: the sum stays, and no transfer is made twice."""

from __future__ import annotations

import asyncio
import os
import random
import select
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.storage import open_store
from perdure.testing import check_store
from tests.storage.postgres.server import Servers
from tests.transactions.transfers import ACCOUNTS, BALANCE, EACH, STARTED, TABLES, drawn

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
LEASE_S = 1.0


@pytest.mark.timeout(240)
def test_three_hundred_transfers_on_one_file_survive_kills(tmp_path: Path) -> None:
    survive(f"sqlite:///{tmp_path / 'bank.db'}", tmp_path, transfers=300, begun_max=60)


@pytest.mark.timeout(240)
def test_three_hundred_transfers_on_postgres_survive_kills(tmp_path: Path, postgres_servers: Servers) -> None:
    survive(f"{own_database(postgres_servers)}&lease={LEASE_S}", tmp_path, transfers=300, begun_max=80)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_transfers_on_one_file_survive_kills(tmp_path: Path) -> None:
    survive(f"sqlite:///{tmp_path / 'bank.db'}", tmp_path, transfers=9_999, begun_max=200)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_transfers_on_postgres_survive_kills(tmp_path: Path, postgres_servers: Servers) -> None:
    survive(f"{own_database(postgres_servers)}&lease={LEASE_S}", tmp_path, transfers=9_999, begun_max=400)


def own_database(servers: Servers) -> str:
    """The URL of a database that has no tables of other tests."""
    url = servers.fresh()
    name = f"bank_{random.randrange(2**32)}"
    asyncio.run(_ask(url, f"create database {name}"))
    return url.replace("/postgres?", f"/{name}?")


def survive(url: str, folder: Path, *, transfers: int, begun_max: int) -> None:
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    sys.stdout.write(f"PERDURE_SEED={seed}\n")  # pytest shows it when the test fails
    chance = random.Random(seed)
    for statement in (*TABLES, *(f"insert into accounts values ({number}, {BALANCE})" for number in range(ACCOUNTS))):
        ask(url, statement)
    kills = begun = 0
    while True:
        with Process(url, transfers, folder / "errors.txt") as process:
            # Now and then while it opens and recovers.
            count = chance.randint(1, begun_max) if chance.random() < 0.9 else 0
            seen = process.began(count)
            begun += seen
            if seen < count:
                process.ended()
                break
        kills += 1
    sys.stdout.write(f"{kills} kills, {begun} attempts at least for {transfers} transfers\n")
    assert kills > 1, "hardly anything was killed, so nothing was tested"
    check_the_bank(url, transfers)
    asyncio.run(check_the_store(url, transfers))


def check_the_bank(url: str, transfers: int) -> None:
    expected = Counter(dict.fromkeys(range(ACCOUNTS), BALANCE))
    amounts: list[int] = []
    for run in range(transfers // EACH):
        for source, target, amount in drawn(run):
            expected[source] -= amount
            expected[target] += amount
            amounts.append(amount)
    made = Counter((run, position) for run, position in ask(url, "select run_id, position from transfers"))
    assert [key for key, count in made.items() if count > 1] == [], "transfers that were made more than once"
    assert len(made) == transfers
    assert sorted(amount for (amount,) in ask(url, "select amount from transfers")) == sorted(amounts)
    balances: dict[Any, Any] = dict(ask(url, "select id, balance from accounts"))
    assert sum(balances.values()) == ACCOUNTS * BALANCE
    assert balances == dict(expected)


async def check_the_store(url: str, transfers: int) -> None:
    store = open_store(url)
    await store.open()
    try:
        assert await check_store(store) == transfers // EACH
    finally:
        await store.close()


class Process:
    """One life of the process that makes transfers."""

    def __init__(self, url: str, transfers: int, errors: Path) -> None:
        command = [sys.executable, "-m", "tests.transactions.transfers", url, str(transfers)]
        self._errors = errors
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0
            )
        assert self._process.stdout is not None
        self._progress = self._process.stdout.fileno()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes
            self._process.kill()

    def began(self, count: int) -> int:
        """Wait until so many bodies of steps have begun, or until it has ended; how many have."""
        seen = 0
        give_up_at = time.monotonic() + PATIENCE_S
        while seen < count:
            ready, _, _ = select.select([self._progress], [], [], max(0.0, give_up_at - time.monotonic()))
            assert ready, f"no progress for {PATIENCE_S} s:\n{self._errors.read_text()}"
            got = os.read(self._progress, count - seen)
            if not got:
                break
            seen += got.count(STARTED)
        return seen

    def ended(self) -> None:
        code = self._process.wait(timeout=PATIENCE_S)
        assert code == 0, f"the process ended with {code}:\n{self._errors.read_text()}"


def ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()
    return asyncio.run(_ask(url, sql))


async def _ask(url: str, sql: str) -> list[tuple[Any, ...]]:
    driver: Any = asyncpg
    connection = await driver.connect(url.partition("?")[0])
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
