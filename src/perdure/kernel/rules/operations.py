"""The rules of operations' runs. Their rows are written, their status is updated, and other runs are notified.

models/cooperation/machine.py decides what a run does next. The rules here check which engine writes, and update the
run's status and its mail. No notice is lost. If this engine has the run in memory and the run can go on, the run wakes
in the same commit (kernel/operation_notices.py). If no engine owns the run, this engine takes it, or marks it for an
engine that has its code. If another engine owns the run, that engine gets mail.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.errors import AskedMeanwhile, IsOperation
from perdure.kernel import ops
from perdure.kernel.cooperation import APART_TAG, Cooperation, MessageEventRow
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, mine_or_free, move, note
from perdure.kernel.effects import Begin, Drop, Effect, Examine, Finish, Notified, Rearm
from perdure.kernel.failures import Failure
from perdure.kernel.lineages import read_origin
from perdure.kernel.operation_notices import ASK, JOIN, NEWS, UNDO, Readiness
from perdure.kernel.rows import Wait
from perdure.kernel.runs import Audit, Hold, Outcome, Run
from perdure.kernel.status import FINISHED, Status

CALLED = "called"  # the bond of a run that an operation has called

_BACK = (Status.ROLLING_BACK, Status.ROLLED_BACK, Status.ROLLBACK_FAILED)


def check_no_operation(run: Run, advice: str = "") -> None:
    """Raise IsOperation for a run of an operation. A run of an operation cannot simply end. It must roll back together
    with all runs below it.
    """
    if run.model == "operation":
        raise IsOperation(f"run {run.id!r} is a run of an operation{advice}", run_id=run.id)


def emit(_run: Run | None, op: ops.Emit, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(cooperation=op.added, follow_ups=op.starts, mail=op.members, reply=True)


def keeps_on(run: Run, op: ops.Cooperate, me: str) -> bool:
    """Return whether the op only adds rows and changes nothing else of the run. This is so after most steps."""
    return (
        op.status is run.status
        and (run.status is Status.RUNNING or run.status is Status.ROLLING_BACK)
        and run.claim == op.claim
        and run.owner == me
        and run.hold is None
        and op.added.registry_version is None
        and not (
            run.recoveries
            or run.tried
            or op.starts
            or op.notices
            or op.waits
            or op.waits_dropped
            or op.workflow_version
        )
    )


def cooperate(run: Run | None, op: ops.Cooperate, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    readiness = inputs.readiness.since(run.claim)
    _check_unasked(op, readiness)
    before, status = run, op.status
    if (run.recoveries or run.tried) and op.added.events:
        run = replace(run, recoveries=0, tried="")
    if op.workflow_version:
        run = replace(run, workflow_version=op.workflow_version)
    if status is Status.SUSPENDED and readiness.notified > op.notified:
        # The run must read the new notice. If it suspended now, nobody would wake it after a crash.
        status = Status.RUNNING
    run, audit = _through(run, status, op, op.cause)
    is_over = run.status in FINISHED
    effects: tuple[Effect, ...] = (Finish(run, op.outcome or Outcome()),) if is_over else ()
    outcome = op.outcome
    if run.status is Status.SUCCEEDED and (op.is_undone or readiness.undone_at):
        # The run was notified while it was ending. It would not be notified again.
        run, more = _back(run, op, me)
        audit, outcome, effects = audit + more, Outcome(), (Begin(run),)
    return Decision(
        run=run,
        row=run is not before,
        readiness=readiness.awaiting(op.awaits if status is Status.SUSPENDED else ()),
        outcome=outcome,
        waits=op.waits,
        waits_dropped=op.waits_dropped,
        waits_cleared=is_over and op.has_waited,
        cooperation=op.added,
        audit=audit,
        effects=effects,
        follow_ups=(*op.starts, *op.notices),
        mail=op.members,
        reply=True,
    )


def _check_unasked(op: ops.Cooperate, readiness: Readiness) -> None:
    """Raise AskedMeanwhile if the run was asked to give up after it had decided to end or to call another run. A called
    run begins in this same commit. So before the call, its caller must have read all requests to give up.
    """
    is_calling = bool(op.starts) and op.starts[0].bond == CALLED and op.status is not Status.ROLLING_BACK
    if not is_calling and op.status is not Status.SUCCEEDED:
        return
    if readiness.asked_at > op.notified or (is_calling and readiness.undone_at > op.notified):
        raise AskedMeanwhile(f"run {op.run_id!r} was asked to give up", run_id=op.run_id)


def _through(run: Run, became: Status, op: ops.Op, cause: str) -> tuple[Run, tuple[Audit, ...]]:
    """Move a run to a status. It passes through the statuses that the table of transitions requires."""
    audit: tuple[Audit, ...] = ()
    for status in _way(run.status, became):
        run, more = move(run, status, op, cause)
        audit += more
    return run, audit


def _way(was: Status, became: Status) -> list[Status]:
    way: list[Status] = []
    if was is became:
        return way
    is_resting = was is Status.CREATED or (was is Status.SUSPENDED and became is Status.SUCCEEDED)
    if is_resting and became not in (Status.RUNNING, Status.CANCELLED):
        way.append(Status.RUNNING)
    if became in _BACK[1:] and was is not Status.ROLLING_BACK:
        way.append(Status.ROLLING_BACK)
    way.append(became)
    return way


def notify(run: Run | None, op: ops.Notify, me: str, inputs: DecisionInput) -> Decision:
    if run is None:
        return NOTHING
    if run.status in FINISHED:
        return _undone(run, op, me, inputs) if op.kind == UNDO and run.status is Status.SUCCEEDED else NOTHING
    run = mine_or_free(run, op, me)
    follow_ups: tuple[ops.Op, ...] = ()
    if op.kind not in (NEWS, JOIN):
        about = op.about if op.kind == ASK else ""
        follow_ups = _asks(inputs.children, op, about, op.undone_by, _for_calls(run, op))
    if run.owner == me:
        return _notified(run, op, inputs.readiness.since(run.claim), follow_ups)
    if run.status is Status.CREATED and op.refusal is not None:
        return _settled(run, Status.ROLLED_BACK, op, op.refusal, Outcome(failure=op.failure), op.answer)
    if run.hold is not None:
        return _notified_while_held(run, run.hold, op, inputs)
    if run.status is Status.SUSPENDED:
        if inputs.has_code:
            run, audit = move(run, Status.RUNNING, op, f"notified: {op.kind}", owner=me, claim=run.claim + 1)
            return Decision(run=run, row=True, audit=audit, effects=(Begin(run),), follow_ups=follow_ups, reply=True)
        mark = Wait(run_id=run.id, position=NEWS, kind="timer", name=NEWS, due_at=0)
        return Decision(run=run, guard=True, mailbox=inputs.mailbox, waits=(mark,), follow_ups=follow_ups, reply=True)
    # An engine that takes the run later reads the run's rows. By then, the rows that the notice is about are stored.
    return Decision(run=run, guard=True, mailbox=inputs.mailbox, follow_ups=follow_ups, reply=True)


def _notified(run: Run, op: ops.Notify, readiness: Readiness, follow_ups: tuple[ops.Op, ...]) -> Decision:
    """Notify a run that this engine has in memory. If the run can go on, wake it."""
    readiness = readiness.after(op.kind, op.child)
    audit: tuple[Audit, ...] = ()
    if run.status is Status.SUSPENDED and readiness.is_woken_by(op.kind, op.child):
        run, audit = move(run, Status.RUNNING, op, f"notified: {op.kind}")
        readiness = readiness.awaiting(())
    return Decision(
        run=run,
        row=bool(audit),
        readiness=readiness,
        audit=audit,
        effects=(Notified(run.id, op, readiness.notified),),
        follow_ups=follow_ups,
        reply=True,
    )


def _asks(children: tuple[str, ...], op: ops.Op, about: str, undone_by: int, call_failure: str) -> tuple[ops.Op, ...]:
    return tuple(
        ops.Notify(
            run_id=child,
            at=op.at,
            actor=op.actor,
            kind=ASK,
            about=about,
            undone_by=undone_by,
            call_failure=call_failure,
        )
        for child in children
    )


def _for_calls(run: Run, op: ops.Op) -> str:
    """Return the failure for the runs that this run has called, if this run is asked to give up. Return "" for a run
    that rolls back, because the runs that it has called belong to its rollback.
    """
    return op.call_failure if isinstance(op, ops.Notify) and run.status not in _BACK else ""


def _notified_while_held(run: Run, hold: Hold, op: ops.Notify, inputs: DecisionInput) -> Decision:
    if op.kind not in (NEWS, JOIN):
        times = [time for time in (hold.undone_by, op.undone_by) if time]
        return _give_up(run, replace(hold, undone_by=min(times, default=0)), op, inputs.children)
    if op.kind == NEWS and _is_late(hold, op.at):
        # A run below this run has ended. If it was the last active run below, this run ends too.
        run = replace(run, deadline=op.at)
        return Decision(run=run, row=True, effects=(Rearm(run),), reply=True)
    # An engine that takes the run later reads the run's rows. By then, the rows that the notice is about are stored.
    return Decision(run=run, guard=True, mailbox=inputs.mailbox, reply=True)


# Held runs. A hold stops a run's code. It does not stop cancellations, rollbacks and deadlines. The hold has enough
# information from the run's rows to end the run without its code. While the run is held, its row has the deadline that
# applies.


def held(run: Run, hold: Hold, op: ops.SetHold, audit: tuple[Audit, ...], *, has_code: bool) -> Decision:
    """Return the decision to hold a run. The run may already have been asked to give up.

    Without `has_code`, a client may have made the decision, and a client cannot read the run's rows. In that case the
    run's deadline is set to now. So an engine completes the hold at once.
    """
    drop = Drop(run.id, hold.kind)
    if not hold.next_seq:
        if not has_code:
            run = replace(run, deadline=op.at)
        return Decision(run=run, row=True, audit=audit, effects=(drop, Examine(run)), reply=True)
    if hold.asked:
        return _give_up(run, hold, op, (), audit)
    run = replace(run, deadline=_due(hold))
    return Decision(run=run, row=True, audit=audit, effects=(drop, Rearm(run)), reply=True)


def examined(run: Run, op: ops.SetHold) -> Decision:
    """Complete a hold that was set without reading the run's rows. No rows of the run were written since then."""
    hold = run.hold
    if hold is None or hold.next_seq or hold.at != op.hold.at or run.owner is not None:
        return NOTHING
    if hold.asked or op.hold.asked:
        return _give_up(run, replace(op.hold, asked=hold.asked, details=hold.details), op, ())
    run = replace(run, hold=op.hold, deadline=_due(op.hold))
    return Decision(run=run, row=True, effects=(Rearm(run),), reply=True)


def lifted(run: Run) -> dict[str, Any]:
    """Return the fields of a run's row that change when its hold is lifted. The row of an operation's run then has no
    deadline, because the run's code watches its own deadlines.
    """
    return {"hold": None, "deadline": None} if run.model == "operation" else {"hold": None}


def expire(run: Run, op: ops.Expire, me: str, inputs: DecisionInput) -> Decision:
    """Let a held run give up, because its deadline has passed. A run that is not held has timers of its own."""
    if run.deadline is None or run.deadline > op.at or run.status in FINISHED or run.owner not in (None, me):
        return NOTHING
    hold = run.hold
    if hold is None or not hold.next_seq:
        run = replace(run, deadline=None)  # The hold gets the correct deadline when it is completed.
        return Decision(run=run, row=True, effects=() if hold is None else (Examine(run),))
    return _give_up(run, hold, op, inputs.children, passed="Its deadline has passed")


def _due(hold: Hold) -> int | None:
    """Return the deadline that applies to a held run."""
    return (hold.undone_by if hold.asked or hold.is_undoing else hold.give_up_by) or None


def _is_late(hold: Hold, now: int) -> bool:
    """Return whether the run must be undone and the deadline of its rollback has passed."""
    return (hold.asked or hold.is_undoing) and 0 < hold.undone_by <= now


def _give_up(
    run: Run,
    hold: Hold,
    op: ops.Op,
    children: tuple[str, ...],
    audit: tuple[Audit, ...] = (),
    passed: str = "It is to give up",
) -> Decision:
    """Let a held run give up. If the run has nothing to undo, it ends as rolled back. If its rollback deadline has
    passed, it ends as `rollback_failed` once no run below it is active. Otherwise the run stays held. Its hold says
    what must be done.
    """
    if hold.idle_seq:
        types = ["SEEN", "ROLLING_BACK", "ROLLED_BACK"][hold.idle_seq > 1 :]
        return _ended(run, hold, Status.ROLLED_BACK, types, op, audit)
    was = run.hold
    hold = replace(hold, asked=True)
    details = f"{passed}, and it has something to undo: deploy code that fits, or resume it."
    if _is_late(hold, op.at):
        if hold.next_seq and not children:
            types = ["ROLLING_BACK", "ROLLBACK_FAILED"][hold.is_undoing :]
            return _ended(run, hold, Status.ROLLBACK_FAILED, types, op, audit)
        details = "It was to be undone by now, and ends once the runs below it have ended."
    due = _due(hold)
    due = None if due is None or due <= op.at else due
    if not hold.next_seq:
        details, due = "It is to give up. An engine looks at what it has done first.", run.deadline or op.at
    about = op.about if isinstance(op, ops.Notify) and op.kind == ASK else ""
    follow_ups = _asks(children, op, about, hold.undone_by, "" if hold.is_undoing else _for_calls(run, op))
    if was is not None and was.details == details and (was.undone_by, run.deadline) == (hold.undone_by, due):
        return Decision(run=run, guard=True, follow_ups=follow_ups, reply=True)
    hold = replace(hold, details=details)
    run, more = note(run, op, "asked", "it is to give up, and is held", hold.reason, hold=hold, deadline=due)
    return Decision(
        run=run,
        row=True,
        audit=audit + more,
        effects=(Drop(run.id, hold.kind), Rearm(run)),
        follow_ups=follow_ups,
        reply=True,
    )


def _ended(run: Run, hold: Hold, status: Status, types: list[str], op: ops.Op, audit: tuple[Audit, ...]) -> Decision:
    """End a held run, with the rows that the run itself would have written."""
    message_id, lineage = read_origin(run.origin)
    exceptions = {"ROLLING_BACK": hold.failure, "ROLLBACK_FAILED": hold.missed}
    rows = [
        MessageEventRow(
            scope=run.id,
            seq=seq,
            id=f"{run.id}/{seq}",
            message_id=message_id,
            type=type,
            key=f"{'ENDED' if type in ('ROLLED_BACK', 'ROLLBACK_FAILED') else type}/{run.workflow}",
            coroutine_name=run.workflow,
            coroutine_identifier=run.id,
            cooperation_lineage="/".join(lineage),
            created_at=op.at,
            exception=exceptions.get(type),
        )
        for seq, type in enumerate(types, hold.idle_seq or hold.next_seq)
    ]
    failure = Failure(type="GaveUp", message=f"it was to give up while it was held: {hold.reason}")
    if status is Status.ROLLBACK_FAILED:
        message = f"it was held, and was not undone by the deadline of its rollback: {hold.reason}"
        failure = Failure(type="RollbackFailed", message=message)
    outcome = Outcome(failure=msgspec.json.encode(failure).decode())
    run, more = _through(replace(run, hold=None, deadline=None), status, op, "ended without its code")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        waits_cleared=True,
        cooperation=Cooperation(events=rows),
        audit=audit + more,
        effects=(Finish(run, outcome),),
        follow_ups=(_news(lineage[-2], op, run.id),) if len(lineage) > 2 else (),
        reply=True,
    )


def _undone(run: Run, op: ops.Op, me: str, inputs: DecisionInput, added: Cooperation | None = None) -> Decision:
    """Begin the rollback of a run that has succeeded. The run is active again."""
    owner = me if inputs.has_code else None
    run, audit = _back(run, op, owner)
    effects: tuple[Effect, ...] = (Begin(run),) if owner is not None else ()
    return Decision(run=run, row=True, outcome=Outcome(), cooperation=added, audit=audit, effects=effects, reply=True)


def _back(run: Run, op: ops.Op, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    return move(
        run, Status.ROLLING_BACK, op, "undone", owner=owner, claim=run.claim + 1, completed_at=None, recoveries=0
    )


# Functions and graphs that an operation has called.


def ask_call(run: Run, op: ops.Notify) -> bool:
    """Return whether a called run ends because its caller, or a run above its caller, was asked to give up."""
    return bool(op.call_failure) and run.bond == CALLED and APART_TAG not in run.tags


def undo_call(run: Run, op: ops.Notify, me: str, inputs: DecisionInput) -> Decision:
    """Undo a called run that has succeeded. If it has registered compensations, it runs them."""
    outcome = Outcome(failure=op.failure)
    if run.undo:
        decision = _undone(run, op, me, inputs)
        return replace(decision, outcome=outcome)
    run, audit = _back(run, op, None)
    run, more = move(run, Status.ROLLED_BACK, op, "there was nothing to undo")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        audit=audit + more,
        effects=(Finish(run, outcome),),
        follow_ups=to_caller(run, op),
        reply=True,
    )


def to_caller(run: Run, op: ops.Op) -> tuple[ops.Op, ...]:
    """Return the notice for an operation, because a run that it has called has ended. The operation reads the outcome
    from the store.
    """
    if run.bond != CALLED or run.status not in FINISHED or run.parent_id is None:
        return ()
    return (_news(run.parent_id, op, run.id),)


def _news(run_id: str, op: ops.Op, child: str, about: str = "") -> ops.Notify:
    return ops.Notify(run_id=run_id, at=op.at, actor=op.actor, kind=NEWS, about=about, child=child)


def known_failures(run: Run) -> tuple[str, ...]:
    """Return the run's id if the run was called and has failed. The caller knows the failure, so the run cannot be
    retried alone.
    """
    return (run.id,) if run.bond == CALLED and run.status is Status.FAILED else ()


def settle(run: Run | None, op: ops.Settle, _me: str, _inputs: DecisionInput) -> Decision:
    if run is None or run.status in FINISHED:
        return NOTHING
    is_idle = run.hold is not None and run.hold.idle_seq == 1 and op.was is Status.CREATED
    # A pause stops only the run's code. Ending the run needs no code. The pause may be incomplete. A client's pause
    # always is.
    is_only_paused = run.hold is None or run.hold.kind == "paused"
    if run.owner is None and (is_idle or (run.status is op.was and is_only_paused)):
        return _settled(run, op.status, op, op.added, op.outcome, op.answer)
    return Decision(follow_ups=_to_parent(op, op.otherwise, has_ended=False), reply=False)


def _settled(
    run: Run, status: Status, op: ops.Notify | ops.Settle, added: Cooperation, outcome: Outcome, answer: str
) -> Decision:
    if run.hold is not None:
        run = replace(run, **lifted(run))
    run, audit = _through(run, status, op, "ended without its code")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        cooperation=added,
        audit=audit,
        effects=(Finish(run, outcome),),
        follow_ups=_to_parent(op, answer, has_ended=True),
        reply=True,
    )


def _to_parent(op: ops.Notify | ops.Settle, about: str, *, has_ended: bool) -> tuple[ops.Op, ...]:
    if not op.parent_id or not about:
        return ()
    return (_news(op.parent_id, op, op.run_id if has_ended else "", about),)


def cancel_scope(_run: Run | None, op: ops.CancelScope, me: str, inputs: DecisionInput) -> Decision:
    active = [run for run in inputs.concerned if run.status not in FINISHED]
    if inputs.concerned and not active:
        return NOTHING
    # If another engine ends its run meanwhile, the commit is refused, and the op is decided again. One active run is
    # enough. The commit is certain about a run of this engine, and the notice for a free run guards its row.
    unchanged = () if any(run.owner in (None, me) for run in active) else tuple(active[:1])
    return Decision(cooperation=op.added, unchanged=unchanged, follow_ups=op.notices, mail=op.members, reply=True)


def notify_members(_run: Run | None, op: ops.NotifyMembers, _me: str, _inputs: DecisionInput) -> Decision:
    mail = () if op.rest is None else (replace(op, after=op.rest, rest=None, notices=()),)
    return Decision(follow_ups=op.notices, mail=mail, reply=True)


def undo_scope(run: Run | None, op: ops.UndoScope, me: str, inputs: DecisionInput) -> Decision:
    if run is None:
        return Decision(cooperation=op.added, follow_ups=op.notices, reply=True)
    if run.status is not Status.SUCCEEDED:
        return NOTHING
    return _undone(run, op, me, inputs, op.added)
