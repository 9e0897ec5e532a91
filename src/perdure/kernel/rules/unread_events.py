"""The rule of unread events: what becomes of events that were sent to a run and not read before the run ended.

Each event has its own fallback: it is discarded, becomes a broadcast, or becomes a dead letter. The commit in which
the run ends applies it (broadcasts.py), also to events of the same commit.
"""

from __future__ import annotations

from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.runs import Run


def fallback_of(event: Event, target: Run) -> tuple[bool, DeadLetter | None]:
    """Return whether an event becomes a broadcast, and the dead letter that it becomes, if it does. `target` is the run
    that it was sent to, which has ended."""
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
