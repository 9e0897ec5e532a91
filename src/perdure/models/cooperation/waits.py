"""The stored waits of a suspended run: the children that it needs, and the time at which it goes on by itself.

An engine that finds the run without an owner sees from these waits whether the run can go on."""

from __future__ import annotations

from typing import Final

from perdure.kernel.operation_notices import NEWS
from perdure.kernel.rows import Wait
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.cooperation.live_run import Draft, LiveOperation

UNTIL: Final = "until"  # the position of the wait for a time


def stored_waits(
    live: LiveOperation, run: Run, draft: Draft, *, is_loaded: bool
) -> tuple[tuple[Wait, ...], tuple[str, ...]]:
    """Return the waits that a draft adds, and the positions of the waits that it removes."""
    until = draft.until if draft.status is Status.SUSPENDED else None
    draft.until_stored = until
    if draft.wait is not None and until == draft.wait.due_at:
        until = None  # The wait for the next attempt is enough, unless the deadline is earlier.
    # If the run was read from the store, it is not known which of its waits are stored. Its notifications were read
    # together with the run, so the wait that marks new notifications is removed.
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


def awaited(live: LiveOperation, draft: Draft) -> tuple[str, ...]:
    """Return the children that a suspending run needs before it can go on. The result is empty if any report may be
    enough.
    """
    if draft.status is not Status.SUSPENDED or draft.awaits == "any":
        return ()
    window = live.progress.window
    return () if window is None else live.children.awaited(window, draft.awaits)
