"""What must always be true of stored values; checked on the way into storage and out of it."""

from __future__ import annotations

from perdure.errors import InvariantViolated
from perdure.kernel.decide import Decision
from perdure.kernel.records import Entry, Run
from perdure.kernel.status import FINISHED


def check_run(run: Run) -> None:
    """Raise InvariantViolated unless the run's fields fit each other."""
    finished = run.status in FINISHED
    if finished != (run.completed_at is not None):
        _broken(run.id, f"is {run.status} but completed_at is {run.completed_at}")
    if finished and (run.owner is not None or run.hold is not None):
        _broken(run.id, f"is {run.status} but has owner {run.owner} and hold {run.hold}")
    # A blocked run may be claimed by an engine with other code, which then lifts the hold.
    if run.hold is not None and run.hold.kind != "blocked" and run.owner is not None:
        _broken(run.id, f"is held ({run.hold.kind}) but owned by {run.owner}")
    if run.version < 1 or run.revision < run.version or run.claim < 0 or run.attempt < 1 or run.recoveries < 0:
        _broken(run.id, f"has impossible counters: {run}")


def check_entry(entry: Entry) -> None:
    """Raise InvariantViolated unless the entry has a number, a position and exactly one of value and failure."""
    if entry.seq < 1 or not entry.position or (entry.value is None) == (entry.failure is None):
        _broken(entry.run_id, f"has an impossible journal entry: {entry}")


def check_decision(decision: Decision) -> None:
    """Raise InvariantViolated unless every row of the decision may be written."""
    if decision.row and decision.run is not None:
        check_run(decision.run)
    for entry in decision.entries:
        check_entry(entry)


def _broken(run_id: str, what: str) -> None:
    raise InvariantViolated(f"run {run_id!r} {what}", run_id=run_id)
