"""A process that starts a run, or emits a message, in a transaction, and waits to be killed before or after the commit:
python -m tests.starting.deaths URL ID [emit|commit]."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from typing import Any

import psycopg

from perdure import Client
from perdure.cooperation import Topic


async def main(url: str, run_id: str, mode: str = "start") -> None:
    async with Client(url) as client:
        connection: Any = (
            sqlite3.connect(url.removeprefix("sqlite:///"))
            if url.startswith("sqlite")
            else psycopg.connect(url.partition("?")[0])
        )
        connection.execute(f"insert into orders (id) values ('{run_id}')")
        if mode == "start":
            await client.start("ship", {"order": run_id}, version="", id=run_id, connection=connection)
        else:
            await client.emit(Topic("emitted.orders", dict[str, str]), {"id": run_id}, id=run_id, connection=connection)
        if mode == "commit":
            connection.commit()
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
