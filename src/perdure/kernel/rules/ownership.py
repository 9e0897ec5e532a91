"""The rules of ownership. An engine takes a run, counts how often the run's process died, and releases the run."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, move, note
from perdure.kernel.effects import Begin, Drop, Examine
from perdure.kernel.rules import operations
from perdure.kernel.runs import Audit, Hold, Run
from perdure.kernel.status import ADVANCING, Status


def take(run: Run | None, op: ops.Take, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.owner != me or run.claim != op.claim:
        return NOTHING
    notified = inputs.readiness.since(run.claim).notified  # notices that arrived between the claim and this op
    audit_rows: tuple[Audit, ...] = ()
    if run.hold is not None:
        lifted: dict[str, Any] = {**operations.lifted(run), "recoveries": 0, "tried": run.hold.fingerprint}
        run, audit_rows = note(run, op, "resumed", "other code is there now", run.hold.reason, **lifted)
        if run.status is Status.CREATED:
            run, more = move(run, Status.RUNNING, op, "claimed")
            audit_rows += more
        return Decision(run=run, row=True, audit=audit_rows, effects=(Begin(run, notified=notified),), reply=True)
    if run.status is Status.SUSPENDED:
        return Decision(run=run, effects=(Begin(run, notified=notified),), reply=True)
    if run.status is Status.CREATED:
        run, audit_rows = move(run, Status.RUNNING, op, "claimed")
    elif op.orphaned and run.recoveries >= op.recoveries_max:
        reason = (
            f"its process died {run.recoveries + 1} times in a row while this run was running; "
            "find out what kills it, then resume it by hand"
        )
        hold = Hold(kind="poison", reason=reason, at=op.at)
        run, audit_rows = note(run, op, "poison", reason, hold=hold, owner=None)
        examine = (Examine(run),) if run.model == "operation" else ()
        return Decision(run=run, row=True, audit=audit_rows, effects=examine, reply=False)
    elif op.orphaned:
        run = replace(run, recoveries=run.recoveries + 1, updated_at=op.at)
    return Decision(
        run=run,
        row=bool(audit_rows) or op.orphaned,
        audit=audit_rows,
        effects=(Begin(run, notified=notified),),
        reply=True,
    )


def count(run: Run | None, op: ops.Count, me: str, _inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status not in ADVANCING:
        return NOTHING
    return Decision(run=replace(run, recoveries=max(0, run.recoveries + op.change)), row=True, reply=True)


def release(run: Run | None, op: ops.Release, me: str, inputs: DecisionInput) -> Decision:
    if (
        run is None
        or run.owner != me
        or run.claim != op.claim
        or run.status is not Status.SUSPENDED
        or inputs.mailbox.won
    ):
        return NOTHING
    return Decision(run=replace(run, owner=None), row=True, effects=(Drop(run.id, "released"),), reply=True)
