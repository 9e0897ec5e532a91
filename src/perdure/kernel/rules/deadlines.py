"""The rules of deadlines: a run whose deadline has passed fails.

models/cooperation/deadlines.py has the deadlines of operations.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.rules import artifacts, operations
from perdure.kernel.rules.cancellation import end_from_outside
from perdure.kernel.runs import Audit, Outcome, Run
from perdure.kernel.status import FINISHED, UNDOING, Status

BEGINS_ANEW: Final = "its deadline had passed, and begins anew"


def expire(run: Run | None, op: ops.Expire, me: str, inputs: DecisionInput) -> Decision:
    if run is not None and run.model == "operation":
        return operations.expire(run, op, me, inputs)
    if run is None or run.status in FINISHED or run.status in UNDOING:
        return NOTHING
    if run.deadline is None or run.deadline > op.at:
        return NOTHING
    if run.owner is not None and run.owner != me:
        return NOTHING
    decision = end_from_outside(run, Status.FAILED, op, Outcome(failure=op.failure), "deadline passed", me, inputs)
    return artifacts.ended(decision, inputs)


def deadline_since(audit: Iterable[Audit]) -> int | None:
    """Return the time at which the run got its current deadline. Return None if the run got it at its start."""
    given = [
        row.at for row in audit if row.details == BEGINS_ANEW or (row.became == "updated" and "deadline" in row.cause)
    ]
    return given[-1] if given else None
