"""Rubbish in a cell that is drawn by lot, in any table of any store: it may hold one run, and all others go on."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import SchemaTooNew, StoreBroken
from tests.engine.damage_draws import Column, DamagedStore, PostgresDamage, SqliteDamage, drawn_row, victims
from tests.engine.damaged_checks import VICTIMS, go_on, opened, read_lists, read_victims, wake_victims
from tests.engine.test_damaged_rows import FOR_ALL, JSON, KEYS, SHOWN_AS, UNREAD
from tests.storage.postgres.server import VERSIONS, Servers

DRAWS: dict[type[DamagedStore], int] = {
    SqliteDamage: 30,
    PostgresDamage: 10,
}  # A database takes longer to copy than a file.
PATIENCE_S = 60


@pytest.fixture(params=["sqlite", "postgres"])
def damaged(request: pytest.FixtureRequest) -> DamagedStore:
    if request.param == "sqlite":
        folder: Path = request.getfixturevalue("quick_path")
        return SqliteDamage(folder)
    servers: Servers = request.getfixturevalue("postgres_servers")
    return PostgresDamage(servers.running(VERSIONS[-1]))


def is_surely_damage(column: Column, value: Any) -> bool:
    """Whether no value of the column can be like that, and somebody reads it."""
    if {column.place, column.table} & (UNREAD | KEYS):
        return False
    if column.name in JSON and value in ("garbage", "{garbage", "[" * 5_000):
        return True
    is_number = column.type in ("integer", "bigint") and column.table not in FOR_ALL
    is_time = is_number and (column.name.endswith("at") or column.name in ("since", "deadline"))
    return is_time and column.name not in ("expires_at", "created_at") and value in (2**62, 2**63 - 1)


async def problem_of(url: str, column: Column, value: Any, ids: list[str], log: pytest.LogCaptureFixture) -> str:
    """What is wrong with how an engine lives with a damaged cell; empty if nothing is."""
    log.clear()
    is_damage = is_surely_damage(column, value)
    try:
        async with opened(url) as engine, asyncio.timeout(PATIENCE_S):
            await go_on(engine)
            said = await read_lists(engine) + await read_victims(engine, ids)
            left = await wake_victims(engine, turns_max=500 if is_damage else 20)
            said += await read_lists(engine) + await read_victims(engine, ids)
    except StoreBroken as broken:
        is_told = column.place in str(broken) or isinstance(broken, SchemaTooNew)
        return "" if column.table in FOR_ALL and is_told else repr(broken)
    except Exception as error:  # noqa: BLE001 - all of them are listed
        return repr(error)
    if is_damage:
        places = {column.place, SHOWN_AS.get(column.place, column.place)}
        if left:
            return f"these neither go on nor are held: {left}"
        if not any(place in said + log.text for place in places):
            return "nobody names it"
    return ""


async def damage(
    store: DamagedStore, choose: Callable[[list[Column], random.Random], list[Column]], log: pytest.LogCaptureFixture
) -> list[str]:
    """Damage one cell of each of the chosen columns, each in a whole store of its own; return what is wrong then."""
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    sys.stdout.write(f"PERDURE_SEED={seed}\n")  # pytest shows it when the test fails
    draw, problems, tried = random.Random(seed), list[str](), 0
    await store.furnish()
    for column in choose(await store.columns(), draw):
        url = await store.copy()
        mine, others = await victims(store), await victims(store, "other")
        row = await drawn_row(store, column.table, draw, mine, others)
        value = draw.choice(store.rubbish(column))
        if row is None or not await store.change(column, row, value):
            continue
        tried += 1
        if problem := await problem_of(url, column, value, sorted({*VICTIMS, *mine}), log):
            problems.append(f"{column.place} = {value!r:.60}: {problem}")
            sys.stdout.write(f"{problems[-1]}\n")
    sys.stdout.write(f"{tried} cells were damaged\n")
    return problems


async def test_a_cell_that_is_damaged_at_random_stops_one_run_at_most(
    damaged: DamagedStore, caplog: pytest.LogCaptureFixture
) -> None:
    problems = await damage(damaged, lambda columns, draw: draw.choices(columns, k=DRAWS[type(damaged)]), caplog)
    assert not problems, "\n".join(problems)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_column_of_each_table_is_damaged_at_random(
    damaged: DamagedStore, caplog: pytest.LogCaptureFixture
) -> None:
    problems = asyncio.run(damage(damaged, lambda columns, draw: draw.sample(columns, k=len(columns)), caplog))
    assert not problems, "\n".join(problems)
