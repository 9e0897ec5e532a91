"""Items of the streams that runs write."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.kernel.rows import StreamItem
from perdure.ports import Codec
from perdure.views.values import plain_value, shown_time


class StreamItemView(Struct, frozen=True, kw_only=True):
    """An item of a run's stream.

    `offset` is its number in the stream, counted from 1. `position` and `attempt` identify the step that wrote the
    item. They are None if workflow code wrote it.
    """

    offset: int
    value: Any
    at: datetime
    position: str | None
    attempt: int | None


def stream_item_view(item: StreamItem, codec: Codec) -> StreamItemView:
    """Return an item of a stream. Raises RowDamaged."""
    return StreamItemView(
        offset=item.offset,
        value=plain_value(item.value, codec, f"stream_items.value of item {item.offset} of run {item.run_id!r}"),
        at=shown_time(item.at),
        position=item.position,
        attempt=item.attempt,
    )


__all__ = ["StreamItemView", "stream_item_view"]
