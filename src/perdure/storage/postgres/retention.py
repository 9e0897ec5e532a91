"""Deletion of rows that are no longer needed: expired events, old keys and replies, and old engines."""

from __future__ import annotations

from perdure.ports import ENGINES_KEPT_US
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.queries import QUERIES


class PostgresRetention(PostgresSlice):
    """Deletion of rows that are no longer needed."""

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        events = await self._db.write(QUERIES["purge_events"], at=at, limit=max(0, limit))
        keys = await self._db.write(QUERIES["purge_keys"], before=keys_before, limit=max(0, limit))
        replies = await self._db.write(QUERIES["purge_replies"], before=keys_before, limit=max(0, limit))
        await self._db.write(QUERIES["note_ended"], at=at, limit=10 * max(0, limit))
        engines = await self._db.write(QUERIES["purge_engines"], before=at - ENGINES_KEPT_US, limit=max(0, limit))
        forgotten: int = events[0][0] + keys[0][0] + replies[0][0] + engines[0][0]
        return forgotten
