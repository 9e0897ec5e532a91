"""Tokens of the HTTP API and sessions of the dashboard: their named queries, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from perdure.kernel.access import StoredSession, StoredToken
from perdure.storage.damage import record_of
from perdure.storage.postgres.connection import Connection
from perdure.storage.postgres.queries import load_queries

QUERIES: Final = load_queries(Path(__file__).with_name("access.sql").read_text("utf-8"))


async def fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    """The rows of a named query."""
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


def token_of(row: Sequence[Any]) -> StoredToken:
    """Raises RowDamaged."""
    return record_of(StoredToken, dict(zip(StoredToken.__struct_fields__, row, strict=True)), row)


def session_of(row: Sequence[Any]) -> StoredSession:
    """Raises RowDamaged."""
    return record_of(StoredSession, dict(zip(StoredSession.__struct_fields__, row, strict=True)), row)
