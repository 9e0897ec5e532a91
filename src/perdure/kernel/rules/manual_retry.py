"""The rule of retries by hand. A failed run goes on from the entry whose failure ended it.

perdure/values/retry.py has the retries of steps.
"""

from __future__ import annotations

from perdure.errors import RunNotRetryable
from perdure.kernel import ops, wait_matches
from perdure.kernel.decision import Decision, DecisionInput, check_version, mine_or_free, move
from perdure.kernel.effects import Begin
from perdure.kernel.rules import artifacts
from perdure.kernel.rules.deadlines import BEGINS_ANEW
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.status import Status


def retry(run: Run | None, op: ops.Retry, me: str, inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    if run.status is not Status.FAILED:
        raise RunNotRetryable(
            f"run {run.id!r} is {run.status}: only a failed run can be retried", run_id=run.id, status=run.status
        )
    if run.consumed and run.parent_id is not None and not op.with_parent:
        raise RunNotRetryable(
            f"run {run.id!r} failed, and its parent {run.parent_id!r} was handed the failure; retry the parent instead",
            run_id=run.id,
            status=run.status,
        )
    check_version(run, op.expected_version)
    deadline, is_late = run.deadline, False
    if deadline is not None and deadline <= op.at:
        # The old deadline would end the run again at once. So the run gets a deadline again that is as far from now as
        # the old deadline was from its beginning.
        since = run.created_at if op.deadline_since is None else op.deadline_since
        deadline, is_late = op.at + max(0, deadline - since), True
    run, audit_rows = move(
        run,
        Status.RUNNING,
        op,
        "retried",
        BEGINS_ANEW if is_late else "",
        completed_at=None,
        owner=me if inputs.has_code else None,  # If None, an engine that has the code claims the run.
        claim=run.claim + 1,
        attempt=run.attempt + 1,
        recoveries=0,
        tried="",
        deadline=deadline,
    )
    mailbox = inputs.mailbox
    for event in op.events:
        mailbox, _ = wait_matches.put(mailbox, event)
    decision = Decision(
        run=run,
        row=True,
        mailbox=mailbox,
        outcome=Outcome(),
        events=op.events,
        archive_from=op.from_entry,
        audit=audit_rows,
        effects=(Begin(run),) if inputs.has_code else (),
        reply=run,
    )
    return artifacts.retried(decision)
