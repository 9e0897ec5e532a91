"""A file with very many suspended runs, quickly: a few go through an engine, and SQL multiplies their rows.

`python -m bench.filling runs.db 1000000`: half of them sleep until next year, a tenth waits for the event
"bench.popular", the others for an event "bench.paid" with the number of their own order. Each has done one step before.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

from bench.events import check_status, settled
from perdure import Engine, Event, receive, sleep, step, workflow


class Popular(Event, event_name="bench.popular"):
    """What a tenth of all runs waits for."""

    number: int


class Paid(Event, event_name="bench.paid"):
    """What each of many runs waits for with its own order."""

    order: int


@step
async def prepare(number: int) -> dict[str, int | bool]:
    return {"ok": True, "n": number}


@workflow
async def sleeper(number: int) -> int:
    await prepare(number)
    await sleep(timedelta(days=365))
    return number


@workflow
async def popular_waiter(number: int) -> int:
    await prepare(number)
    await receive(Popular)
    return number


@workflow
async def payment_waiter(number: int) -> int:
    await prepare(number)
    await receive(Paid, where={"order": number})
    return number


WORKFLOWS: Final = [sleeper, popular_waiter, payment_waiter]

# What differs from run to run, as SQL over the number `n` of the run among all; {c} is the template's column.
_ID: Final = "printf('run-%09d', n)"
_KIND: Final = "case when n % 2 then 'sleeper' when n % 10 then 'payment_waiter' else 'popular_waiter' end"
_EARLIER: Final = "{c} - (:count - n) * 1000"
_CHANGES: Final[dict[str, dict[str, str]]] = {
    "runs": {
        "id": _ID,
        "input": "printf('{{\"number\":%d}}', n)",
        "created_at": _EARLIER,
        "started_at": _EARLIER,
        "updated_at": _EARLIER,
        "born": "n",
    },
    # Their arguments differ and their digests would be the template's: without one, nothing is compared.
    "journal": {"run_id": _ID, "started_at": _EARLIER, "at": _EARLIER, "digest": "''"},
    "audit": {"run_id": _ID, "at": _EARLIER},
    "waits": {
        "run_id": _ID,
        "since": _EARLIER,
        "due_at": _EARLIER,
        "number": "case when {c} then n else 0 end",
        "filter": "case when {c} = '' then '' else printf('[[\"order\",\"%d\"]]', n) end",
    },
}


def id_of(number: int) -> str:
    """The id of the run with this number, from 1 on."""
    return f"run-{number:09}"


def event_for(number: int) -> Paid | Popular:
    """What the run with this number waits for, if it is even; the odd ones sleep."""
    return Paid(order=number) if number % 10 else Popular(number=number)


def fill(path: Path, count: int) -> None:
    """Make the file, with `count` runs that nobody owns."""
    asyncio.run(_make_templates(path))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -200000")
        db.execute("begin")
        templates = ", ".join(f"'{template.name}'" for template in WORKFLOWS)
        for table in _CHANGES:
            _multiply(db, table, count)
            db.execute(f"delete from {table} where {_key(table)} in ({templates})")
        db.execute("update sequence set value = ?", (count,))
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")


async def _make_templates(path: Path) -> None:
    async with Engine(f"sqlite:///{path}", workflows=WORKFLOWS) as engine:
        for template in WORKFLOWS:
            await engine.start(template(0), id=template.name)
        await settled(engine)
        await check_status(engine, [template.name for template in WORKFLOWS], "suspended")


def _multiply(db: sqlite3.Connection, table: str, count: int) -> None:
    columns = [column for _, column, *_ in db.execute(f"pragma table_info({table})")]
    changed = ", ".join(_CHANGES[table].get(column, "{c}").format(c=column) for column in columns)
    db.execute(
        f"""
        with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)
        insert into {table} ({", ".join(columns)})
        select {changed} from numbers cross join {table} where {_key(table)} = {_KIND}
        """,
        {"count": count},
    )


def _key(table: str) -> str:
    return "id" if table == "runs" else "run_id"


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
