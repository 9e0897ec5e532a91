"""What is stored of when a run goes on by itself: for whoever finds it without an owner."""

from __future__ import annotations

from typing import Final

from perdure.kernel.records import Run, Wait
from perdure.kernel.rules.operations import NEWS
from perdure.kernel.status import Status
from perdure.models.cooperation.live import Draft, LiveOperation

UNTIL: Final = "until"  # the position at which a run waits for time to pass


def stored_waits(
    live: LiveOperation, run: Run, draft: Draft, *, is_loaded: bool
) -> tuple[tuple[Wait, ...], tuple[str, ...]]:
    """The waits that a draft adds, and the positions of those that it removes."""
    until = draft.until if draft.status is Status.SUSPENDED else None
    draft.until_stored = until
    if draft.wait is not None and until == draft.wait.due_at:
        until = None  # The wait for the next attempt is enough, unless a deadline is earlier.
    # What is there of one that was read is not known; what it was told is known now.
    gone = [NEWS] if is_loaded and run.status is not Status.CREATED else []
    if draft.staged:
        gone.append(draft.staged)
    if until is None and (live.until is not None or (is_loaded and gone)):
        gone.append(UNTIL)
    waits: tuple[Wait, ...] = ()
    if until is not None and (until != live.until or draft.wait is not None):
        waits = (Wait(run_id=live.id, position=UNTIL, kind="timer", name=UNTIL, due_at=until),)
        live.has_waited = True
    attempts = live.attempts
    if draft.wait is not None and attempts is not None:
        waits += (draft.wait,)
        live.has_waited = attempts.is_stored = True
    elif attempts is not None and attempts.is_stored and not draft.keeps_attempts:
        gone.append(attempts.position)
    return waits, tuple(dict.fromkeys(gone)) if gone else ()
