"""The statuses of a run, and the table of its transitions. The checks, the diagram in the docs, and the tests use this
one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from perdure.errors import InvalidTransition


class Status(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CANCELLING = "cancelling"
    ROLLING_BACK = "rolling_back"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_FAILED = "rollback_failed"


# `failed -> running` is a retry by hand. `succeeded -> rolling_back` undoes a finished run that has compensations.
TRANSITIONS: Mapping[Status | None, frozenset[Status]] = {
    None: frozenset({Status.CREATED, Status.RUNNING}),
    Status.CREATED: frozenset({Status.RUNNING, Status.CANCELLED, Status.FAILED}),
    Status.RUNNING: frozenset(
        {Status.SUSPENDED, Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.CANCELLING, Status.ROLLING_BACK}
    ),
    Status.SUSPENDED: frozenset(
        {Status.RUNNING, Status.FAILED, Status.CANCELLED, Status.CANCELLING, Status.ROLLING_BACK}
    ),
    Status.CANCELLING: frozenset({Status.ROLLING_BACK, Status.CANCELLED}),
    Status.ROLLING_BACK: frozenset({Status.ROLLED_BACK, Status.ROLLBACK_FAILED}),
    Status.SUCCEEDED: frozenset({Status.ROLLING_BACK}),
    Status.FAILED: frozenset({Status.RUNNING}),
    Status.CANCELLED: frozenset(),
    Status.ROLLED_BACK: frozenset(),
    Status.ROLLBACK_FAILED: frozenset(),
}

FINISHED = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED, Status.ROLLED_BACK, Status.ROLLBACK_FAILED})
ACTIVE = frozenset(Status) - FINISHED
# in these statuses, a run's code may be at work
ADVANCING = frozenset({Status.RUNNING, Status.SUSPENDED, Status.ROLLING_BACK})
UNDOING = frozenset({Status.CANCELLING, Status.ROLLING_BACK})


def check_transition(run_id: str, was: Status | None, became: Status) -> None:
    """Raise InvalidTransition unless the table allows the transition. The error names both statuses and the run."""
    if became not in TRANSITIONS[was]:
        allowed = ", ".join(sorted(TRANSITIONS[was])) or "nothing"
        raise InvalidTransition(
            f"run {run_id!r} cannot go from {was or 'nothing'} to {became}: from {was or 'nothing'} only {allowed}",
            run_id=run_id,
            was=was,
            became=became,
        )


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for was, targets in TRANSITIONS.items():
        lines += [f"    {was or '[*]'} --> {became}" for became in sorted(targets)]
    lines += [f"    {status} --> [*]" for status in sorted(FINISHED)]
    return "\n".join(lines)
