"""Invariants of stored values. They are checked before values are stored, and after they are read."""

from __future__ import annotations

from perdure.errors import InvariantViolated, RowDamaged
from perdure.kernel.decision import Decision
from perdure.kernel.rows import DEFINITION, Entry, Wait
from perdure.kernel.runs import Damage, Run
from perdure.kernel.status import FINISHED

TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in microseconds
_TIMES = ("created_at", "started_at", "updated_at", "completed_at", "deadline")


def check_run(run: Run) -> None:
    """Raise InvariantViolated if the run's fields contradict each other."""
    finished = run.status in FINISHED
    if finished != (run.completed_at is not None):
        _broken(run.id, f"is {run.status} but completed_at is {run.completed_at}")
    if finished and (run.owner is not None or run.hold is not None):
        _broken(run.id, f"is {run.status} but has owner {run.owner} and hold {run.hold}")
    # An engine with other code may claim a blocked run. Then it lifts the hold.
    if run.hold is not None and run.hold.kind != "blocked" and run.owner is not None:
        _broken(run.id, f"is held ({run.hold.kind}) but owned by {run.owner}")
    if run.version < 1 or run.revision < run.version or run.claim < 0 or run.attempt < 1 or run.recoveries < 0:
        _broken(run.id, f"has impossible counters: {run}")


def check_entry(entry: Entry) -> None:
    """Raise InvariantViolated unless the entry has a number, a position, and either a value or a failure."""
    has_number = entry.seq >= 1 or entry.kind == DEFINITION
    if not has_number or not entry.position or (entry.value is None) == (entry.failure is None):
        _broken(entry.run_id, f"has an impossible journal entry: {entry}")


def damage_to_run(run: Run) -> Damage | None:
    """Return the damage of a run's stored row. Return None if the row is sound. A row is damaged if it cannot be read,
    or if its fields contradict each other. If the row is damaged, nothing can be decided about the run.
    """
    if isinstance(run.hold, Damage):
        return run.hold
    for name in _TIMES:
        at: int | None = getattr(run, name)
        if at is not None and not TIME_MIN <= at <= TIME_MAX:
            return damaged("runs", run.id, name, at, "a time between the years 1 and 9999")
    try:
        check_run(run)
    except InvariantViolated as violated:
        return Damage(kind="blocked", reason=f"the store is damaged: in table runs, {violated}")
    return None


def damage_to_wait(wait: Wait) -> Damage | None:
    """Return the damage of a stored wait. Return None if the wait is sound."""
    if wait.kind == "timer" and wait.due_at is None:
        return damaged("waits", wait.run_id, "due_at", None, "the time of a timer")
    for name, at in (("due_at", wait.due_at), ("since", wait.since)):
        if at is not None and not TIME_MIN <= at <= TIME_MAX:
            return damaged("waits", wait.run_id, name, at, "a time between the years 1 and 9999")
    return None


def damaged(table: str, key: str, column: str, value: object, expected: str) -> Damage:
    return Damage(kind="blocked", reason=str(RowDamaged.at(table, key, column, value, f"expected {expected}")))


def check_decision(decision: Decision) -> None:
    """Raise InvariantViolated if a row of the decision must not be written."""
    if decision.row and decision.run is not None:
        check_run(decision.run)
    for entry in decision.entries:
        check_entry(entry)


def _broken(run_id: str, what: str) -> None:
    raise InvariantViolated(f"run {run_id!r} {what}", run_id=run_id)
