"""Tokens of the HTTP API and sessions of the dashboard: their named queries, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from perdure.kernel.access import StoredSession, StoredToken
from perdure.storage.damage import record_of, sound
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.queries import load_queries

QUERIES: Final = load_queries(Path(__file__).with_name("access.sql").read_text("utf-8"))


def token_of(row: Sequence[Any]) -> StoredToken:
    """Convert a row to a token. Raises RowDamaged."""
    return record_of(StoredToken, dict(zip(StoredToken.__struct_fields__, row, strict=True)), row)


def session_of(row: Sequence[Any]) -> StoredSession:
    """Convert a row to a session. Raises RowDamaged."""
    return record_of(StoredSession, dict(zip(StoredSession.__struct_fields__, row, strict=True)), row)


class PostgresAccess(PostgresSlice):
    """Tokens and sessions."""

    async def token(self, name: str) -> StoredToken | None:
        rows = await self._db.read(QUERIES["token"], name=name)
        return token_of(rows[0]) if rows else None

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> list[StoredToken]:
        return sound(token_of, await self._db.read(QUERIES["tokens"], after=after, limit=max(0, limit)))

    async def token_versions(self, *, after: tuple[str, int] | None = None, limit: int = 100) -> list[StoredToken]:
        name, version = after or ("", 0)
        rows = await self._db.read(
            QUERIES["token_versions"], after_name=name, after_version=version, limit=max(0, limit)
        )
        return sound(token_of, rows)

    async def use_token(self, name: str, *, at: int) -> None:
        await self._db.write(QUERIES["use_token"], name=name, at=at)

    async def session(self, id: str) -> StoredSession | None:
        rows = await self._db.read(QUERIES["session"], id=id)
        return session_of(rows[0]) if rows else None

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        rows = await self._db.write(QUERIES["purge_sessions"], at=at, limit=max(0, limit))
        gone: int = rows[0][0]
        return gone
