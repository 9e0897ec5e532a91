"""Records: their named queries, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from perdure.kernel.records import Record
from perdure.storage.damage import record_of, sound
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.queries import load_queries

QUERIES: Final = load_queries(Path(__file__).with_name("records.sql").read_text("utf-8"))


def stored_record_of(row: Sequence[Any]) -> Record:
    """Convert a row to a record. Raises RowDamaged."""
    return record_of(Record, dict(zip(Record.__struct_fields__, row, strict=True)), row)


class PostgresRecords(PostgresSlice):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        query = "newest_record" if version is None else "record"
        rows = await self._db.read(QUERIES[query], kind=kind, name=name, version=version)
        return stored_record_of(rows[0]) if rows else None

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        rows = await self._db.read(QUERIES["records"], kind=kind, after=after, limit=max(0, limit))
        return sound(stored_record_of, rows)

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        kind, name, version = after or ("", "", 0)
        wanted = {"since": since, "kind": kind, "name": name, "version": version, "limit": max(0, limit)}
        return sound(stored_record_of, await self._db.read(QUERIES["record_versions"], **wanted))
