"""The rules of cancellation. A run is ended from outside, or the operation that called it gives up.

deadlines.py has the rules of deadlines, which end runs in the same way. models/cooperation/cancellation.py has the
cancellations of operations.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, cancellation, check_version, mine_or_free, move
from perdure.kernel.effects import Begin, Drop, Finish
from perdure.kernel.operation_notices import ASK, FENCE, STOP, UNDO
from perdure.kernel.rules import artifacts, operations
from perdure.kernel.rules.children import cancel_child
from perdure.kernel.rules.rollback import begin_rollback
from perdure.kernel.runs import Audit, Outcome, Run
from perdure.kernel.status import FINISHED, UNDOING, Status
from perdure.kernel.wait_matches import EMPTY


def cancel(run: Run | None, op: ops.Cancel, me: str, inputs: DecisionInput) -> Decision:
    if run is not None:
        check_version(run, op.expected_version)
    if run is None or run.status in FINISHED or run.status in UNDOING:
        return NOTHING
    run = mine_or_free(run, op, me)
    operations.check_no_operation(run)
    status, cause = (Status.FAILED, "deadline passed") if op.is_late else (Status.CANCELLED, "cancelled")
    return artifacts.ended(end_from_outside(run, status, op, Outcome(failure=op.failure), cause, me, inputs), inputs)


def end_from_outside(
    run: Run, status: Status, op: ops.Cancel | ops.Expire, outcome: Outcome, cause: str, me: str, inputs: DecisionInput
) -> Decision:
    """End a run from outside, together with its children. If the run has registered compensations, its rollback comes
    first.

    If the run's deadline has passed, its children fail instead of being cancelled. A retry of the run also retries the
    children that it has started. A cancelled child could not be retried, because no transition leads out of
    `cancelled`.
    """
    details = op.reason if isinstance(op, ops.Cancel) else ""
    why = f"its parent {run.id!r} was ended: {cause}"
    follow_ups = tuple(cancel_child(child, op, why) for child in inputs.children)
    if status is Status.FAILED:
        follow_ups = tuple(replace(end, failure=op.failure, is_late=True) for end in follow_ups)
    if run.undo:
        audit_rows: tuple[Audit, ...] = ()
        if status is Status.CANCELLED:
            run, audit_rows = move(run, Status.CANCELLING, op, cause, details)
        run, more = begin_rollback(run, op, cause, me if inputs.has_code else None)
        return Decision(
            run=run,
            row=True,
            mailbox=EMPTY,
            outcome=outcome,
            waits_cleared=True,
            audit=audit_rows + more,
            effects=(Begin(run),) if run.owner == me else (Drop(run.id, cause),),
            follow_ups=follow_ups,
            reply=True,
        )
    run, audit_rows = move(run, status, op, cause, details)
    return Decision(
        run=run,
        row=True,
        mailbox=EMPTY,
        outcome=outcome,
        waits_cleared=True,
        consumed=operations.known_failures(run),
        audit=audit_rows,
        effects=(Finish(run, outcome),),
        follow_ups=(*follow_ups, *operations.to_caller(run, op)),
        reply=True,
    )


def notify(run: Run | None, op: ops.Notify, me: str, inputs: DecisionInput) -> Decision:
    if op.kind == FENCE:
        if run is not None and run.status not in FINISHED:
            mine_or_free(run, op, me)
        return NOTHING
    if run is None or run.model == "operation":
        return operations.notify(run, op, me, inputs)
    if op.kind == UNDO and run.status is Status.SUCCEEDED:
        return operations.undo_call(run, op, me, inputs)
    is_asked = op.kind == ASK and operations.ask_call(run, op)
    if not (is_asked or op.kind in (STOP, UNDO)) or run.status in FINISHED or run.status in UNDOING:
        return NOTHING
    reason = "the operation that called it gives up"
    run = mine_or_free(run, op, me)
    failure = (op.call_failure if is_asked else op.failure) or cancellation(reason)
    stop = ops.Cancel(run_id=run.id, at=op.at, actor=op.actor, reason=reason, failure=failure)
    return cancel(run, stop, me, inputs)
