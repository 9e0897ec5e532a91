"""Readiness: the wait that a suspended run still needs, and whether it can go on.

A run goes on once all expected handlers of its last step's messages have ended. The run's strategy says which handlers
are expected (strategies.py). children.py has the states of children. perdure/kernel/operation_notices.py has the
notices that wake a run in memory.
"""

from __future__ import annotations

from itertools import chain

from perdure.models.cooperation.deadlines import deadline_ahead, earliest
from perdure.models.cooperation.moves import Awaits, Dismiss, OperationRun, Wait
from perdure.models.cooperation.progress import Progress
from perdure.models.cooperation.strategies import Names, Pending, Strategy, minds_each, waits_for_all


def outstanding_wait(
    strategy: Strategy, run: OperationRun, progress: Progress, *, giving_up: bool, rolling_back: bool
) -> Wait | Dismiss | None:
    """Return the wait or the dismissal that the run still needs. Return None if the run can go on."""
    window = progress.window
    if window is None or not (window.emitted or window.undone):
        return None
    outstanding = run.children.outstanding(window)
    missing = outstanding.missing
    deadline = deadline_ahead(progress.context, run.now, rolling_back=rolling_back)
    if outstanding.busy:
        needs_missing = not giving_up and waits_for_all(strategy)
        return Wait(until=None if giving_up else deadline, awaits="all" if needs_missing else "busy")
    # This is called for every report of a child, so it must not loop over all messages of the window.
    fewer = run.wakes if len(run.wakes) < len(window.emitted) else window.emitted
    asleep_until = max((run.wakes[id] for id in fewer if id in run.wakes and id in outstanding.emitted), default=0)
    if asleep_until > run.now and not giving_up:
        return Wait(until=earliest(asleep_until, deadline), awaits="missing")
    if all(id in run.wakes for id in chain(window.emitted, window.undone)):
        return None
    pending = Pending(
        missing=Names(missing),
        giving_up=giving_up,
        rolling_back=rolling_back,
        since=window.since,
        now=run.now,
    )
    if not strategy.goes_on(pending):
        until = strategy.looks_again_at(pending)
        awaits: Awaits = "any" if minds_each(strategy) else "missing"
        return Wait(until=until if giving_up else earliest(until, deadline), awaits=awaits)
    if missing and not giving_up:
        return Dismiss(children=missing)
    return None
