"""Handlers and messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from perdure.kernel.cooperation import HandlerList, MessageEventRow, ScopeRows
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.reads import operation


class MemoryCooperation(MemorySlice):
    """Handlers and messages."""

    async def handlers(self) -> HandlerList:
        return self._db.opened().cooperation.registered()

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        database = self._db.opened()
        with database.lock:
            return database.cooperation.scopes(ids, partial(operation, database))

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        database = self._db.opened()
        with database.lock:
            return database.cooperation.events_at(places)

    async def hierarchy(self, id: str) -> ScopeRows:
        database = self._db.opened()
        with database.lock:
            return database.cooperation.hierarchy(id, partial(operation, database))

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        return self._db.opened().cooperation.keys.get(message_id, {}).get("EMITTED")
