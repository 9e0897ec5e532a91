"""Events that wait to be read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.kernel.events import Event
from perdure.ports import Codec
from perdure.views.values import shown_time, shown_value


class EventView(Struct, frozen=True, kw_only=True):
    """An event that waits to be read. `to` is the run to which the event was sent or given. It is None for a broadcast
    event.
    """

    id: str
    number: int
    name: str
    value: Any
    to: str | None
    consume_on_read: bool
    sent_at: datetime
    expires_at: datetime


def event_view(event: Event, codec: Codec) -> EventView:
    """Return an event with its value decoded."""
    return EventView(
        id=event.id,
        number=event.number,
        name=event.name,
        value=shown_value(event.value, codec, f"events.value of event {event.id!r}"),
        to=event.run_id,
        consume_on_read=event.consumed,
        sent_at=shown_time(event.at),
        expires_at=shown_time(event.expires_at),
    )


__all__ = ["EventView", "event_view"]
