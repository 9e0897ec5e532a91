"""Asks the store, on a way of its own that no fault touches, whether what begins now has been done already."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

EFFECTS = "chaos_effects"
TABLE = f"create table if not exists {EFFECTS} (run_id text, name text, position text, attempt integer, pid integer)"

_ENDED = "('succeeded', 'failed', 'cancelled', 'rolled_back', 'rollback_failed')"
# An entry of a function or a graph; a step of an operation that has come to its end; a run that has ended.
_FOUND = """
    select 1 where exists (select 1 from {schema}journal where run_id = {run} and position = {position})
    or exists (select 1 from {schema}message_event where scope = {run} and step = {step} and type = 'SUSPENDED')
    or exists (select 1 from {schema}runs where id = {run} and status in {ended})
"""


class SqliteWitness:
    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    def is_done(self, run_id: str, position: str, step: str) -> bool:
        """Whether the store has an entry for this, or the run has ended. `step` is that of an operation, or nothing."""
        question = _FOUND.format(schema="", run=":run", position=":position", step=":step", ended=_ENDED)
        with closing(sqlite3.connect(self._path, timeout=5.0)) as connection:
            found = connection.execute(question, {"run": run_id, "position": position, "step": step}).fetchone()
        return found is not None


class PostgresWitness:
    """The same with a few connections, made when they are needed. Raises what asyncpg raises."""

    def __init__(self, url: str) -> None:
        self._url = url.partition("?")[0]
        schema = dict(parse_qsl(urlsplit(url).query)).get("schema", "perdure")
        self._question = _FOUND.format(schema=f"{schema}.", run="$1", position="$2", step="$3", ended=_ENDED)
        self._pool: Any = None

    async def is_done(self, run_id: str, position: str, step: str) -> bool:
        if self._pool is None:
            driver: Any = asyncpg
            self._pool = driver.create_pool(self._url, min_size=0, max_size=4, command_timeout=5)
        await self._pool
        return await self._pool.fetchval(self._question, run_id, position, step) is not None


FAULTS: tuple[type[Exception], ...] = (
    OSError,
    sqlite3.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)


def witness_of(url: str) -> SqliteWitness | PostgresWitness:
    return SqliteWitness(url) if url.startswith("sqlite") else PostgresWitness(url)
