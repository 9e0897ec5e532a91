"""The rule of unread events: their fate when the run that they were sent to ends without reading them.

Each event has its own fallback: it is discarded, becomes a broadcast, or becomes a dead letter. The commit in which the
run ends applies the fallback (broadcasts.py), also to events that are sent in the same commit.
"""

from __future__ import annotations

from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.runs import Run


def fallback_of(event: Event, target: Run) -> tuple[bool, DeadLetter | None]:
    """Return whether an event becomes a broadcast, and the dead letter that it becomes, if it does. `target` is the run
    that the event was sent to. It has ended."""
    if event.fallback == "broadcast":
        return True, None
    return False, _dead_letter(event, target) if event.fallback == "dead_letter" else None


def _dead_letter(event: Event, target: Run) -> DeadLetter:
    return DeadLetter(
        id=event.id,
        name=event.name,
        value=event.value,
        fields=event.fields,
        run_id=target.id,
        status=target.status,
        ended_at=target.completed_at or target.updated_at,
        consumed=event.consumed,
        at=event.at,
    )
