"""Hierarchies on a store with 1,000, and on one with 100,000 that have ended: what one takes must not grow with them.

`python -m bench.grown`, or with `--finished 5000` fewer; with `--url postgresql://…` on schemas of that database, which
must be new. Half of what is measured commits, half fails in a child and is undone. One hierarchy of each kind goes
through an engine, SQL multiplies its rows, and then both stores have their turns, one right after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Final

import asyncpg

from bench import loop
from bench.figures import Figures
from bench.hierarchies import LEFT, RIGHT, ROOT, operation
from bench.report import Rounds, Row, Target, table
from perdure import Engine
from perdure.cooperation import Operation, Scope
from perdure.errors import ScopeFailed

FEW: Final = 1_000
ROWS: Final = [
    Row("hierarchies/s", "many", "hierarchies_per_s", "{:,.0f}", "few", Target(1 / 1.3, least=True)),
    Row("time of the processor for one", "many", "cpu_ms", "{:.2f} ms", "few", Target(1.3)),
]

_FAILS: Final = 1  # what a message says whose child on the right fails
_TABLES: Final = ("runs", "messages", "message_event", "audit")
_TIMES: Final = frozenset({"created_at", "started_at", "updated_at", "completed_at", "at"})
_COLUMNS: Final = """
    select column_name, data_type from information_schema.columns where table_schema = $1 and table_name = $2
"""
_START: Final = "00000000-0000"  # of the templates' ids: in its place comes the number of the copy


def failing() -> Operation[dict[str, int]]:
    made = Operation("right", RIGHT)

    @made.step
    async def first(scope: Scope, message: dict[str, int]) -> None: ...

    @made.step
    async def second(_: Scope, message: dict[str, int]) -> None:
        if message["n"] % 2 == _FAILS:
            raise ValueError("asked to fail")

    return made


OPERATIONS: Final = [operation("root", ROOT, (LEFT, RIGHT)), operation("left", LEFT), failing()]


async def emit(engine: Engine, number: int) -> None:
    with suppress(ScopeFailed):
        await (await engine.emit(ROOT, {"n": number})).finished()


async def fill(url: str, finished: int) -> None:
    """Have so many hierarchies in a new store, that have ended."""
    ids = (f"{_START}-7{number:03x}-8000-000000000000" for number in count())
    async with Engine(url, workflows=OPERATIONS, ids=lambda _: next(ids)) as engine:
        for number in range(2):
            await emit(engine, number)
    copies = max(0, finished // 2 - 1)
    if url.startswith("sqlite"):
        await asyncio.to_thread(_fill_sqlite, url.removeprefix("sqlite:///"), copies)
    else:
        await _fill_postgres(url, copies)


def _fill_sqlite(path: str, copies: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma synchronous = off")
        db.execute("pragma cache_size = -200000")
        db.execute("begin")
        for name in _TABLES:
            columns = [(column, kind) for _, column, kind, *_ in db.execute(f"pragma table_info({name})")]
            numbers = "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < {copies})"
            start = "printf('%08x-%04x', n / 65536, n % 65536)"
            db.execute(_multiplied(name, columns, numbers.format(copies=copies), start, copies))
        db.execute("commit")
        db.execute("pragma wal_checkpoint(truncate)")


async def _fill_postgres(url: str, copies: int) -> None:
    plain, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(plain)
    try:
        await connection.execute(f"set search_path to {schema}")
        for name in _TABLES:
            columns = [(row[0], row[1]) for row in await connection.fetch(_COLUMNS, schema, name)]
            numbers = f"with numbers (n) as (select generate_series(1, {copies}))"
            start = "lpad(to_hex(n / 65536), 8, '0') || '-' || lpad(to_hex(n % 65536), 4, '0')"
            await connection.execute(_multiplied(name, columns, numbers, start, copies), timeout=900)
            await connection.execute(f"analyze {name}")
    finally:
        await connection.close()


def _multiplied(name: str, columns: list[tuple[str, str]], numbers: str, start: str, copies: int) -> str:
    """What copies a table's rows, each copy with ids and times of its own."""

    def changed() -> Iterator[str]:
        for column, kind in columns:
            if kind.lower() == "text":
                yield f"replace({column}, '{_START}', {start})"
            elif column in _TIMES:
                yield f"{column} - ({copies + 1} - n) * 1000"
            else:
                yield column

    names = ", ".join(column for column, _ in columns)
    return f"{numbers} insert into {name} ({names}) select {', '.join(changed())} from numbers cross join {name}"


async def measure(url: str, *, hierarchies: int, in_flight: int) -> Figures:
    async with Engine(url, workflows=OPERATIONS) as engine:

        async def clients(amount: int) -> None:
            numbers = iter(range(amount))

            async def client() -> None:
                for number in numbers:
                    await emit(engine, number)

            await asyncio.gather(*[client() for _ in range(in_flight)])

        await clients(in_flight)  # What it reads once, it has read.
        began, used = time.perf_counter(), time.process_time()
        await clients(hierarchies)
        took, used = time.perf_counter() - began, time.process_time() - used
    return {"hierarchies_per_s": hierarchies / took, "cpu_ms": used / hierarchies * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.grown", description="Hierarchies beside many that ended.")
    parser.add_argument("--finished", type=int, default=100_000, help="how many the large store has (100000)")
    parser.add_argument("--hierarchies", type=int, default=1_000, help="how many are measured in each turn (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="how many turns the medians are of (5)")
    parser.add_argument("--url", help="a Postgres database, for its schemas grown_few and grown_many; else SQLite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        base = f"sqlite:///{Path(folder)}/{{}}.db" if options.url is None else f"{options.url}?schema=grown_{{}}"
        rounds: Rounds = {"few": [], "many": []}
        for name, finished in (("few", min(FEW, options.finished)), ("many", options.finished)):
            loop.run(fill(base.format(name), finished))
        for _ in range(options.rounds):
            for name, figures in rounds.items():
                figures.append(loop.run(measure(base.format(name), hierarchies=options.hierarchies, in_flight=100)))
    print(f"{options.finished:,} hierarchies that have ended, beside {FEW:,}", file=sys.stdout)
    print(table(rounds, ROWS, judged=True))


if __name__ == "__main__":
    main()
