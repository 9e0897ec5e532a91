"""Unwritten items: the stream items that a step has appended and that are not durable yet."""

from __future__ import annotations

import asyncio
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from msgspec import Struct

from perdure.errors import QueueFull
from perdure.kernel.rows import StreamItem
from perdure.values.checks import checked_text
from perdure.values.json import to_text

# How many bytes of one step's items may wait to be written. An item counts with its text and a fixed overhead.
UNWRITTEN_BYTES_MAX: Final = 8 * 1024 * 1024
ITEM_OVERHEAD_BYTES: Final = 200
_OP_BYTES_MAX: Final = 1024 * 1024


def item_text(stream: str, value: Any, payload_max: int) -> str:
    """Return an item as JSON. Raises UnstorableValue, and InvalidArguments for the stream's name."""
    checked_text(stream, "a stream's name")
    return to_text(value, f"an item of stream {stream!r}", payload_max)


class UnwrittenItem(Struct, eq=False):
    """An item that is not durable yet. `written` is done when the item is durable or no longer matters."""

    item: StreamItem
    size: int
    written: Future[None]


class UnwrittenItems:
    """The items of one step that are not written yet."""

    __slots__ = ("_room", "_unwritten_bytes", "is_sending", "last", "queue")

    def __init__(self) -> None:
        self._room = threading.Condition()
        self._unwritten_bytes = 0
        self.queue: deque[UnwrittenItem] = deque()
        self.last: Future[None] | None = None  # the `written` of the last item
        self.is_sending = False

    def enter(self, size: int, loop: asyncio.AbstractEventLoop, stream: str) -> None:
        """Count an item that is about to be written. A thread waits until there is room. In a coroutine, raises
        QueueFull if there is no room.
        """
        with self._room:
            while self._unwritten_bytes and self._unwritten_bytes + size > UNWRITTEN_BYTES_MAX:
                if _get_running_loop() is not None:
                    raise QueueFull(
                        f"more than {UNWRITTEN_BYTES_MAX:,} bytes of this step wait to be written to streams: now and "
                        "then `await current_step().flush()`, to go no faster than the store does",
                        stream=stream,
                    )
                self._room.wait(1)
                if loop.is_closed():  # No more items will be written, so there will never be room.
                    break
            self._unwritten_bytes += size

    def leave(self, batch: Sequence[UnwrittenItem]) -> None:
        """Mark items as written, or as items that will never be written."""
        with self._room:
            self._unwritten_bytes -= sum(one.size for one in batch)
            self._room.notify_all()
        for one in batch:
            one.written.set_result(None)

    def next(self) -> list[UnwrittenItem]:
        """Return the items for the next op."""
        batch: list[UnwrittenItem] = []
        size = 0
        while self.queue and size < _OP_BYTES_MAX:
            batch.append(self.queue.popleft())
            size += batch[-1].size
        return batch

    def discard_pending(self) -> tuple[StreamItem, ...]:
        """Discard the items that are not being written yet, and return them."""
        batch, self.queue = self.queue, deque()
        self.leave(list(batch))
        return tuple(one.item for one in batch)


__all__ = ["ITEM_OVERHEAD_BYTES", "UNWRITTEN_BYTES_MAX", "UnwrittenItem", "UnwrittenItems", "item_text"]
