"""The machine of one run of an operation: where it stands -> what it does next; what came of that -> what is written.

Pure functions. Nobody but the run's one writer applies them, and every answer is written in one commit; so a crash
between any two commits leaves rows from which the same next move follows.
"""

from __future__ import annotations

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
from perdure.models.cooperation.events import (
    EventType,
    MessageEvent,
    ReturnValue,
    State,
)
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
from perdure.models.cooperation.moves import (
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
    TellChildren,
    Undo,
    Wait,
    Writes,
)
from perdure.models.cooperation.progress import Mismatch, Progress, Window, fold, following, iteration_of
from perdure.models.cooperation.strategies import Names, Pending, Strategy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = Writes()


# ---------------------------------------------------------------------------------------------------------------------
# What comes next


def next_move(plan: Plan, run: OperationRun, progress: Progress | None = None) -> Move:
    """What the run does next. The same for the same rows, whenever and wherever it is asked. `progress` is what its
    rows come to, where that is known: then `run` need not have them."""
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
        case State.COMMITTED if run.told is not None:
            return _begin_rollback(run, progress, _by_parent(run, run.told), None)
        case state:
            return Nothing(state=state)


def _begin(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    """A run that is told to give up before it was taken never begins, but leaves the rows of one that rolled back."""
    context = begun(run.origin.context)
    if run.told is not None:
        failure = _by_parent(run, run.told)
    elif found := plan.strategy.heeds(reasons(run, context, rolling_back=False)):
        failure = gave_up(found, run.source)
    else:
        return Take(rows=(_row(run, progress.next_seq, EventType.SEEN, context=context),))
    rows = refusal(run, failure, progress.next_seq)
    return Refuse(rows=rows, failure=rows[1].exception or failure)


def refusal(run: OperationRun, failure: Failure, seq: int = 1) -> tuple[MessageEvent, ...]:
    """The rows of a run that never begins, from a number on."""
    first = context = begun(run.origin.context)
    if run.told is not None and run.told.context is not None:
        context = context.plus(run.told.context)
    return (
        _row(run, seq, EventType.SEEN, context=first),
        _row(run, seq + 1, EventType.ROLLING_BACK, exception=failure, context=context),
        _row(run, seq + 2, EventType.ROLLED_BACK),
    )


def _happy(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    found = heeded(plan, run, progress.context, rolling_back=False)
    if progress.misfit and not found:
        return Block(reason=progress.misfit)  # What it has done can be undone, but not gone on from.
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
        return Wait(until=_first(begins_at, deadline_in(progress.context, rolling_back=False)))
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
        return TellChildren(rows=(*rows, suspended), messages=instance.emitted, text=phase.text)
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
    """Children could not be rolled back, or what a rollback emitted has failed."""
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
    if run.told is not None and run.told.context is not None:
        context = context.plus(run.told.context)
    row = _row(run, progress.next_seq, EventType.ROLLING_BACK, step=step, exception=failure, context=context)
    return BeginRollback(rows=(row,), failure=row.exception or failure)


def _end_rollback(run: OperationRun, progress: Progress, failures: Any, step: str | None = None) -> Finish:
    """The end of a rollback. `step` is the phase that failed, unless it is the one whose children were waited for."""
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


def _by_parent(run: OperationRun, told: MessageEvent) -> Failure:
    if told.coroutine_name is None and told.exception is not None:
        return told.exception  # Asked for from outside: there is no parent who said so.
    return parent_said_so(told.exception, run.source)


# ---------------------------------------------------------------------------------------------------------------------
# Waiting


def _waiting(
    strategy: Strategy, run: OperationRun, progress: Progress, *, giving_up: bool, rolling_back: bool
) -> Wait | Dismiss | None:
    """What the run still has to wait for; None if it can go on."""
    window = progress.window
    if window is None or not (window.emitted or window.told):
        return None
    outstanding = run.children.outstanding(window)
    missing = outstanding.missing
    deadline = deadline_in(progress.context, rolling_back=rolling_back)
    if outstanding.busy:
        return Wait(until=None if giving_up else deadline)
    # Asked with every news of a child, so this must not go through all messages of the window.
    fewer = run.wakes if len(run.wakes) < len(window.emitted) else window.emitted
    asleep_until = max((run.wakes[id] for id in fewer if id in run.wakes and id in outstanding.emitted), default=0)
    if asleep_until > run.now and not giving_up:
        return Wait(until=_first(asleep_until, deadline))
    if all(id in run.wakes for id in chain(window.emitted, window.told)):
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
        return Wait(until=until if giving_up else _first(until, deadline))
    if missing and not giving_up:
        return Dismiss(children=missing)
    return None


def _failed(run: OperationRun, window: Window) -> list[tuple[Failure, bool]]:
    """The failures of the window's children, in the order of emission, and whether something was left undone."""
    found: list[tuple[Failure, bool]] = []
    if not (window.emitted or window.told):
        return found
    told = frozenset(window.told)
    for child in run.children.of(window.messages):
        left_undone = child.state is State.ROLLBACK_FAILED
        if left_undone or (child.state is State.ROLLED_BACK and child.message_id not in told):
            found.append((child.failure or _unknown(child), left_undone))
    return found


def _unknown(child: Child) -> Failure:
    return Failure(type=CHILD_ROLLED_BACK, message=f"{child.handler!r} gave no reason")


def heeded(plan: Plan, run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Those reasons to give up that count."""
    found = reasons(run, context, rolling_back=rolling_back)
    return tuple(plan.strategy.heeds(found)) if found else ()


def reasons(run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Why the run is to give up. On the way back only a deadline counts."""
    if not context.values and run.told is None and not run.asks:
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
    told = () if run.told is None else (_by_parent(run, run.told),)
    return (*told, *asked, *missed)


def _missed(deadline: Deadline, run: OperationRun, rolling_back: bool) -> Failure:
    when = (_EPOCH + timedelta(microseconds=deadline.at)).isoformat()
    path = "rollback" if rolling_back else "happy path"
    return Failure(
        type=DEADLINE_MISSED,
        message=f"the deadline of the {path} was {when}, set by {deadline.source or 'outside'}",
        source=run.source,
    )


def _first(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


# ---------------------------------------------------------------------------------------------------------------------
# What came of it


def after(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
) -> Writes:
    """What is written once the code that a move named has returned or raised."""
    return at_once(after_in_pieces(plan, run, move, outcome, emitting))


def after_in_pieces(
    plan: Plan,
    run: OperationRun,
    move: Invoke | Handle | Undo,
    outcome: Outcome,
    emitting: Emitting,
    progress: Progress | None = None,
) -> Pieces[Writes]:
    """As `after`. A step that emits much takes several pieces."""
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
    """What is wrong with what a step asked for: it fails with it."""
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


def readable(run: OperationRun, values: tuple[ReturnValue, ...]) -> tuple[ReturnValue, ...]:
    """Which return values the run may read: those of its children that have committed, in the order of emission."""
    order = {child.lineage: place for place, child in enumerate(run.children) if child.state is State.COMMITTED}
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
    """A row of the run. Its failure is stored here, unless another row has it."""
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
