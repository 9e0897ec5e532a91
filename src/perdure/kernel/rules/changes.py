"""The rules of changes by hand: a retry, other tags, another deadline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from perdure.errors import Misuse, RunFinished, RunNotRetryable
from perdure.kernel import mailboxes, ops
from perdure.kernel.cooperation import token_tags, without_token_tags
from perdure.kernel.decision import Decision, DecisionInput, check_version, mine_or_free, move, note
from perdure.kernel.effects import Begin, Rearm
from perdure.kernel.records import Audit, Outcome, Run
from perdure.kernel.rules import artifacts, operations
from perdure.kernel.status import FINISHED, Status

_ANEW: Final = "its deadline had passed, and begins anew"


def deadline_since(audit: Iterable[Audit]) -> int | None:
    """When the run was given the deadline that it has, if that was later than its start."""
    given = [row.at for row in audit if row.details == _ANEW or (row.became == "updated" and "deadline" in row.cause)]
    return given[-1] if given else None


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
        # The old deadline would end the run again at once: the run gets as much time as it had when it was given the
        # deadline.
        since = run.created_at if op.deadline_since is None else op.deadline_since
        deadline, is_late = op.at + max(0, deadline - since), True
    run, audit_rows = move(
        run,
        Status.RUNNING,
        op,
        "retried",
        _ANEW if is_late else "",
        completed_at=None,
        owner=me if inputs.has_code else None,  # None: an engine that has the code claims it.
        claim=run.claim + 1,
        attempt=run.attempt + 1,
        recoveries=0,
        tried="",
        deadline=deadline,
    )
    mailbox = inputs.mailbox
    for event in op.events:
        mailbox, _ = mailboxes.put(mailbox, event)
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
