"""Dead letters: events that their run had not read when it ended, or could not read."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from perdure.kernel.events import DeadLetter
from perdure.ports import Codec
from perdure.views.values import shown_time, shown_value


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """An event that its run did not read.

    Without a `reason`, the run ended before it read the event. With a `reason`, the event did not fit the class that
    the run waited for. In this case `target_status` is "misfit", and `target_ended_at` is the time when that was found.
    """

    id: str
    name: str
    value: Any
    to: str
    target_status: str
    target_ended_at: datetime
    sent_at: datetime
    reason: str = ""


def dead_letter_view(letter: DeadLetter, codec: Codec) -> DeadLetterView:
    """Return a dead letter with its value decoded."""
    return DeadLetterView(
        id=letter.id,
        name=letter.name,
        value=shown_value(letter.value, codec, f"dead_letters.value of row {letter.id!r}"),
        to=letter.run_id,
        target_status="misfit" if letter.reason else letter.status,
        reason=letter.reason,
        target_ended_at=shown_time(letter.ended_at),
        sent_at=shown_time(letter.at),
    )


__all__ = ["DeadLetterView", "dead_letter_view"]
