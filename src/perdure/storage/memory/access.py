"""Tokens of the HTTP API, and sessions of the dashboard."""

from __future__ import annotations

from perdure.kernel.access import StoredSession, StoredToken
from perdure.storage.memory.connection import MemorySlice


class MemoryAccess(MemorySlice):
    """Tokens and sessions."""

    async def token(self, name: str) -> StoredToken | None:
        return self._db.opened().access.token(name)

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> list[StoredToken]:
        database = self._db.opened()
        with database.lock:
            return database.access.list_tokens(after, limit)

    async def token_versions(self, *, after: tuple[str, int] | None = None, limit: int = 100) -> list[StoredToken]:
        database = self._db.opened()
        with database.lock:
            return database.access.list_versions(after, limit)

    async def use_token(self, name: str, *, at: int) -> None:
        database = self._db.opened()
        with database.lock:
            database.access.use_token(name, at)

    async def session(self, id: str) -> StoredSession | None:
        return self._db.opened().access.sessions.get(id)

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        database = self._db.opened()
        with database.lock:
            return database.access.purge_sessions(at, limit)
