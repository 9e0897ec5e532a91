"""Deletion of rows that are no longer needed: expired events, old keys and replies, and old engines."""

from __future__ import annotations

from perdure.ports import ENGINES_KEPT_US
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.database import MemoryDatabase
from perdure.storage.memory.fleet import is_needless


class MemoryRetention(MemorySlice):
    """Deletion of rows that are no longer needed."""

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        database = self._db.opened()
        with database.lock:
            old = [slot for slot, (_, given) in database.replies.items() if given < keys_before][:limit]
            for slot in old:
                del database.replies[slot]
            return len(old) + _purge_engines(database, at, limit) + database.tables.purge(at, keys_before, limit)


def _purge_engines(database: MemoryDatabase, at: int, limit: int) -> int:
    ended = database.ended
    dead = [engine for engine in database.engines.values() if not engine.alive]
    for engine in dead:
        ended.setdefault(engine.id, at)
    old = [one for one in dead if ended[one.id] < at - ENGINES_KEPT_US and is_needless(database, one)][:limit]
    for engine in old:
        del database.engines[engine.id], ended[engine.id]
    return len(old)
