"""Tokens of the HTTP API and sessions of the dashboard: written in transactions of their own, and read."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from perdure.kernel.access import StoredSession, StoredToken
from perdure.storage.damage import record_of, sound
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row
from perdure.storage.sqlite.transaction import transaction

QUERIES: Final = load_queries(Path(__file__).with_name("access.sql").read_text("utf-8"))


def put_token(connection: sqlite3.Connection, *, token: StoredToken) -> bool:
    with transaction(connection):
        newest = read_token(connection, name=token.name)
        if newest is not None and newest.version == token.version:
            return newest.digest == token.digest
        if (newest.version if newest is not None else 0) != token.version - 1:
            return False
        used_at = newest.used_at if newest is not None else None
        connection.execute(QUERIES["insert_token"], asdict(token) | {"used_at": used_at})
        return True


def read_token(connection: sqlite3.Connection, *, name: str) -> StoredToken | None:
    row = connection.execute(QUERIES["token"], {"name": name}).fetchone()
    return None if row is None else _token_of(row)


def read_tokens(connection: sqlite3.Connection, *, query: str, variables: dict[str, Any]) -> list[StoredToken]:
    return sound(_token_of, connection.execute(QUERIES[query], variables))


def read_session(connection: sqlite3.Connection, *, id: str) -> StoredSession | None:
    row = connection.execute(QUERIES["session"], {"id": id}).fetchone()
    return None if row is None else _session_of(row)


def write(connection: sqlite3.Connection, *, query: str, variables: dict[str, Any]) -> int:
    """How many rows a statement has written."""
    with transaction(connection):
        return connection.execute(QUERIES[query], variables).rowcount


def _token_of(row: Row) -> StoredToken:
    """Raises RowDamaged."""
    return record_of(StoredToken, dict(zip(StoredToken.__struct_fields__, row, strict=True)), row)


def _session_of(row: Row) -> StoredSession:
    """Raises RowDamaged."""
    return record_of(StoredSession, dict(zip(StoredSession.__struct_fields__, row, strict=True)), row)
