"""The rules of artifacts. They decide which artifacts are published, set aside or removed when their run ends.

An artifact is staged together with its journal entry. It is published in the commit in which the run succeeds.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.artifacts import ArtifactWrites
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.rules.tasks import left_open
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.kernel.tasks import TaskWrites

_FATES: Final = {
    Status.SUCCEEDED: "published",
    Status.FAILED: "aside",
    Status.CANCELLED: "gone",
    Status.ROLLED_BACK: "gone",
    Status.ROLLBACK_FAILED: "gone",
}


def brought(decision: Decision, op: ops.Advance, inputs: DecisionInput) -> Decision:
    """Return the decision about an advance, with the artifacts and tasks of the advance. Tasks that the run no longer
    waits for are withdrawn.
    """
    run = decision.run
    if run is None:
        return decision
    artifacts = ArtifactWrites()
    if op.artifacts is not None:
        artifacts.add(op.artifacts)
    if op.end is not None and op.end.has_staged and run.status in _FATES:
        artifacts.fates[run.id] = _FATES[run.status]
    is_over = decision.waits_cleared or decision.continued or op.end is not None
    withdrawn = left_open(inputs.mailbox, None if is_over else op.waits_dropped)
    return _with(decision, artifacts, TaskWrites(tasks=list(op.tasks), withdrawn=withdrawn))


def ended(decision: Decision, inputs: DecisionInput) -> Decision:
    """Return the decision that ends a run from outside, with the changes to the run's artifacts. The run's tasks are
    withdrawn.
    """
    run = decision.run
    if run is None:
        return decision
    artifacts = ArtifactWrites()
    if run.status in _FATES:
        artifacts.fates[run.id] = _FATES[run.status]
    return _with(decision, artifacts, TaskWrites(withdrawn=left_open(inputs.mailbox, None)))


def retried(decision: Decision) -> Decision:
    """Return the decision that runs a failed run again. The run's artifacts are staged again, except the artifacts of
    archived entries.
    """
    if decision.run is None:
        return decision
    return replace(decision, artifacts=ArtifactWrites(fates={decision.run.id: "staged"}))


def _with(decision: Decision, artifacts: ArtifactWrites, tasks: TaskWrites) -> Decision:
    if artifacts.is_empty and tasks.is_empty:
        return decision
    return replace(
        decision, artifacts=None if artifacts.is_empty else artifacts, tasks=None if tasks.is_empty else tasks
    )


def deposit(run: Run | None, op: ops.Deposit, me: str, _inputs: DecisionInput) -> Decision:
    """Store parts of an artifact of a running step. If the artifact is never staged, its parts are removed when the run
    ends.
    """
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    return Decision(run=run, artifacts=ArtifactWrites(chunks=list(op.chunks), chunks_gone=list(op.gone)), reply=True)
