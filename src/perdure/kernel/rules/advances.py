"""The rules of advances: what a run of a function or a graph did. Entries, waits and children, its end, or what it
continues as."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.kernel import mailboxes, ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, deliveries, move, note
from perdure.kernel.effects import Begin, Drop, Effect, Finish, Proceed
from perdure.kernel.lives import next_life
from perdure.kernel.mailboxes import EMPTY, Mailbox
from perdure.kernel.records import Audit, Event, Run
from perdure.kernel.rules import artifacts, delivery, operations, streams
from perdure.kernel.rules.endings import begin_rollback, cancel_child
from perdure.kernel.rules.starts import born_of
from perdure.kernel.status import ADVANCING, Status
from perdure.kernel.unread import Placed


def goes_on(run: Run, op: ops.Advance, me: str) -> bool:
    """Return whether a plain advance only adds its entries to the journal, and the run proceeds. Most ops are like
    this."""
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
        return _continue(run, op, me, inputs)
    mailbox: Mailbox | None = None
    given: tuple[Event, ...] = ()
    follow_ups: tuple[ops.Op, ...] = ()
    if op.waits or inputs.mailbox is not EMPTY:
        mailbox, given = _meet(inputs.mailbox, op)
    if op.starts or op.cancels:
        follow_ups = _child_ops(run, op)
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
    """Return the decision about a run whose code has ended. A run that failed and has something to undo does that
    first."""
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


def _continue(run: Run, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    """Begin the same run again with another input. Its history and its audit rows are dropped. The events that were
    sent to it are kept."""
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
    mailbox = mailboxes.read_ahead(inputs.mailbox, op.read_ahead) if op.read_ahead else inputs.mailbox
    return Decision(
        run=run,
        row=True,
        mailbox=mailboxes.continue_anew(mailbox, op.events_read),
        continued=True,
        input=continuation.input,
        events_read=op.events_read + op.read_ahead,
        consumed=op.consumed,
        audit=more,
        effects=(Begin(run, continuation.input),) if inputs.has_code else (Drop(run.id, "continued elsewhere"),),
        follow_ups=_child_ops(run, op),
        reply=True,
    )


def _note_senders(run: Run, op: ops.Advance, inputs: DecisionInput) -> tuple[Run, tuple[Audit, ...]]:
    """Note in the audit trail who sent the broadcasts that the run has read, if the sender has a name. When a broadcast
    is sent, nobody knows yet which run will get it. An event to one run is noted when it is sent."""
    rows: tuple[Audit, ...] = ()
    for event in _read_by(inputs.mailbox, op):
        if event.shared and event.actor and event.actor not in delivery.UNNAMED:
            run, more = note(run, replace(op, actor=event.actor), "received", f"received {event.name}")
            rows += more
    return run, rows


def _read_by(mailbox: Mailbox, op: ops.Advance) -> list[Event]:
    """Return the events that an advance reads. They have won positions that the advance closes, or opens anew."""
    positions = (*op.waits_dropped, *(wait.position for wait in op.waits))
    placed = [one for position in positions if (one := mailbox.given.get(position)) is not None]
    return [event for _, event in placed if event.id in op.events_read]


def _meet(mailbox: Mailbox, op: ops.Advance) -> tuple[Mailbox | None, tuple[Event, ...]]:
    """Close and open positions, and return the events that win the new ones. So no event is missed between the check
    and the wait."""
    before = mailbox
    if op.read_ahead:
        mailbox = mailboxes.read_ahead(mailbox, op.read_ahead)
    freed: Sequence[Placed] = ()
    if mailbox is not EMPTY and (op.waits_dropped or op.events_read):
        mailbox, freed = mailboxes.closed(mailbox, op.waits_dropped, op.events_read, op.waits)
    mailbox = mailboxes.add_waits(mailbox, op.waits)
    # An event that was unread before fits no position that was open before. A freed event may fit one.
    mailbox, given = mailboxes.settle(mailbox, op.at, op.waits, freed)
    return (None if mailbox is before else mailbox), tuple(given)


def _child_ops(run: Run, op: ops.Advance) -> tuple[ops.Op, ...]:
    """Return the ops that start and cancel the children of an advance."""
    why = f"its parent {run.id!r} no longer waits for it"
    return (*(born_of(run, start) for start in op.starts), *(cancel_child(child, op, why) for child in op.cancels))


def _proceed(run_id: str, given: tuple[Event, ...]) -> tuple[Effect, ...]:
    return (Proceed(run_id), *deliveries(run_id, given)) if given else (Proceed(run_id),)
