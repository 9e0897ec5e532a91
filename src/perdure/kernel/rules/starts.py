"""The rules of starts. A run is started from outside, or as a child of another run."""

from __future__ import annotations

from msgspec import Struct

from perdure.kernel import ops
from perdure.kernel.decision import Decision, DecisionInput, audit
from perdure.kernel.effects import Begin
from perdure.kernel.runs import Run
from perdure.kernel.status import Status, check_transition


class Started(Struct, frozen=True):
    """The reply to Start: the run, and whether this op created it."""

    run: Run
    created: bool


def start(run: Run | None, op: ops.Start, me: str, _inputs: DecisionInput) -> Decision:
    if run is not None:
        return Decision(reply=Started(run, False))
    status = Status.RUNNING if op.admit else Status.CREATED
    check_transition(op.run_id, None, status)
    started = Run(
        id=op.run_id,
        workflow=op.workflow,
        workflow_version=op.workflow_version,
        model=op.model or "function",
        status=status,
        version=1,
        revision=1,
        owner=me if op.admit else None,
        claim=1 if op.admit or op.model == "function" else 0,  # See Run.known_model.
        parent_id=op.parent_id,
        bond=op.bond,
        origin=op.origin,
        tags=op.tags,
        deadline=op.deadline,
        created_at=op.at,
        started_at=(op.admitted_at or op.at) if op.admit else None,
        updated_at=op.at,
    )
    return Decision(
        run=started,
        row=True,
        input=op.input,
        audit=(audit(started, None, status, op, "started"),),
        effects=(Begin(started, op.input),) if op.admit else (),
        reply=Started(started, True),
    )
