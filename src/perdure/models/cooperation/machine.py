"""The machine of one run of an operation. One part of it maps a state to the next move. The other part maps an outcome
to writes.

All functions are pure. Only the one writer of the run applies them. It writes each result in one commit. So after a
crash between two commits, the same next move follows from the rows.

Parts of the machine are in other modules. readiness.py has the waits, cancellation.py the reasons to give up,
child_failures.py the failures of children, rollback.py the rollbacks, and next_steps.py the choice of the next step.
"""

from __future__ import annotations

from perdure.errors import InvalidArguments
from perdure.kernel.pieces import Pieces, at_once
from perdure.models.cooperation.cancellation import by_parent, heeded, reasons
from perdure.models.cooperation.child_failures import child_failure, failures_of_children, handler_call
from perdure.models.cooperation.context import begun, not_before
from perdure.models.cooperation.deadlines import deadline_ahead, earliest
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.emissions import Emitting, Origin, emit_in_pieces
from perdure.models.cooperation.failures import Failure, gave_up, to_failure
from perdure.models.cooperation.message_events import EventType, MessageEvent, State
from perdure.models.cooperation.moves import (
    Block,
    Finish,
    Handle,
    Invoke,
    Move,
    Nothing,
    OperationRun,
    Outcome,
    Raised,
    Refuse,
    Returned,
    Take,
    Undo,
    Wait,
    Writes,
    row_of,
)
from perdure.models.cooperation.next_steps import following, iteration_of
from perdure.models.cooperation.progress import Mismatch, Progress
from perdure.models.cooperation.progress_fold import fold
from perdure.models.cooperation.readiness import outstanding_wait
from perdure.models.cooperation.rollback import after_raising, begin_rollback, rollback_move

_NOTHING = Writes()


# ---------------------------------------------------------------------------------------------------------------------
# What comes next


def next_move(plan: Plan, run: OperationRun, progress: Progress | None = None) -> Move:
    """Return the run's next move. The same rows always give the same move, at any time and in any process.

    A caller that has already folded the run's rows passes the result as `progress`. In that case `run` does not need to
    have the rows.
    """
    try:
        progress = progress or fold(plan, run.events)
    except Mismatch as error:
        return Block(reason=str(error))
    match progress.state:
        case State.CREATED:
            return _begin(plan, run, progress)
        case State.ACTIVE:
            return _happy(plan, run, progress)
        case State.ROLLING_BACK:
            return rollback_move(plan, run, progress)
        case State.COMMITTED if run.rollback_request is not None:
            return begin_rollback(run, progress, by_parent(run, run.rollback_request), None)
        case state:
            return Nothing(state=state)


def _begin(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    """Return the first move. A run never begins if it must give up before an engine has taken it. It gets the rows of a
    run that has rolled back.
    """
    context = begun(run.origin.context)
    if run.rollback_request is not None:
        failure = by_parent(run, run.rollback_request)
    elif found := plan.strategy.heeds(reasons(run, context, rolling_back=False)):
        failure = gave_up(found, run.source)
    else:
        return Take(rows=(row_of(run, progress.next_seq, EventType.SEEN, context=context),))
    rows = refusal(run, failure, progress.next_seq)
    return Refuse(rows=rows, failure=rows[1].exception or failure)


def refusal(run: OperationRun, failure: Failure, seq: int = 1) -> tuple[MessageEvent, ...]:
    """Return the rows of a run that never begins. `seq` is the number of the first row."""
    first = context = begun(run.origin.context)
    if run.rollback_request is not None and run.rollback_request.context is not None:
        context = context.plus(run.rollback_request.context)
    return (
        row_of(run, seq, EventType.SEEN, context=first),
        row_of(run, seq + 1, EventType.ROLLING_BACK, exception=failure, context=context),
        row_of(run, seq + 2, EventType.ROLLED_BACK),
    )


def _happy(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    found = heeded(plan, run, progress.context, rolling_back=False)
    if progress.misfit and not found:
        return Block(reason=progress.misfit)  # The run can be undone, but it cannot go forward.
    last = progress.instances[-1] if progress.instances else None
    window = progress.window
    if last is not None and window is not None:
        waiting = outstanding_wait(plan.strategy, run, progress, giving_up=bool(found), rolling_back=False)
        if waiting is not None:
            return waiting
        failed = failures_of_children(run, window)
        if found:
            failures = (*found, *(failure for failure, _ in failed))
            return begin_rollback(run, progress, gave_up(failures, run.source), last.name)
        if failed:
            failure = child_failure(last.name, run.source, failed)
            call = handler_call(plan, progress, last, window, failure)
            return begin_rollback(run, progress, failure, last.name) if call is None else call
    elif found:
        return begin_rollback(run, progress, gave_up(found, run.source), None)
    elif (begins_at := not_before(run.origin.context)) > run.now:
        return Wait(until=earliest(begins_at, deadline_ahead(progress.context, run.now, rolling_back=False)))
    index = following(plan, progress.instances)
    if index >= len(plan.nodes):
        row = row_of(run, progress.next_seq, EventType.COMMITTED, step=last.name if last else None)
        return Finish(rows=(row,), state=State.COMMITTED)
    node = plan.nodes[index]
    return Invoke(
        index=index,
        name=node.name,
        iteration=iteration_of(plan, progress.instances, index),
        context=progress.context,
        cleanup=node.cleanup is not None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# After code has run


def after(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
) -> Writes:
    """Return the writes after the code of a move has returned or raised."""
    return at_once(after_in_pieces(plan, run, move, outcome, emitting))


def after_in_pieces(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
    progress: Progress | None = None,
) -> Pieces[Writes]:
    """Do what `after` does, in pieces, because a step may emit many messages."""
    progress = progress or fold(plan, run.events)
    if isinstance(outcome, Raised):
        return Writes(rows=(after_raising(plan, run, progress, move, outcome.failure),))
    if (failure := refused(plan, run, move, outcome)) is not None:
        return Writes(rows=(after_raising(plan, run, progress, move, failure),))
    rolling_back = progress.rollback is not None
    text, call, next_step = move.name, None, None
    match move:
        case Invoke():
            next_step = plan.target(outcome.said, move.index)
        case Undo():
            text = move.text
        case Handle():
            text, call = move.text or move.name, move.attempt - 1
            if not rolling_back:
                target = plan.target(outcome.said, move.index)
                next_step = progress.instances[-1].next_step if outcome.said is None else target
    emitted, own = _NOTHING, 0
    if outcome.emissions:
        emitted = yield from emit_in_pieces(
            outcome.emissions,
            strategy=plan.strategy,
            emitting=emitting,
            origin=Origin(run=run, step=text, seq=progress.next_seq, rolling_back=rolling_back),
        )
        own = sum(row.cooperation_lineage == run.lineage for row in emitted.rows)
    suspended = row_of(
        run,
        progress.next_seq + own,
        EventType.SUSPENDED,
        step=text,
        context=outcome.context,
        next_step=next_step,
        next_name=plan.nodes[next_step].name if next_step is not None and next_step < len(plan.nodes) else "",
        child_failure_handler_iteration=call,
    )
    return Writes(
        rows=(*emitted.rows, suspended), messages=emitted.messages, runs=emitted.runs, values=tuple(outcome.values)
    )


def refused(plan: Plan, run: OperationRun, move: Move, outcome: Returned) -> Failure | None:
    """Return a failure if a step asked for something that is not possible. Otherwise return None. The step fails with
    this failure.
    """
    try:
        if isinstance(move, (Invoke, Handle)):
            plan.target(outcome.said, move.index)
        for value in outcome.values:
            if value.variable in run.returned:
                raise InvalidArguments(
                    f"{run.handler!r} has returned {value.variable!r} before: a name can be returned once per run"
                )
    except InvalidArguments as error:
        return to_failure(error, run.source, move.name if isinstance(move, (Invoke, Handle, Undo)) else "")
    return None
