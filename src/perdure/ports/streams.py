"""Published values and streams of runs."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.kernel.rows import PublishedValue, StreamItem

# A page of a stream ends after this many characters. It has at least one item, unless the stream has no more items.
STREAM_PAGE_CHARS_MAX = 4 * 1024 * 1024


class StreamPage(Struct, frozen=True, kw_only=True):
    """Some items of a stream, and whether the run had ended when they were read. If the run had ended and the page is
    empty, there will be no more items.
    """

    items: tuple[StreamItem, ...]
    has_ended: bool


class StreamStore(Protocol):
    """Published values and streams."""

    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        """Return the values that a run has published. With `key`, return only the value under that key. Raises
        RunNotFound.
        """

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        """Return the items of a stream with an offset greater than `after`, in order. At most `limit` items are
        returned. If the items are large, fewer are returned. A stream to which nothing was appended is empty. Raises
        RunNotFound.
        """

    async def streams(self, run_id: str) -> dict[str, int]:
        """Return the names of a run's streams, and the offset of the last item of each. Raises RunNotFound."""
