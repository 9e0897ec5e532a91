"""The rule of unread events. It decides what happens to events that were sent to a run and that the run has not read
when it ends.

Each event has its own fallback. It is discarded, becomes a broadcast, or becomes a dead letter. The commit in which the
run ends applies the fallback (broadcasts.py). This includes events that are sent in the same commit.
"""

from __future__ import annotations

from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.runs import Run


def fallback_of(event: Event, target: Run) -> tuple[bool, DeadLetter | None]:
    """Return whether an event becomes a broadcast, and the dead letter that it becomes or None. `target` is the run
    that the event was sent to, and that has ended.
    """
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
