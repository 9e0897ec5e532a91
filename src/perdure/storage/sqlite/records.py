"""Records: writes in transactions of their own, and reads."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Final

from perdure.kernel.records import Record
from perdure.storage.damage import record_of, sound
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row

QUERIES: Final = load_queries(Path(__file__).with_name("records.sql").read_text("utf-8"))


def record(connection: sqlite3.Connection, *, kind: str, name: str, version: int | None) -> Record | None:
    query = "newest_record" if version is None else "record"
    row = connection.execute(QUERIES[query], {"kind": kind, "name": name, "version": version}).fetchone()
    return None if row is None else _record_of(row)


def records(connection: sqlite3.Connection, *, kind: str, after: str | None, limit: int) -> list[Record]:
    wanted = {"kind": kind, "after": after, "limit": max(0, limit)}
    return sound(_record_of, connection.execute(QUERIES["records"], wanted))


def record_versions(
    connection: sqlite3.Connection, *, since: int, after: tuple[str, str, int], limit: int
) -> list[Record]:
    kind, name, version = after
    wanted = {"since": since, "kind": kind, "name": name, "version": version, "limit": max(0, limit)}
    return sound(_record_of, connection.execute(QUERIES["record_versions"], wanted))


def _record_of(row: Row) -> Record:
    """Convert a row to a record. Raises RowDamaged."""
    return record_of(Record, dict(zip(Record.__struct_fields__, row, strict=True)), row)


class SqliteRecords(SqliteSlice):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        return await self._db.read(partial(record, kind=kind, name=name, version=version))

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        return await self._db.read(partial(records, kind=kind, after=after, limit=limit))

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        return await self._db.read(partial(record_versions, since=since, after=after or ("", "", 0), limit=limit))
