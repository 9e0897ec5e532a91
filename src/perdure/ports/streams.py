"""Published values and streams of runs."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import PublishedValue, StreamItem

# A page of a stream ends after this many characters. It has at least one item if the stream has more items.
STREAM_PAGE_CHARS_MAX = 4 * 1024 * 1024


class StreamPage(Struct, frozen=True, kw_only=True):
    """Some items of a stream, and whether its run had ended when they were read. If it had ended and the page is empty,
    no more items will come."""

    items: tuple[StreamItem, ...]
    has_ended: bool


class StreamStore(Protocol):
    """Published values and streams."""

    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        """Return the values that a run has published: under one key, or (None) under all keys. Raises RunNotFound."""

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        """Return the items of a stream with an offset greater than `after`, in order. At most `limit` items are
        returned, and fewer if they are large. A stream that nobody wrote to is empty. Raises RunNotFound."""

    async def streams(self, run_id: str) -> dict[str, int]:
        """Return the names of a run's streams, and the offset of the last item of each. Raises RunNotFound."""
