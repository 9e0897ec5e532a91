"""The rules of advances. An advance stores the entries, waits and children, or the end, of a run of a function or a
graph.

delivery.py decides which events win the new waits. continuation.py decides about a run that continues as another call.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, deliveries, move, note
from perdure.kernel.effects import Begin, Effect, Finish, Proceed
from perdure.kernel.events import Event
from perdure.kernel.rules import artifacts, delivery, operations, streams
from perdure.kernel.rules.children import child_ops
from perdure.kernel.rules.continuation import continue_run
from perdure.kernel.rules.delivery import meet
from perdure.kernel.rules.rollback import begin_rollback
from perdure.kernel.runs import Audit, Run
from perdure.kernel.status import ADVANCING, Status
from perdure.kernel.wait_matches import EMPTY, Mailbox


def goes_on(run: Run, op: ops.Advance, me: str) -> bool:
    """Return whether an advance only adds entries to the journal, and the run proceeds. Most ops are of this kind."""
    return (
        op.plain
        and run.status is Status.RUNNING
        and run.claim == op.claim
        and run.owner == me
        and run.hold is None
        and not run.recoveries
        and not run.tried
    )


def advance(run: Run | None, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    senders: tuple[Audit, ...] = ()
    if op.events_read and run is not None:
        run, senders = _note_senders(run, op, inputs)
    decision = _advance_run(run, op, me, inputs)
    if senders and decision.run is not None:
        decision = replace(decision, row=True, audit=senders + decision.audit)
    if op.published or op.stream_items:
        decision = streams.with_outputs(decision, op)
    if (
        op.artifacts is not None
        or op.tasks
        or (op.end is not None and op.end.has_staged)
        or inputs.mailbox is not EMPTY
    ):
        decision = artifacts.brought(decision, op, inputs)
    return decision


def _advance_run(run: Run | None, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None:
        return NOTHING
    status = run.status
    if status not in ADVANCING:
        return NOTHING
    if op.continuation is not None:
        return continue_run(run, op, me, inputs)
    mailbox: Mailbox | None = None
    given: tuple[Event, ...] = ()
    follow_ups: tuple[ops.Op, ...] = ()
    if op.waits or inputs.mailbox is not EMPTY:
        mailbox, given = meet(inputs.mailbox, op)
    if op.starts or op.cancels:
        follow_ups = child_ops(run, op)
    before = run
    if op.entries and (run.recoveries or run.tried):
        run = replace(run, recoveries=0, tried="")
    if op.undo:
        run = replace(run, undo=run.undo + op.undo)
    audit_rows: tuple[Audit, ...] = ()
    if status is Status.SUSPENDED and (op.entries or op.end is not None or not op.idle):
        run, audit_rows = move(run, Status.RUNNING, op, op.cause)
    if op.end is not None:
        return _ended(run, op, op.end, me, inputs, audit_rows, follow_ups)
    awake: Run | None = None
    if op.idle and run.status is Status.RUNNING and not (inputs.mailbox if mailbox is None else mailbox).won:
        awake = run
        run, more = move(run, Status.SUSPENDED, op, "waiting")
        audit_rows += more
    return Decision(
        run=run,
        row=bool(audit_rows) or run is not before,
        awake=awake,
        mailbox=mailbox,
        entries=op.entries,
        waits=op.waits,
        waits_dropped=op.waits_dropped,
        events_given=given,
        events_read=op.events_read + op.read_ahead,
        dead=op.rejected,
        consumed=op.consumed,
        audit=audit_rows,
        effects=_proceed(run.id, given),
        follow_ups=follow_ups,
        reply=True,
    )


def _ended(
    run: Run,
    op: ops.Advance,
    end: ops.End,
    me: str,
    inputs: DecisionInput,
    audit_rows: tuple[Audit, ...],
    follow_ups: tuple[ops.Op, ...],
) -> Decision:
    """Return the decision about a run whose code has ended. If the run failed and has registered compensations, its
    rollback comes first."""
    undoes = end.status is Status.FAILED and run.undo > 0 and run.status is not Status.ROLLING_BACK
    effects: tuple[Effect, ...]
    if undoes:
        run, more = begin_rollback(run, op, op.cause, me)
        effects = (Begin(run),)
    else:
        ended = end.status
        if run.status is Status.ROLLING_BACK:
            ended = Status.ROLLED_BACK if ended is Status.SUCCEEDED else Status.ROLLBACK_FAILED
        run, more = move(run, ended, op, op.cause)
        effects = (Finish(run, end.outcome),)
    return Decision(
        run=run,
        row=True,
        mailbox=EMPTY,
        outcome=end.outcome,
        entries=op.entries,
        waits_cleared=undoes or end.has_waited or inputs.mailbox is not EMPTY,
        events_read=op.events_read + op.read_ahead,
        consumed=(*op.consumed, *operations.known_failures(run)),
        audit=audit_rows + more,
        effects=effects,
        follow_ups=(*follow_ups, *operations.to_caller(run, op)),
        reply=True,
    )


def _note_senders(run: Run, op: ops.Advance, inputs: DecisionInput) -> tuple[Run, tuple[Audit, ...]]:
    """Note in the audit trail who sent the broadcasts that the run has read. A sender without a name is not noted. When
    a broadcast is sent, it is not known yet which run will get it. An event that is sent to one run is noted when it is
    sent.
    """
    rows: tuple[Audit, ...] = ()
    for event in _read_by(inputs.mailbox, op):
        if event.shared and event.actor and event.actor not in delivery.UNNAMED:
            run, more = note(run, replace(op, actor=event.actor), "received", f"received {event.name}")
            rows += more
    return run, rows


def _read_by(mailbox: Mailbox, op: ops.Advance) -> list[Event]:
    """Return the events that an advance reads. They have won positions that the advance closes, or closes and opens
    again.
    """
    positions = (*op.waits_dropped, *(wait.position for wait in op.waits))
    placed = [one for position in positions if (one := mailbox.given.get(position)) is not None]
    return [event for _, event in placed if event.id in op.events_read]


def _proceed(run_id: str, given: tuple[Event, ...]) -> tuple[Effect, ...]:
    return (Proceed(run_id), *deliveries(run_id, given)) if given else (Proceed(run_id),)
