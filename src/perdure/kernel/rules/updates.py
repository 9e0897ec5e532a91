"""The rule of updates by hand, which change tags or the deadline.

The caller may pass the version of the run that it has seen. If the run has another version, the update is refused as a
concurrent modification.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from perdure.errors import Misuse, RunFinished
from perdure.kernel import ops
from perdure.kernel.cooperation import token_tags, without_token_tags
from perdure.kernel.decision import Decision, DecisionInput, check_version, mine_or_free, note
from perdure.kernel.effects import Rearm
from perdure.kernel.rules import operations
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED


def update(run: Run | None, op: ops.Update, me: str, _inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    check_version(run, op.expected_version)
    changes: dict[str, Any] = {}
    if op.tags is not UNSET:
        changes["tags"] = {**without_token_tags(op.tags), **token_tags(run.tags)}
    if op.deadline is not UNSET:
        if run.status in FINISHED:
            raise RunFinished(
                f"run {run.id!r} is {run.status}: its deadline no longer matters", run_id=run.id, status=run.status
            )
        operations.check_no_operation(run, ": give the deadline to `emit`, or set it in a step with `scope.deadline`")
        changes["deadline"] = op.deadline
    if not changes:
        raise Misuse(f"nothing to update for run {run.id!r}: give tags or deadline")
    run, audit_rows = note(run, op, "updated", "updated " + " and ".join(changes), bump=True, **changes)
    return Decision(run=run, row=True, audit=audit_rows, effects=(Rearm(run),), reply=run)
