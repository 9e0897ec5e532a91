"""The rules: `decide(run, op, me) -> Decision`. Pure; what it returns is committed by the coordinator, or not at all.

An op that is misuse raises; one that has become pointless (a late result, a second cancel) decides nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from perdure.errors import ConcurrentModification, Misuse, RunFinished, RunNotRetryable
from perdure.kernel import mailboxes, ops
from perdure.kernel.cooperation import token_tags, without_token_tags
from perdure.kernel.decision import (
    NO_INPUT,
    NOTHING,
    Decision,
    DecisionInput,
    audit,
    cancellation,
    deliveries,
    mine_or_free,
    move,
    note,
)
from perdure.kernel.effects import Begin, Drop, Effect, Examine, Finish, Proceed, Rearm
from perdure.kernel.fingerprints import tried_too
from perdure.kernel.lives import next_life
from perdure.kernel.mailboxes import EMPTY, Mailbox
from perdure.kernel.records import Audit, Event, Hold, Outcome, Run
from perdure.kernel.rules import artifacts, delivery, operations, streams
from perdure.kernel.status import FINISHED, Status, check_transition


class Started(Struct, frozen=True):
    """The reply to Start: the run, and whether this op created it."""

    run: Run
    created: bool


def decide(run: Run | None, op: ops.Op, me: str, inputs: DecisionInput = NO_INPUT) -> Decision:
    """What `op` comes to for `run` (None: there is no such run), decided by engine `me`."""
    return _RULES[type(op)](run, op, me, inputs)


def _start(run: Run | None, op: ops.Start, me: str, _inputs: DecisionInput) -> Decision:
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


def goes_on(run: Run, op: ops.Advance, me: str) -> bool:
    """Whether a plain advance comes to what it says, which is what most ops do: journal rows, and the run proceeds."""
    return (
        op.plain
        and run.status is Status.RUNNING
        and run.claim == op.claim
        and run.owner == me
        and run.hold is None
        and not run.recoveries
        and not run.tried
    )


def _advance(run: Run | None, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None:
        return NOTHING
    status = run.status
    if status not in _ADVANCING:
        return NOTHING
    if op.continuation is not None:
        return _continue(run, op, me, inputs)
    mailbox: Mailbox | None = None
    given: tuple[Event, ...] = ()
    follow_ups: tuple[ops.Op, ...] = ()
    if op.waits or inputs.mailbox is not EMPTY:
        mailbox, given = _meet(inputs.mailbox, op)
    if op.starts or op.cancels:
        follow_ups = _posts(run, op)
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
    """The run's code has come to its end; one that failed and has something to undo does that first."""
    undoes = end.status is Status.FAILED and run.undo > 0 and run.status is not Status.ROLLING_BACK
    effects: tuple[Effect, ...]
    if undoes:
        run, more = _rolling_back(run, op, op.cause, me)
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
        consumed=(*op.consumed, *operations.heard_of(run)),
        audit=audit_rows + more,
        effects=effects,
        follow_ups=(*follow_ups, *operations.to_caller(run, op)),
        reply=True,
    )


def _rolling_back(run: Run, op: ops.Op, cause: str, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    """Begin to undo: nothing that the run did before counts any more, but for its journal."""
    return move(
        run, Status.ROLLING_BACK, op, cause, owner=owner, claim=run.claim + 1, hold=None, recoveries=0, tried=""
    )


def _continue(run: Run, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    """The same run from its beginning: another input, no history, no audit of it either, what was sent to it kept."""
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
        follow_ups=_posts(run, op),
        reply=True,
    )


def _advance_with_outputs(run: Run | None, op: ops.Advance, me: str, inputs: DecisionInput) -> Decision:
    heard: tuple[Audit, ...] = ()
    if op.events_read and run is not None:
        run, heard = _heard(run, op, inputs)
    decision = _advance(run, op, me, inputs)
    if heard and decision.run is not None:
        decision = replace(decision, row=True, audit=heard + decision.audit)
    if op.published or op.stream_items:
        decision = streams.said(decision, op)
    if op.stock is not None or (op.end is not None and op.end.has_staged) or inputs.mailbox is not EMPTY:
        decision = artifacts.brought(decision, op, inputs)
    return decision


def _heard(run: Run, op: ops.Advance, inputs: DecisionInput) -> tuple[Run, tuple[Audit, ...]]:
    """Who sent the broadcasts that the run has read, where it is somebody. While they were sent nobody knew who would
    get them; what is sent to a run is in its trail from then on."""
    rows: tuple[Audit, ...] = ()
    read = set(op.events_read)
    for _, event in inputs.mailbox.given.values():
        if event.shared and event.id in read and event.actor and event.actor not in delivery.UNNAMED:
            run, more = note(run, replace(op, actor=event.actor), "received", f"received {event.name}")
            rows += more
    return run, rows


def _meet(mailbox: Mailbox, op: ops.Advance) -> tuple[Mailbox | None, tuple[Event, ...]]:
    """Suspend and check in one: what the run no longer waits for, what it waits for now, and what is there for it."""
    before = mailbox
    if op.read_ahead:
        mailbox = mailboxes.read_ahead(mailbox, op.read_ahead)
    unread = mailbox.unread
    if mailbox is not EMPTY and (op.waits_dropped or op.events_read):
        mailbox = mailboxes.close(mailbox, op.waits_dropped, op.events_read)
    # No event that was unread fits a position that was open, but one that is freed may.
    anew = op.waits if mailbox.unread is unread else None
    mailbox = mailboxes.add_waits(mailbox, op.waits)
    mailbox, given = mailboxes.settle(mailbox, op.at, anew)
    return (None if mailbox is before else mailbox), tuple(given)


def born_of(parent: Run, start: ops.Start) -> ops.Start:
    """A child has its parent's tags beside its own, and ends with it at the latest, unless it is detached."""
    if not parent.tags and parent.deadline is None:
        return start
    deadlines = [at for at in (start.deadline, None if start.bond == "detached" else parent.deadline) if at is not None]
    return replace(start, tags={**parent.tags, **start.tags}, deadline=min(deadlines, default=None))


def _posts(run: Run, op: ops.Advance) -> tuple[ops.Op, ...]:
    """Children that come and go with an advance of their parent."""
    why = f"its parent {run.id!r} no longer waits for it"
    return (*(born_of(run, start) for start in op.starts), *(_cancellation(child, op, why) for child in op.cancels))


def _proceed(run_id: str, given: tuple[Event, ...]) -> tuple[Effect, ...]:
    return (Proceed(run_id), *deliveries(run_id, given)) if given else (Proceed(run_id),)


def _cancellation(run_id: str, op: ops.Op, reason: str) -> ops.Cancel:
    return ops.Cancel(run_id=run_id, at=op.at, actor=op.actor, reason=reason, failure=cancellation(reason))


def _take(run: Run | None, op: ops.Take, me: str, _inputs: DecisionInput) -> Decision:
    if run is None or run.owner != me or run.claim != op.claim:
        return NOTHING
    audit_rows: tuple[Audit, ...] = ()
    if run.hold is not None:
        lifted: dict[str, Any] = {**operations.lifted(run), "recoveries": 0, "tried": run.hold.fingerprint}
        run, audit_rows = note(run, op, "resumed", "other code is there now", run.hold.reason, **lifted)
        if run.status is Status.CREATED:
            run, more = move(run, Status.RUNNING, op, "claimed")
            audit_rows += more
        return Decision(run=run, row=True, audit=audit_rows, effects=(Begin(run),), reply=True)
    if run.status is Status.SUSPENDED:
        return Decision(run=run, effects=(Begin(run),), reply=True)
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
    return Decision(run=run, row=bool(audit_rows) or op.orphaned, audit=audit_rows, effects=(Begin(run),), reply=True)


def _count(run: Run | None, op: ops.Count, me: str, _inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status not in _ADVANCING:
        return NOTHING
    return Decision(run=replace(run, recoveries=max(0, run.recoveries + op.change)), row=True, reply=True)


def _release(run: Run | None, op: ops.Release, me: str, inputs: DecisionInput) -> Decision:
    if (
        run is None
        or run.owner != me
        or run.claim != op.claim
        or run.status is not Status.SUSPENDED
        or inputs.mailbox.won
    ):
        return NOTHING
    return Decision(run=replace(run, owner=None), row=True, effects=(Drop(run.id, "released"),), reply=True)


def _cancel(run: Run | None, op: ops.Cancel, me: str, inputs: DecisionInput) -> Decision:
    if run is not None:
        _check_version(run, op.expected_version)
    if run is None or run.status in FINISHED or run.status in _UNDOING:
        return NOTHING
    run = mine_or_free(run, op, me)
    operations.check_no_operation(run)
    status, cause = (Status.FAILED, "deadline passed") if op.is_late else (Status.CANCELLED, "cancelled")
    return artifacts.ended(_end(run, status, op, Outcome(failure=op.failure), cause, me, inputs), inputs)


def _expire(run: Run | None, op: ops.Expire, me: str, inputs: DecisionInput) -> Decision:
    if run is not None and run.model == "operation":
        return operations.expire(run, op, me, inputs)
    if run is None or run.status in FINISHED or run.status in _UNDOING:
        return NOTHING
    if run.deadline is None or run.deadline > op.at:
        return NOTHING
    if run.owner is not None and run.owner != me:
        return NOTHING
    decision = _end(run, Status.FAILED, op, Outcome(failure=op.failure), "deadline passed", me, inputs)
    return artifacts.ended(decision, inputs)


def _end(
    run: Run, status: Status, op: ops.Cancel | ops.Expire, outcome: Outcome, cause: str, me: str, inputs: DecisionInput
) -> Decision:
    """End a run from outside, and its children with it; one that has something to undo does that first.

    Children of a run whose time is up have failed, as it has: a retry of the run retries those that it had started, and
    nothing leads out of `cancelled`.
    """
    details = op.reason if isinstance(op, ops.Cancel) else ""
    why = f"its parent {run.id!r} was ended: {cause}"
    follow_ups = tuple(_cancellation(child, op, why) for child in inputs.children)
    if status is Status.FAILED:
        follow_ups = tuple(replace(post, failure=op.failure, is_late=True) for post in follow_ups)
    if run.undo:
        audit_rows: tuple[Audit, ...] = ()
        if status is Status.CANCELLED:
            run, audit_rows = move(run, Status.CANCELLING, op, cause, details)
        run, more = _rolling_back(run, op, cause, me if inputs.has_code else None)
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
        consumed=operations.heard_of(run),
        audit=audit_rows,
        effects=(Finish(run, outcome),),
        follow_ups=(*follow_ups, *operations.to_caller(run, op)),
        reply=True,
    )


def _tell(run: Run | None, op: ops.Tell, me: str, inputs: DecisionInput) -> Decision:
    if op.kind == operations.FENCE:
        if run is not None and run.status not in FINISHED:
            mine_or_free(run, op, me)
        return NOTHING
    if run is None or run.model == "operation":
        return operations.tell(run, op, me, inputs)
    if op.kind == "undo" and run.status is Status.SUCCEEDED:
        return operations.undo_call(run, op, me, inputs)
    is_asked = op.kind == operations.ASK and operations.ask_call(run, op)
    if not (is_asked or op.kind in ("stop", "undo")) or run.status in FINISHED or run.status in _UNDOING:
        return NOTHING
    reason = "the operation that called it gives up"
    run = mine_or_free(run, op, me)
    failure = (op.call_failure if is_asked else op.failure) or cancellation(reason)
    stop = ops.Cancel(run_id=run.id, at=op.at, actor=op.actor, reason=reason, failure=failure)
    return _cancel(run, stop, me, inputs)


def _retry(run: Run | None, op: ops.Retry, me: str, inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    if run.status is not Status.FAILED:
        raise RunNotRetryable(
            f"run {run.id!r} is {run.status}: only a failed run can be retried", run_id=run.id, status=run.status
        )
    if run.consumed and run.parent_id is not None and not op.with_parent:
        raise RunNotRetryable(
            f"run {run.id!r} failed, and its parent {run.parent_id!r} has gone on with that; retry that one instead",
            run_id=run.id,
            status=run.status,
        )
    _check_version(run, op.expected_version)
    deadline, is_late = run.deadline, False
    if deadline is not None and deadline <= op.at:
        # It would end the run again at once: the run has as long as it had in the beginning.
        deadline, is_late = op.at + max(0, deadline - run.created_at), True
    run, audit_rows = move(
        run,
        Status.RUNNING,
        op,
        "retried",
        "its deadline had passed, and begins anew" if is_late else "",
        completed_at=None,
        owner=me if inputs.has_code else None,  # Then whoever has the code takes it.
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


def _update(run: Run | None, op: ops.Update, me: str, _inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    _check_version(run, op.expected_version)
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


def _check_version(run: Run, expected: int | None) -> None:
    if expected is not None and run.version != expected:
        raise ConcurrentModification(
            f"run {run.id!r} is at version {run.version}, not {expected}: somebody changed it; read it again and retry",
            run_id=run.id,
            expected_version=expected,
            version=run.version,
        )


def _set_hold(run: Run | None, op: ops.SetHold, me: str, _inputs: DecisionInput) -> Decision:
    if op.claim is not None and (run is None or run.claim != op.claim):
        return NOTHING
    run = mine_or_free(run, op, me)
    _check_version(run, op.expected_version)
    if run.status in FINISHED:
        if op.claim is not None:
            return NOTHING
        raise RunFinished(f"run {run.id!r} is {run.status}: it cannot be held", run_id=run.id, status=run.status)
    if run.hold is not None or op.examined:
        return operations.examined(run, op) if op.examined else NOTHING
    hold = replace(op.hold, fingerprint=tried_too(run.tried, op.hold.fingerprint))
    run, audit_rows = note(run, op, hold.kind, hold.reason, hold.details, hold=hold, tried="", owner=None)
    if run.model == "operation":
        return operations.held(run, hold, op, audit_rows)
    return Decision(run=run, row=True, audit=audit_rows, effects=(Drop(run.id, hold.kind),), reply=True)


def _resume(run: Run | None, op: ops.Resume, me: str, inputs: DecisionInput) -> Decision:
    run = mine_or_free(run, op, me)
    _check_version(run, op.expected_version)
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


_ADVANCING = frozenset({Status.RUNNING, Status.SUSPENDED, Status.ROLLING_BACK})
_UNDOING = frozenset({Status.CANCELLING, Status.ROLLING_BACK})

_RULES: dict[type, Callable[[Run | None, Any, str, DecisionInput], Decision]] = {
    ops.Start: _start,
    ops.Advance: _advance_with_outputs,
    ops.Append: streams.append,
    ops.Deposit: artifacts.deposit,
    ops.Answer: artifacts.answer,
    ops.Take: _take,
    ops.Count: _count,
    ops.Release: _release,
    ops.Cancel: _cancel,
    ops.Expire: _expire,
    ops.Retry: _retry,
    ops.Update: _update,
    ops.SetHold: _set_hold,
    ops.Resume: _resume,
    ops.Send: delivery.send,
    ops.Spread: delivery.spread,
    ops.Forget: delivery.forget,
    ops.Due: delivery.due,
    ops.Wake: delivery.wake,
    ops.CheckFence: delivery.check_fence,
    ops.Emit: operations.emit,
    ops.Cooperate: operations.cooperate,
    ops.Tell: _tell,
    ops.Settle: operations.settle,
    ops.CancelScope: operations.cancel_scope,
    ops.TellMembers: operations.tell_members,
    ops.UndoScope: operations.undo_scope,
}

__all__ = ["NOTHING", "Decision", "Started", "born_of", "decide", "goes_on"]
