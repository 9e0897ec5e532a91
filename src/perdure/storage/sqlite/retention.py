"""Deletion of rows that are no longer needed: expired events, old keys and replies, and old engines."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path

from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.fleet import purge_engines
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import json_text
from perdure.storage.sqlite.transaction import transaction


class SqliteRetention(SqliteSlice):
    """Deletion of rows that are no longer needed."""

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        return await self._db.write(
            partial(_purge, path=self._db.path, signs=self._db.signs, at=at, keys_before=keys_before, limit=limit)
        )


def _purge(
    connection: sqlite3.Connection, *, path: Path, signs: SignsOfLife, at: int, keys_before: int, limit: int
) -> int:
    engines = purge_engines(connection, path=path, signs=signs, at=at, limit=limit)
    with transaction(connection):
        gone = connection.execute(QUERIES["purge_events"], {"at": at, "limit": limit}).fetchall()
        retained = [event_id for event_id, is_retained in gone if is_retained]
        if retained:
            connection.execute(QUERIES["purge_reads"], {"ids": json_text(retained)})
        before = {"before": keys_before, "limit": limit}
        return (
            len(gone)
            + engines
            + sum(connection.execute(QUERIES[old], before).rowcount for old in ("purge_keys", "purge_replies"))
        )
