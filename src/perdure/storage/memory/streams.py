"""Published values and streams of runs."""

from __future__ import annotations

from perdure.kernel.rows import PublishedValue
from perdure.kernel.status import FINISHED
from perdure.ports import StreamPage
from perdure.storage.memory.connection import MemorySlice


class MemoryStreams(MemorySlice):
    """Published values and streams."""

    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        with self._db.opened().holding(run_id) as database:
            return database.streams.published(run_id, key)

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        with self._db.opened().holding(run_id) as database:
            items = database.streams.page(run_id, name, after, max(0, limit))
            return StreamPage(items=items, has_ended=database.runs[run_id].run.status in FINISHED)

    async def streams(self, run_id: str) -> dict[str, int]:
        with self._db.opened().holding(run_id) as database:
            return database.streams.lengths(run_id)
