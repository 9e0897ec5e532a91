"""The machine of one run of an operation: from its state to its next move, and from an outcome to what is written.

All functions are pure. Only the run's one writer applies them, and it writes each answer in one commit. So a crash
between two commits leaves rows from which the same next move follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from perdure.errors import EngineBug, InvalidArguments
from perdure.kernel.pieces import Pieces, at_once
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.context import (
    EXEMPT,
    HAPPY_DEADLINE,
    ROLLBACK_DEADLINE,
    Context,
    Deadline,
    begun,
    deadline_in,
    not_before,
)
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.emissions import Emitting, Origin, emit_in_pieces
from perdure.models.cooperation.failures import (
    CHILD_ROLLED_BACK,
    DEADLINE_MISSED,
    Failure,
    child_failure,
    gave_up,
    parent_said_so,
    placed,
    rollback_failed,
    to_failure,
)
from perdure.models.cooperation.message_events import (
    EventType,
    MessageEvent,
    ReturnValue,
    State,
)
from perdure.models.cooperation.moves import (
    Awaits,
    BeginRollback,
    Block,
    Dismiss,
    Finish,
    Handle,
    Invoke,
    Move,
    Note,
    Nothing,
    OperationRun,
    Outcome,
    Raised,
    Refuse,
    Returned,
    Take,
    Undo,
    UndoChildren,
    Wait,
    Writes,
)
from perdure.models.cooperation.progress import Mismatch, Progress, Window, fold, following, iteration_of
from perdure.models.cooperation.strategies import Names, Pending, Strategy, minds_each, waits_for_all

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = Writes()


# ---------------------------------------------------------------------------------------------------------------------
# What comes next


def next_move(plan: Plan, run: OperationRun, progress: Progress | None = None) -> Move:
    """Return what the run does next. The same rows always give the same move, whenever and wherever this is asked.

    A caller that has folded the run's rows passes the result as `progress`. Then `run` need not have the rows.
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
            return _rolling_back(plan, run, progress)
        case State.COMMITTED if run.rollback_request is not None:
            return _begin_rollback(run, progress, _by_parent(run, run.rollback_request), None)
        case state:
            return Nothing(state=state)


def _begin(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    """Return the first move. A run that is to give up before an engine took it never begins: it leaves the rows of a
    run that rolled back."""
    context = begun(run.origin.context)
    if run.rollback_request is not None:
        failure = _by_parent(run, run.rollback_request)
    elif found := plan.strategy.heeds(reasons(run, context, rolling_back=False)):
        failure = gave_up(found, run.source)
    else:
        return Take(rows=(_row(run, progress.next_seq, EventType.SEEN, context=context),))
    rows = refusal(run, failure, progress.next_seq)
    return Refuse(rows=rows, failure=rows[1].exception or failure)


def refusal(run: OperationRun, failure: Failure, seq: int = 1) -> tuple[MessageEvent, ...]:
    """Return the rows of a run that never begins. `seq` is the number of the first one."""
    first = context = begun(run.origin.context)
    if run.rollback_request is not None and run.rollback_request.context is not None:
        context = context.plus(run.rollback_request.context)
    return (
        _row(run, seq, EventType.SEEN, context=first),
        _row(run, seq + 1, EventType.ROLLING_BACK, exception=failure, context=context),
        _row(run, seq + 2, EventType.ROLLED_BACK),
    )


def _happy(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    found = heeded(plan, run, progress.context, rolling_back=False)
    if progress.misfit and not found:
        return Block(reason=progress.misfit)  # The run can be undone, but it cannot go on.
    last = progress.instances[-1] if progress.instances else None
    window = progress.window
    if last is not None and window is not None:
        waiting = _waiting(plan.strategy, run, progress, giving_up=bool(found), rolling_back=False)
        if waiting is not None:
            return waiting
        failed = _failed(run, window)
        if found:
            failures = (*found, *(failure for failure, _ in failed))
            return _begin_rollback(run, progress, gave_up(failures, run.source), last.name)
        if failed:
            failure = child_failure(last.name, run.source, failed)
            if plan.nodes[last.index].handler is None:
                return _begin_rollback(run, progress, failure, last.name)
            return Handle(
                index=last.index,
                name=last.name,
                iteration=last.iteration,
                attempt=window.calls + 1,
                failure=failure,
                context=progress.context,
                next_step=last.next_step,
            )
    elif found:
        return _begin_rollback(run, progress, gave_up(found, run.source), None)
    elif (begins_at := not_before(run.origin.context)) > run.now:
        return Wait(until=_first(begins_at, _deadline_ahead(run, progress.context, rolling_back=False)))
    index = following(plan, progress.instances)
    if index >= len(plan.nodes):
        row = _row(run, progress.next_seq, EventType.COMMITTED, step=last.name if last else None)
        return Finish(rows=(row,), state=State.COMMITTED)
    node = plan.nodes[index]
    return Invoke(
        index=index,
        name=node.name,
        iteration=iteration_of(plan, progress.instances, index),
        context=progress.context,
        cleanup=node.cleanup is not None,
    )


def _rolling_back(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    found = heeded(plan, run, progress.context, rolling_back=True)
    window = progress.window
    if window is not None:
        waiting = _waiting(plan.strategy, run, progress, giving_up=bool(found), rolling_back=True)
        if waiting is not None:
            return waiting
        failed = _failed(run, window)
        if failed and not found:
            failure = child_failure(window.step, run.source, failed)
            return _answer_for_rollback(plan, run, progress, window, failure)
        found = (*found, *(failure for failure, _ in failed)) if found else ()
    if found:
        return _end_rollback(run, progress, [*progress.recorded, gave_up(found, run.source)])
    if progress.done == len(progress.phases):
        return _end_rollback(run, progress, progress.recorded)
    return _next_phase(plan, run, progress)


def _next_phase(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    phase = progress.phases[progress.done]
    instance, node = phase.instance, plan.nodes[phase.instance.index]
    suspended = _row(
        run,
        progress.next_seq + (len(instance.emitted) if phase.kind == "children" else 0),
        EventType.SUSPENDED,
        step=phase.text,
        context=progress.context,
    )
    if phase.kind == "children":
        cause = _cause(progress)
        rows = [
            _row(
                run,
                progress.next_seq + number,
                EventType.ROLLBACK_EMITTED,
                message_id=message_id,
                step=phase.text,
                context=progress.context,
                exception=cause,
            )
            for number, message_id in enumerate(instance.emitted)
        ]
        return UndoChildren(rows=(*rows, suspended), messages=instance.emitted, text=phase.text)
    if node.undo is None and not phase.cleanup:
        return Note(rows=(suspended,))
    return Undo(
        index=instance.index,
        name=instance.name,
        iteration=instance.iteration,
        cause=_cause(progress),
        context=progress.context,
        text=phase.text,
        cleanup=phase.cleanup,
    )


def _answer_for_rollback(plan: Plan, run: OperationRun, progress: Progress, window: Window, failure: Failure) -> Move:
    """Return the move after children could not be rolled back, or after what a rollback emitted has failed."""
    instance = progress.phase.instance
    if plan.nodes[instance.index].handler is not None:
        return Handle(
            index=instance.index,
            name=instance.name,
            iteration=instance.iteration,
            attempt=window.calls + 1,
            failure=failure,
            context=progress.context,
            rolling_back=True,
            text=window.step,
        )
    if plan.policy == "continue":
        return Note(rows=(_passed_over(run, progress, window.step, failure, window.calls),))
    return _end_rollback(run, progress, [*progress.recorded, failure])


def _passed_over(run: OperationRun, progress: Progress, text: str, failure: Failure, call: int | None) -> MessageEvent:
    return _row(
        run,
        progress.next_seq,
        EventType.SUSPENDED,
        step=text,
        context=progress.context,
        exception=failure,
        child_failure_handler_iteration=call,
    )


def _begin_rollback(run: OperationRun, progress: Progress, failure: Failure, step: str | None) -> BeginRollback:
    context = progress.context
    if run.rollback_request is not None and run.rollback_request.context is not None:
        context = context.plus(run.rollback_request.context)
    row = _row(run, progress.next_seq, EventType.ROLLING_BACK, step=step, exception=failure, context=context)
    return BeginRollback(rows=(row,), failure=row.exception or failure)


def _end_rollback(run: OperationRun, progress: Progress, failures: Any, step: str | None = None) -> Finish:
    """Return the end of a rollback. `step` is the phase that failed. Without it, the phase is the one whose children
    the run waited for."""
    if step is None and progress.done:
        step = progress.phase.text
    if not failures:
        row = _row(run, progress.next_seq, EventType.ROLLED_BACK, step=step)
        return Finish(rows=(row,), state=State.ROLLED_BACK, failure=_cause(progress))
    failure = rollback_failed(failures, _cause(progress), run.source)
    row = _row(run, progress.next_seq, EventType.ROLLBACK_FAILED, step=step, exception=failure)
    return Finish(rows=(row,), state=State.ROLLBACK_FAILED, failure=row.exception)


def _cause(progress: Progress) -> Failure:
    if progress.rollback is None or progress.rollback.exception is None:
        raise EngineBug("a rollback has no reason")
    return progress.rollback.exception


def _by_parent(run: OperationRun, rollback_request: MessageEvent) -> Failure:
    if rollback_request.coroutine_name is None and rollback_request.exception is not None:
        return rollback_request.exception  # Requested from outside: there is no parent.
    return parent_said_so(rollback_request.exception, run.source)


# ---------------------------------------------------------------------------------------------------------------------
# Waiting


def _waiting(
    strategy: Strategy, run: OperationRun, progress: Progress, *, giving_up: bool, rolling_back: bool
) -> Wait | Dismiss | None:
    """Return what the run still has to wait for, or None if it can go on."""
    window = progress.window
    if window is None or not (window.emitted or window.undone):
        return None
    outstanding = run.children.outstanding(window)
    missing = outstanding.missing
    deadline = _deadline_ahead(run, progress.context, rolling_back=rolling_back)
    if outstanding.busy:
        needs_missing = not giving_up and waits_for_all(strategy)
        return Wait(until=None if giving_up else deadline, awaits="all" if needs_missing else "busy")
    # This runs with every report of a child, so it must not go through all messages of the window.
    fewer = run.wakes if len(run.wakes) < len(window.emitted) else window.emitted
    asleep_until = max((run.wakes[id] for id in fewer if id in run.wakes and id in outstanding.emitted), default=0)
    if asleep_until > run.now and not giving_up:
        return Wait(until=_first(asleep_until, deadline), awaits="missing")
    if all(id in run.wakes for id in chain(window.emitted, window.undone)):
        return None
    pending = Pending(
        missing=Names(missing),
        giving_up=giving_up,
        rolling_back=rolling_back,
        since=window.since,
        now=run.now,
    )
    if not strategy.goes_on(pending):
        until = strategy.looks_again_at(pending)
        awaits: Awaits = "any" if minds_each(strategy) else "missing"
        return Wait(until=until if giving_up else _first(until, deadline), awaits=awaits)
    if missing and not giving_up:
        return Dismiss(children=missing)
    return None


def _failed(run: OperationRun, window: Window) -> list[tuple[Failure, bool]]:
    """Return the failures of the window's children in the order of emission, each with whether its child left something
    undone."""
    found: list[tuple[Failure, bool]] = []
    if not (window.emitted or window.undone):
        return found
    undone = frozenset(window.undone)
    for child in run.children.of(window.messages):
        left_undone = child.state is State.ROLLBACK_FAILED
        if left_undone or (child.state is State.ROLLED_BACK and child.message_id not in undone):
            found.append((child.failure or _unknown(child), left_undone))
    return found


def _unknown(child: Child) -> Failure:
    return Failure(type=CHILD_ROLLED_BACK, message=f"{child.handler!r} gave no reason")


def heeded(plan: Plan, run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Return the reasons to give up that the run's strategy heeds."""
    found = reasons(run, context, rolling_back=rolling_back)
    return tuple(plan.strategy.heeds(found)) if found else ()


def reasons(run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Return why the run is to give up. During a rollback only a deadline counts."""
    if not context.values and run.rollback_request is None and not run.asks:
        return ()
    deadline = context.get(ROLLBACK_DEADLINE if rolling_back else HAPPY_DEADLINE)
    missed = () if deadline is None or run.now < deadline.at else (_missed(deadline, run, rolling_back),)
    if rolling_back:
        return missed
    exempt = context.get(EXEMPT) or 0
    asked = [
        ask.failure if ask.kind == "cancel" else parent_said_so(ask.failure, run.source)
        for ask in run.asks
        if ask.depth > exempt
    ]
    rollback = () if run.rollback_request is None else (_by_parent(run, run.rollback_request),)
    return (*rollback, *asked, *missed)


def _missed(deadline: Deadline, run: OperationRun, rolling_back: bool) -> Failure:
    when = (_EPOCH + timedelta(microseconds=deadline.at)).isoformat()
    path = "rollback" if rolling_back else "happy path"
    return Failure(
        type=DEADLINE_MISSED,
        message=f"the deadline of the {path} was {when}, set by {deadline.source or 'outside'}",
        source=run.source,
    )


def _deadline_ahead(run: OperationRun, context: Context, *, rolling_back: bool) -> int | None:
    """The deadline, unless it has passed: a run that still waits then does not mind it, and must not be woken by it
    again and again."""
    deadline = deadline_in(context, rolling_back=rolling_back)
    return None if deadline is None or deadline <= run.now else deadline


def _first(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


# ---------------------------------------------------------------------------------------------------------------------
# After code has run


def after(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
) -> Writes:
    """Return what is written once the code that a move named has returned or raised."""
    return at_once(after_in_pieces(plan, run, move, outcome, emitting))


def after_in_pieces(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
    progress: Progress | None = None,
) -> Pieces[Writes]:
    """Do what `after` does, in pieces: a step that emits many messages takes several of them."""
    progress = progress or fold(plan, run.events)
    if isinstance(outcome, Raised):
        return Writes(rows=(_after_raising(plan, run, progress, move, outcome.failure),))
    if (failure := refused(plan, run, move, outcome)) is not None:
        return Writes(rows=(_after_raising(plan, run, progress, move, failure),))
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
    suspended = _row(
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
    """Return what is wrong with what a step asked for, or None. The step fails with it."""
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


def _after_raising(
    plan: Plan, run: OperationRun, progress: Progress, move: Invoke | Handle | Undo, failure: Failure
) -> MessageEvent:
    if progress.rollback is None:
        return _begin_rollback(run, progress, failure, move.name).rows[0]
    if plan.policy == "continue":
        text = move.text if isinstance(move, (Undo, Handle)) else move.name
        call = move.attempt - 1 if isinstance(move, Handle) else None
        return _passed_over(run, progress, text, failure, call)
    step = move.text if isinstance(move, (Undo, Handle)) else move.name
    return _end_rollback(run, progress, [*progress.recorded, failure], step).rows[0]


def readable(children: Iterable[Child], values: Iterable[ReturnValue]) -> tuple[ReturnValue, ...]:
    """Return the values that a run may read: those of its committed children, in the order of emission."""
    order = {child.lineage: place for place, child in enumerate(children) if child.state is State.COMMITTED}
    return tuple(sorted((one for one in values if one.lineage in order), key=lambda one: order[one.lineage]))


def _row(
    run: OperationRun,
    seq: int,
    type: EventType,
    *,
    message_id: str | None = None,
    exception: Failure | None = None,
    **columns: Any,
) -> MessageEvent:
    """Return a row of the run. It stores its failure itself, unless another row has stored that failure."""
    return MessageEvent(
        seq=seq,
        message_id=message_id or run.message_id,
        type=type,
        coroutine_name=run.handler,
        coroutine_identifier=run.lineage[-1],
        cooperation_lineage=run.lineage,
        created_at=run.now,
        exception=None if exception is None else placed(exception, run.lineage[-1], seq),
        **columns,
    )
