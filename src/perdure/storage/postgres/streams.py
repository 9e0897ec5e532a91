"""Values that runs publish, and items of their streams. They are read in pages. commit.py writes them."""

from __future__ import annotations

from perdure.kernel.rows import PublishedValue
from perdure.kernel.status import FINISHED
from perdure.ports import STREAM_PAGE_CHARS_MAX, StreamPage
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.reads import fetch, status
from perdure.storage.postgres.rows import published_of, stream_item_of


class PostgresStreams(PostgresSlice):
    """Published values and streams."""

    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        async with self._db.snapshot() as connection:
            await status(connection, run_id)
            rows = await fetch(connection, "published", run_id=run_id, key=key)
            return [published_of(row) for row in rows]

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        async with self._db.snapshot() as connection:
            has_ended = await status(connection, run_id) in FINISHED
            wanted = {"run_id": run_id, "stream": name, "after": after, "limit": max(0, limit)}
            rows = await fetch(connection, "stream", **wanted, chars_max=STREAM_PAGE_CHARS_MAX)
            return StreamPage(items=tuple(stream_item_of(row) for row in rows), has_ended=has_ended)

    async def streams(self, run_id: str) -> dict[str, int]:
        async with self._db.snapshot() as connection:
            await status(connection, run_id)
            return {row[0]: row[1] for row in await fetch(connection, "streams", run_id=run_id)}
