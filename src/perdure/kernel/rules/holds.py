"""The rules of holds. A run is held, and its hold is lifted."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.errors import RunFinished
from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, check_version, mine_or_free, move, note
from perdure.kernel.effects import Begin, Drop
from perdure.kernel.fingerprints import tried_too
from perdure.kernel.rules import operations
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status


def set_hold(run: Run | None, op: ops.SetHold, me: str, inputs: DecisionInput) -> Decision:
    if op.claim is not None and (run is None or run.claim != op.claim):
        return NOTHING
    run = mine_or_free(run, op, me)
    check_version(run, op.expected_version)
    if run.status in FINISHED:
        if op.claim is not None:
            return NOTHING
        raise RunFinished(f"run {run.id!r} is {run.status}: it cannot be held", run_id=run.id, status=run.status)
    if run.hold is not None or op.examined:
        return operations.examined(run, op) if op.examined else NOTHING
    hold = replace(op.hold, fingerprint=tried_too(run.tried, op.hold.fingerprint))
    run, audit_rows = note(run, op, hold.kind, hold.reason, hold.details, hold=hold, tried="", owner=None)
    if run.model == "operation":
        return operations.held(run, hold, op, audit_rows, has_code=inputs.has_code)
    return Decision(run=run, row=True, audit=audit_rows, effects=(Drop(run.id, hold.kind),), reply=True)


def resume(run: Run | None, op: ops.Resume, me: str, inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    check_version(run, op.expected_version)
    if run.hold is None:
        return NOTHING
    is_taken = op.take and inputs.has_code
    changes = operations.lifted(run)
    if is_taken:
        changes |= {"owner": me, "claim": run.claim + 1}
    run, audit_rows = note(run, op, "resumed", "resumed by hand", run.hold.reason, recoveries=0, **changes)
    if is_taken and run.status is Status.CREATED:
        run, more = move(run, Status.RUNNING, op, "resumed by hand")
        audit_rows += more
    effects = (Begin(run),) if is_taken else ()
    return Decision(run=run, row=True, mailbox=inputs.mailbox, audit=audit_rows, effects=effects, reply=True)
