"""Hierarchies of many children and of many levels: time, stored bytes and the longest turn of the loop, at each size.

`python -m bench.shapes`, or with `--url postgresql://…` on new schemas of that database; `--widths 500,1000` and
`--depths 100,300` choose sizes. Each figure per run must stay about the same from size to size.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.turns import Turns, watched_loop
from perdure import Engine, Limits
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import ScopeFailed

Message = dict[str, Any]

WIDE, LEAF, DEEP = (Topic(name, Message) for name in ("wide", "leaf", "deep"))
SHAPES: Final = {
    "wide": ("succeeds", "every child fails", "the root fails", "cancelled"),
    "deep": ("succeeds", "the root fails", "the leaf cannot be undone"),
}
_BYTES: Final = (
    "select sum(length(coalesce(exception, '')) + length(coalesce(context, '')) + length(cooperation_lineage)) "
    "from message_event"
)


def operations() -> list[Operation[Any]]:
    wide, leaf, deep = Operation("wide", WIDE), Operation("leaf", LEAF), Operation("deep", DEEP)

    @wide.step
    async def fan_out(scope: Scope, message: Message) -> None:
        for _ in range(message["size"]):
            await scope.emit(LEAF, {"end": message["end"]})

    @wide.step
    async def after(_: Scope, message: Message) -> None:
        if message["end"] == "the root fails":
            raise ValueError("asked to fail")

    @leaf.step
    async def work(_: Scope, message: Message) -> None:
        if message["end"] == "every child fails":
            raise ValueError("asked to fail")

    @deep.step
    async def go_down(scope: Scope, message: Message) -> None:
        if message["left"] > 1:
            await scope.emit(DEEP, {**message, "left": message["left"] - 1})

    @go_down.rollback
    async def come_up(_: Scope, message: Message, _cause: Failure) -> None:
        if message["end"] == "the leaf cannot be undone" and message["left"] == 1:
            raise ValueError("asked not to be undone")

    @deep.step
    async def end(_: Scope, message: Message) -> None:
        if message["end"] != "succeeds" and message["left"] == message["size"]:
            raise ValueError("asked to fail")

    return [wide, leaf, deep]


async def measure(url: str, shape: str, end: str, size: int, turns: Turns) -> str:
    topic = WIDE if shape == "wide" else DEEP
    async with Engine(url, workflows=operations(), limits=Limits(hierarchy_levels_max=max(1_000, size))) as engine:
        turns.longest_s = turns.collection_s = 0.0
        began, used = time.perf_counter(), time.process_time()
        root = await engine.emit(topic, {"size": size, "left": size, "end": end})
        if end == "cancelled":
            while len((await engine.runs.list(limit=2)).runs) < 2:  # noqa: ASYNC110 - the store is asked
                await asyncio.sleep(0.01)
            await root.cancel()
        with suppress(ScopeFailed):
            await root.finished()
        took, used = time.perf_counter() - began, time.process_time() - used
        longest, collection = turns.longest_s, turns.collection_s
    stored = await _stored(url)
    return (
        f"{shape:5} {size:7,}  {end:26} {took:8.2f} s {took / size * 1000:8.2f} ms per run"
        f" {used / size * 1000:8.2f} ms of the processor {stored / 1e6:8.2f} MB {stored / size:8,.0f} bytes per run"
        f" {longest * 1000:6.0f} ms longest turn {collection * 1000:6.0f} ms longest collection"
    )


async def _stored(url: str) -> int:
    """The bytes of failures, contexts and lineages."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            return int(db.execute(_BYTES).fetchone()[0])
    plain, _, schema = url.partition("?schema=")
    connection = await asyncpg.connect(plain, server_settings={"search_path": schema})
    try:
        return int(await connection.fetchval(_BYTES))
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.shapes", description="Wide and deep hierarchies.")
    parser.add_argument("--widths", default="500,1000,2000,10000", help="how many children a step has")
    parser.add_argument("--depths", default="100,300,1000", help="how many levels a hierarchy has")
    parser.add_argument("--url", help="a Postgres database, for its schemas shapes_1, shapes_2, …; else SQLite")
    options = parser.parse_args()
    numbers = count(1)
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        base = f"sqlite:///{Path(folder)}/{{}}.db" if options.url is None else f"{options.url}?schema=shapes_{{}}"
        for shape, sizes in (("wide", options.widths), ("deep", options.depths)):
            for end in SHAPES[shape]:
                for size in map(int, filter(None, sizes.split(","))):
                    turns = Turns()
                    with asyncio.Runner(loop_factory=partial(watched_loop, turns)) as runner:
                        url = base.format(next(numbers))
                        print(runner.run(measure(url, shape, end, size, turns)), flush=True)


if __name__ == "__main__":
    main()
