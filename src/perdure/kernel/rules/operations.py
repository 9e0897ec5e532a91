"""The rules of operations' runs: what they wrote becomes rows, their status follows, word goes to those it concerns.

What a run does next is the model's to know (models/cooperation/rules.py); here only its writer, its status and its
mail are looked after. Word is never lost: a run that its engine has in memory is awake in the same commit, if it can go
on; one that nobody has is taken, or marked for whoever has its code; another engine's gets mail.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.errors import IsOperation
from perdure.kernel import ops
from perdure.kernel.cooperation import APART_TAG, Cooperation, MessageEventRow, read_origin
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, mine_or_free, move, note
from perdure.kernel.effects import Begin, Drop, Effect, Examine, Finish, Look, Rearm
from perdure.kernel.records import Audit, Failure, Hold, Outcome, Run, Wait
from perdure.kernel.status import FINISHED, Status

NEWS = "news"  # the position at which a run waits that was told something while nobody had it

ASK = "ask"  # word that somebody wants a run, or one above it, to give up
JOIN = "join"  # word that somebody may handle what a run waits for
FENCE = "fence"  # no word at all: its answer shows that all that was sent to the run's owner before is decided
CALLED = "called"  # the bond of a run that an operation has called

_BACK = (Status.ROLLING_BACK, Status.ROLLED_BACK, Status.ROLLBACK_FAILED)


def check_no_operation(run: Run, advice: str = "") -> None:
    """Raise IsOperation for a run that does not just end, but rolls back with all below it."""
    if run.model == "operation":
        raise IsOperation(f"run {run.id!r} is one of an operation{advice}", run_id=run.id)


def emit(_run: Run | None, op: ops.Emit, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(cooperation=op.added, follow_ups=op.starts, letters=op.members, reply=True)


def keeps_on(run: Run, op: ops.Cooperate, me: str) -> bool:
    """Whether what a run wrote comes to just its rows, as after most steps."""
    return (
        op.status is run.status
        and (run.status is Status.RUNNING or run.status is Status.ROLLING_BACK)
        and run.claim == op.claim
        and run.owner == me
        and run.hold is None
        and op.added.book is None
        and not (
            run.recoveries or run.tried or op.starts or op.tells or op.waits or op.waits_dropped or op.workflow_version
        )
    )


def cooperate(run: Run | None, op: ops.Cooperate, me: str, inputs: DecisionInput) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    before = run
    if (run.recoveries or run.tried) and op.added.events:
        run = replace(run, recoveries=0, tried="")
    if op.workflow_version:
        run = replace(run, workflow_version=op.workflow_version)
    run, audit = _through(run, op.status, op, op.cause)
    is_over = run.status in FINISHED
    effects: tuple[Effect, ...] = (Finish(run, op.outcome or Outcome()),) if is_over else ()
    outcome = op.outcome
    if run.status is Status.SUCCEEDED and inputs.is_undone:
        # It was told so while it was busy ending, and nobody would tell it again.
        run, more = _back(run, op, me)
        audit, outcome, effects = audit + more, Outcome(), (Begin(run),)
    return Decision(
        run=run,
        row=run is not before,
        outcome=outcome,
        waits=op.waits,
        waits_dropped=op.waits_dropped,
        waits_cleared=is_over and op.has_waited,
        cooperation=op.added,
        audit=audit,
        effects=effects,
        follow_ups=(*op.starts, *op.tells),
        letters=op.members,
        reply=True,
    )


def _through(run: Run, became: Status, op: ops.Op, cause: str) -> tuple[Run, tuple[Audit, ...]]:
    """Move a run to a status, by way of those that lie between."""
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


def tell(run: Run | None, op: ops.Tell, me: str, inputs: DecisionInput) -> Decision:
    if run is None:
        return NOTHING
    if run.status in FINISHED:
        return _undone(run, op, me, inputs) if op.kind == "undo" and run.status is Status.SUCCEEDED else NOTHING
    run = mine_or_free(run, op, me)
    follow_ups: tuple[ops.Op, ...] = ()
    if op.kind not in (NEWS, JOIN):
        about = op.about if op.kind == ASK else ""
        follow_ups = _asks(inputs.children, op, about, op.undone_by, _for_calls(run, op))
    if run.owner == me:
        audit: tuple[Audit, ...] = ()
        if run.status is Status.SUSPENDED and (op.kind != NEWS or inputs.is_ready):
            run, audit = move(run, Status.RUNNING, op, f"told: {op.kind}")
        return Decision(
            run=run, row=bool(audit), audit=audit, effects=(Look(run.id, op),), follow_ups=follow_ups, reply=True
        )
    if run.status is Status.CREATED and op.refusal is not None:
        return _settled(run, Status.ROLLED_BACK, op, op.refusal, Outcome(failure=op.failure), op.answer)
    if run.hold is not None:
        return _told_while_held(run, run.hold, op, inputs)
    if run.status is Status.SUSPENDED:
        if inputs.has_code:
            run, audit = move(run, Status.RUNNING, op, f"told: {op.kind}", owner=me, claim=run.claim + 1)
            return Decision(run=run, row=True, audit=audit, effects=(Begin(run),), follow_ups=follow_ups, reply=True)
        mark = Wait(run_id=run.id, position=NEWS, kind="timer", name=NEWS, due_at=0)
        return Decision(run=run, guard=True, mailbox=inputs.mailbox, waits=(mark,), follow_ups=follow_ups, reply=True)
    # Whoever takes it reads its rows afterwards, and these are among them.
    return Decision(run=run, guard=True, mailbox=inputs.mailbox, follow_ups=follow_ups, reply=True)


def _asks(children: tuple[str, ...], op: ops.Op, about: str, undone_by: int, call_failure: str) -> tuple[ops.Op, ...]:
    return tuple(
        ops.Tell(
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
    """The failure that runs end with that a run has called, if it is asked to give up. What one that rolls back has
    called belongs to its rollback."""
    return op.call_failure if isinstance(op, ops.Tell) and run.status not in _BACK else ""


def _told_while_held(run: Run, hold: Hold, op: ops.Tell, inputs: DecisionInput) -> Decision:
    if op.kind not in (NEWS, JOIN):
        times = [time for time in (hold.undone_by, op.undone_by) if time]
        return _give_up(run, replace(hold, undone_by=min(times, default=0)), op, inputs.children)
    if op.kind == NEWS and _is_late(hold, op.at):
        # A run below it has ended, maybe the last one: then it ends too.
        run = replace(run, deadline=op.at)
        return Decision(run=run, row=True, effects=(Rearm(run),), reply=True)
    # Whoever takes it reads its rows afterwards, and these are among them.
    return Decision(run=run, guard=True, mailbox=inputs.mailbox, reply=True)


# Held runs. A hold stops a run's code, not what is asked of it: cancellations, rollbacks and deadlines. What its hold
# knows of its rows is enough to end a run without its code. While it is held, its row has the deadline that counts.


def held(run: Run, hold: Hold, op: ops.SetHold, audit: tuple[Audit, ...]) -> Decision:
    """Have a run held that may be asked to give up already."""
    drop = Drop(run.id, hold.kind)
    if not hold.next_seq:
        return Decision(run=run, row=True, audit=audit, effects=(drop, Examine(run)), reply=True)
    if hold.asked:
        return _give_up(run, hold, op, (), audit)
    run = replace(run, deadline=_due(hold))
    return Decision(run=run, row=True, audit=audit, effects=(drop, Rearm(run)), reply=True)


def examined(run: Run, op: ops.SetHold) -> Decision:
    """Complete a hold that was made without a look at the run's rows. Nobody has written any since."""
    hold = run.hold
    if hold is None or hold.next_seq or hold.at != op.hold.at or run.owner is not None:
        return NOTHING
    if hold.asked or op.hold.asked:
        return _give_up(run, replace(op.hold, asked=hold.asked, details=hold.details), op, ())
    run = replace(run, hold=op.hold, deadline=_due(op.hold))
    return Decision(run=run, row=True, effects=(Rearm(run),), reply=True)


def lifted(run: Run) -> dict[str, Any]:
    """What changes when a run is held no more: a run of an operation that goes on sees its deadlines for itself."""
    return {"hold": None, "deadline": None} if run.model == "operation" else {"hold": None}


def expire(run: Run, op: ops.Expire, me: str, inputs: DecisionInput) -> Decision:
    """A deadline of a held run has passed. One that is not held has its own timers."""
    if run.deadline is None or run.deadline > op.at or run.status in FINISHED or run.owner not in (None, me):
        return NOTHING
    if run.hold is None:
        return Decision(run=replace(run, deadline=None), row=True)
    return _give_up(run, run.hold, op, inputs.children, passed="Its deadline has passed")


def _due(hold: Hold) -> int | None:
    """The deadline that counts for a held run."""
    return (hold.undone_by if hold.asked or hold.is_undoing else hold.give_up_by) or None


def _is_late(hold: Hold, now: int) -> bool:
    """Whether what a run did was to be undone by now."""
    return (hold.asked or hold.is_undoing) and 0 < hold.undone_by <= now


def _give_up(
    run: Run,
    hold: Hold,
    op: ops.Op,
    children: tuple[str, ...],
    audit: tuple[Audit, ...] = (),
    passed: str = "It is to give up",
) -> Decision:
    """Have a held run give up. One that has nothing to undo ends; so does one that was to be undone by now, as one that
    could not be. Else it says what is in the way: the hold must be lifted first."""
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
    about = op.about if isinstance(op, ops.Tell) and op.kind == ASK else ""
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
    """End a held run, with the rows that it would have written itself."""
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
        follow_ups=(ops.Tell(run_id=lineage[-2], at=op.at, actor=op.actor, kind=NEWS),) if len(lineage) > 2 else (),
        reply=True,
    )


def _undone(run: Run, op: ops.Op, me: str, inputs: DecisionInput, added: Cooperation | None = None) -> Decision:
    """What has succeeded is to be undone: it is active again."""
    owner = me if inputs.has_code else None
    run, audit = _back(run, op, owner)
    effects: tuple[Effect, ...] = (Begin(run),) if owner is not None else ()
    return Decision(run=run, row=True, outcome=Outcome(), cooperation=added, audit=audit, effects=effects, reply=True)


def _back(run: Run, op: ops.Op, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    return move(
        run, Status.ROLLING_BACK, op, "undone", owner=owner, claim=run.claim + 1, completed_at=None, recoveries=0
    )


# Functions and graphs that an operation has called.


def ask_call(run: Run, op: ops.Tell) -> bool:
    """Whether a called run ends because its caller, or a run above it, is asked to give up."""
    return bool(op.call_failure) and run.bond == CALLED and APART_TAG not in run.tags


def undo_call(run: Run, op: ops.Tell, me: str, inputs: DecisionInput) -> Decision:
    """What has succeeded is to be undone: it does its compensations, if it has registered any."""
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
    """Word for the operation that has called a run which has ended. It reads for itself what became of it."""
    if run.bond != CALLED or run.status not in FINISHED or run.parent_id is None:
        return ()
    return (ops.Tell(run_id=run.parent_id, at=op.at, actor=op.actor, kind=NEWS),)


def heard_of(run: Run) -> tuple[str, ...]:
    """Those whose failure cannot be taken back, since the operation that has called them knows it."""
    return (run.id,) if run.bond == CALLED and run.status is Status.FAILED else ()


def settle(run: Run | None, op: ops.Settle, _me: str, _inputs: DecisionInput) -> Decision:
    if run is None or run.status in FINISHED:
        return NOTHING
    is_idle = run.hold is not None and run.hold.idle_seq == 1 and op.was is Status.CREATED
    if run.owner is None and (is_idle or (run.status is op.was and run.hold is None)):
        return _settled(run, op.status, op, op.added, op.outcome, op.answer)
    return Decision(follow_ups=_to_parent(op, op.otherwise), reply=False)


def _settled(
    run: Run, status: Status, op: ops.Tell | ops.Settle, added: Cooperation, outcome: Outcome, answer: str
) -> Decision:
    if run.hold is not None:
        run = replace(run, hold=None)
    run, audit = _through(run, status, op, "ended without its code")
    return Decision(
        run=run,
        row=True,
        outcome=outcome,
        cooperation=added,
        audit=audit,
        effects=(Finish(run, outcome),),
        follow_ups=_to_parent(op, answer),
        reply=True,
    )


def _to_parent(op: ops.Tell | ops.Settle, about: str) -> tuple[ops.Op, ...]:
    if not op.parent_id or not about:
        return ()
    return (ops.Tell(run_id=op.parent_id, at=op.at, actor=op.actor, kind=NEWS, about=about),)


def cancel_scope(run: Run | None, op: ops.CancelScope, _me: str, _inputs: DecisionInput) -> Decision:
    if run is not None and run.status in FINISHED:
        return NOTHING
    return Decision(cooperation=op.added, follow_ups=op.tells, letters=op.members, reply=True)


def tell_members(_run: Run | None, op: ops.TellMembers, _me: str, _inputs: DecisionInput) -> Decision:
    letters = () if op.rest is None else (replace(op, after=op.rest, rest=None, tells=()),)
    return Decision(follow_ups=op.tells, letters=letters, reply=True)


def undo_scope(run: Run | None, op: ops.UndoScope, me: str, inputs: DecisionInput) -> Decision:
    if run is None:
        return Decision(cooperation=op.added, follow_ups=op.tells, reply=True)
    if run.status is not Status.SUCCEEDED:
        return NOTHING
    return _undone(run, op, me, inputs, op.added)
