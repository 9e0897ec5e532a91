"""Records: named values with versions."""

from __future__ import annotations

from perdure.kernel.records import Record
from perdure.storage.memory.connection import MemorySlice


class MemoryRecords(MemorySlice):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        database = self._db.opened()
        with database.lock:
            return database.records.record(kind, name, version)

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        database = self._db.opened()
        with database.lock:
            return database.records.list_records(kind, after, limit)

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        database = self._db.opened()
        with database.lock:
            return database.records.list_versions(since, after, limit)
