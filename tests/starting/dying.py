"""A process that starts a run in a transaction and never commits it: python -m tests.starting.dying URL ID."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Any

import psycopg

from perdure import Client


async def main(url: str, run_id: str) -> None:
    async with Client(url) as client:
        connection: Any = (
            sqlite3.connect(url.removeprefix("sqlite:///"))
            if url.startswith("sqlite")
            else psycopg.connect(url.partition("?")[0])
        )
        connection.execute(f"insert into orders (id) values ('{run_id}')")
        await client.start("ship", {"order": run_id}, version="", id=run_id, connection=connection)
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
