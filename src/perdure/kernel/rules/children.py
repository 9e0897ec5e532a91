"""The rules of children: what a child inherits from its parent, and which children an advance starts and cancels."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import cancellation
from perdure.kernel.runs import Run
from perdure.kernel.status import Status


def cancel_child(run_id: str, op: ops.Op, reason: str) -> ops.Cancel:
    return ops.Cancel(run_id=run_id, at=op.at, actor=op.actor, reason=reason, failure=cancellation(reason))


def born_of(parent: Run, start: ops.Start) -> ops.Start:
    """Return the start of a child, with the parent's tags added to its own tags.

    The child's deadline is at most the parent's deadline, with two exceptions. A detached child has only its own
    deadline. A child of a parent that rolls back also has only its own deadline. No deadline counts for a rollback, and
    the parent's deadline may have caused the rollback.
    """
    if not parent.tags and parent.deadline is None:
        return start
    is_free = start.bond == "detached" or parent.status is Status.ROLLING_BACK
    deadlines = [at for at in (start.deadline, None if is_free else parent.deadline) if at is not None]
    return replace(start, tags={**parent.tags, **start.tags}, deadline=min(deadlines, default=None))


def child_ops(run: Run, op: ops.Advance) -> tuple[ops.Op, ...]:
    """Return the ops that start and cancel children for an advance."""
    why = f"its parent {run.id!r} no longer waits for it"
    return (*(born_of(run, start) for start in op.starts), *(cancel_child(child, op, why) for child in op.cancels))
