"""The rule of continuation. A run begins again as another call. It keeps its id, gets another input, and loses its
history.

perdure/kernel/continuation_counts.py counts how often a run has continued. models/functions/continuation.py has
`continue_as`.
"""

from __future__ import annotations

from perdure.kernel import ops, wait_matches
from perdure.kernel.continuation_counts import next_life
from perdure.kernel.decision import Decision, DecisionInput, move, note
from perdure.kernel.effects import Begin, Drop
from perdure.kernel.rules.children import child_ops
from perdure.kernel.runs import Run
from perdure.kernel.status import Status


def continue_run(run: Run, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    """Begin the same run again with another input. Its history and its audit rows are dropped. Events that were sent to
    the run are kept.
    """
    continuation = op.continuation
    assert continuation is not None
    if run.status is Status.SUSPENDED:
        run, _ = move(run, Status.RUNNING, op, op.cause)
    run, more = note(
        run,
        op,
        "continued",
        f"continued as {continuation.workflow!r}",
        bump=True,
        workflow=continuation.workflow,
        workflow_version=continuation.workflow_version,
        owner=me if inputs.has_code else None,
        claim=run.claim + 1,
        recoveries=0,
        tried="",
        started_at=op.at,
        origin=next_life(run.origin or continuation.origin),
    )
    mailbox = wait_matches.read_ahead(inputs.mailbox, op.read_ahead) if op.read_ahead else inputs.mailbox
    return Decision(
        run=run,
        row=True,
        mailbox=wait_matches.continue_anew(mailbox, op.events_read),
        continued=True,
        input=continuation.input,
        events_read=op.events_read + op.read_ahead,
        consumed=op.consumed,
        audit=more,
        effects=(Begin(run, continuation.input),) if inputs.has_code else (Drop(run.id, "continued elsewhere"),),
        follow_ups=child_ops(run, op),
        reply=True,
    )
