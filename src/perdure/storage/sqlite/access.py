"""Tokens of the HTTP API and sessions of the dashboard: writes in transactions of their own, and reads."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any, Final

from perdure.kernel.access import StoredSession, StoredToken
from perdure.storage.damage import record_of, sound
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row
from perdure.storage.sqlite.transaction import transaction

QUERIES: Final = load_queries(Path(__file__).with_name("access.sql").read_text("utf-8"))


def read_token(connection: sqlite3.Connection, *, name: str) -> StoredToken | None:
    row = connection.execute(QUERIES["token"], {"name": name}).fetchone()
    return None if row is None else _token_of(row)


def read_tokens(connection: sqlite3.Connection, *, query: str, variables: dict[str, Any]) -> list[StoredToken]:
    return sound(_token_of, connection.execute(QUERIES[query], variables))


def read_session(connection: sqlite3.Connection, *, id: str) -> StoredSession | None:
    row = connection.execute(QUERIES["session"], {"id": id}).fetchone()
    return None if row is None else _session_of(row)


def write(connection: sqlite3.Connection, *, query: str, variables: dict[str, Any]) -> int:
    """Execute a statement, and return how many rows it has written."""
    with transaction(connection):
        return connection.execute(QUERIES[query], variables).rowcount


def _token_of(row: Row) -> StoredToken:
    """Convert a row to a token. Raises RowDamaged."""
    return record_of(StoredToken, dict(zip(StoredToken.__struct_fields__, row, strict=True)), row)


def _session_of(row: Row) -> StoredSession:
    """Convert a row to a session. Raises RowDamaged."""
    return record_of(StoredSession, dict(zip(StoredSession.__struct_fields__, row, strict=True)), row)


class SqliteAccess(SqliteSlice):
    """Tokens and sessions."""

    async def token(self, name: str) -> StoredToken | None:
        return await self._db.read(partial(read_token, name=name))

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> list[StoredToken]:
        wanted = {"after": after, "limit": max(0, limit)}
        return await self._db.read(partial(read_tokens, query="tokens", variables=wanted))

    async def token_versions(self, *, after: tuple[str, int] | None = None, limit: int = 100) -> list[StoredToken]:
        name, version = after or ("", 0)
        wanted = {"after_name": name, "after_version": version, "limit": max(0, limit)}
        return await self._db.read(partial(read_tokens, query="token_versions", variables=wanted))

    async def use_token(self, name: str, *, at: int) -> None:
        await self._db.write(partial(write, query="use_token", variables={"name": name, "at": at}))

    async def session(self, id: str) -> StoredSession | None:
        return await self._db.read(partial(read_session, id=id))

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        wanted = {"at": at, "limit": max(0, limit)}
        return await self._db.write(partial(write, query="purge_sessions", variables=wanted))
