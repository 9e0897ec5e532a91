"""A real process under load is killed at random moments: nothing committed is done again, and no run is stuck."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from perdure.storage.sqlite import SqliteStore
from perdure.testing import check_store
from tests.kill.killer import Key, Killer, Start
from tests.kill.load import LANES, chosen


@pytest.mark.timeout(240)
def test_twenty_kills_cost_nothing_that_was_committed(tmp_path: Path) -> None:
    survive(tmp_path, kills=20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_two_hundred_kills_cost_nothing_that_was_committed(tmp_path: Path) -> None:
    survive(tmp_path, kills=200)


def survive(folder: Path, kills: int) -> None:
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    sys.stdout.write(f"PERDURE_SEED={seed}\n")  # pytest shows it when the test fails
    killer = Killer(folder, seed)
    for _ in range(kills):
        killer.kill_once()
    killer.finish()

    starts = killer.starts
    repeated = keys_in_several_epochs(starts)
    sys.stdout.write(f"{kills} kills, {len(starts)} attempts of steps, {len(repeated)} steps caught by one\n")
    assert repeated, "no kill caught a step, so nothing was tested"
    check_each_attempt_began_once(starts)
    check_every_started_step_has_one_entry(killer.store, starts)
    check_every_run_is_right(killer.store)
    check_the_file_is_sound(killer.store)
    asyncio.run(check_invariants(killer.store))


def keys_in_several_epochs(starts: list[Start]) -> set[Key]:
    epochs: dict[Key, set[int]] = {}
    for epoch, run_id, position, _ in starts:
        epochs.setdefault((run_id, position), set()).add(epoch)
    return {key for key, found in epochs.items() if len(found) > 1}


def check_each_attempt_began_once(starts: list[Start]) -> None:
    twice = [start for start, count in Counter(starts).items() if count > 1]
    assert not twice, f"these attempts began more than once in one process: {twice[:10]}"


def check_every_run_is_right(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        rows = connection.execute("select id, status, output, hold, owner from runs").fetchall()
        waits = connection.execute("select count(*) from waits").fetchone()[0]
    assert len(rows) >= LANES
    for run_id, status, output, hold, owner in rows:
        lane, _, number = run_id.partition("-")
        _, expected = chosen(int(lane), int(number))
        assert (status, output, hold, owner) == ("succeeded", str(expected), None, None), run_id
    assert waits == 0


def check_every_started_step_has_one_entry(store: Path, starts: list[Start]) -> None:
    with closing(sqlite3.connect(store)) as connection:
        entries = Counter(connection.execute("select run_id, position from journal"))
    assert {key for key, count in entries.items() if count > 1} == set()
    assert {start[1:3] for start in starts} <= entries.keys()


def check_the_file_is_sound(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]


async def check_invariants(store: Path) -> None:
    opened = SqliteStore(store)
    await opened.open()
    try:
        assert await check_store(opened) >= LANES
    finally:
        await opened.close()
