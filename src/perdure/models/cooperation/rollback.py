"""Rollbacks of operations: how a rollback begins, which phases it has, and how it ends.

The executed instances of steps are undone, the newest first. Each instance has two phases. First its children are
rolled back, and then the step's own rollback function is called. A step that raised is not undone, because nothing of
it was written. If a phase fails, the rollback halts, unless the operation's policy is "continue". A hierarchy that has
committed is rolled back on request (`roll_back`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perdure.errors import EngineBug
from perdure.kernel.lineages import Kinship, Lineage, is_run
from perdure.models.cooperation.cancellation import heeded
from perdure.models.cooperation.child_failures import child_failure, failures_of_children, handler_call
from perdure.models.cooperation.context import EMPTY
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import ROLLBACK_REQUESTED, Failure, gave_up, placed, rollback_failed
from perdure.models.cooperation.finally_functions import has_run
from perdure.models.cooperation.message_events import ENDED, EventType, MessageEvent, State, next_seq, state_of
from perdure.models.cooperation.moves import (
    BeginRollback,
    Finish,
    Handle,
    Invoke,
    Move,
    Note,
    OperationRun,
    Undo,
    UndoChildren,
    row_of,
)
from perdure.models.cooperation.progress import Instance, Phase, Progress, Window
from perdure.models.cooperation.readiness import outstanding_wait


def phases_of(plan: Plan, instances: Sequence[Instance]) -> tuple[Phase, ...]:
    """Return the phases of a rollback: instance by instance, the newest first. For each instance, its children come
    before the step itself. A call of a handler of child failures has only children to undo.
    """
    names = {node.name for node in plan.nodes}
    phases: list[Phase] = []
    for place in reversed(range(len(instances))):
        instance = instances[place]
        text = f"Rollback of {instance.text}"
        children = f"{text} (rolling back child scopes)"
        while text in names or children in names:
            text, children = f"{text}$", f"{children}$"
        phases.append(Phase(instance=instance, kind="children", text=children))
        if instance.call is None:
            cleanup = plan.nodes[instance.index].cleanup is not None and not has_run(instances, place)
            phases.append(Phase(instance=instance, kind="own", text=text, cleanup=cleanup))
    return tuple(phases)


def rollback_move(plan: Plan, run: OperationRun, progress: Progress) -> Move:
    """Return the next move of a run that rolls back."""
    found = heeded(plan, run, progress.context, rolling_back=True)
    window = progress.window
    if window is not None:
        waiting = outstanding_wait(plan.strategy, run, progress, giving_up=bool(found), rolling_back=True)
        if waiting is not None:
            return waiting
        failed = failures_of_children(run, window)
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
    suspended = row_of(
        run,
        progress.next_seq + (len(instance.emitted) if phase.kind == "children" else 0),
        EventType.SUSPENDED,
        step=phase.text,
        context=progress.context,
    )
    if phase.kind == "children":
        cause = _cause(progress)
        rows = [
            row_of(
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
    """Return the next move if children could not be rolled back, or if the handlers of a rollback's messages have
    failed.
    """
    instance = progress.phase.instance
    if (call := handler_call(plan, progress, instance, window, failure, rolling_back=True)) is not None:
        return call
    if plan.policy == "continue":
        return Note(rows=(_passed_over(run, progress, window.step, failure, window.calls),))
    return _end_rollback(run, progress, [*progress.recorded, failure])


def _passed_over(run: OperationRun, progress: Progress, text: str, failure: Failure, call: int | None) -> MessageEvent:
    return row_of(
        run,
        progress.next_seq,
        EventType.SUSPENDED,
        step=text,
        context=progress.context,
        exception=failure,
        child_failure_handler_iteration=call,
    )


def begin_rollback(run: OperationRun, progress: Progress, failure: Failure, step: str | None) -> BeginRollback:
    context = progress.context
    if run.rollback_request is not None and run.rollback_request.context is not None:
        context = context.plus(run.rollback_request.context)
    row = row_of(run, progress.next_seq, EventType.ROLLING_BACK, step=step, exception=failure, context=context)
    return BeginRollback(rows=(row,), failure=row.exception or failure)


def _end_rollback(run: OperationRun, progress: Progress, failures: Any, step: str | None = None) -> Finish:
    """Return the end of a rollback. `step` is the phase that failed. Without `step`, it is the phase whose children the
    run waited for.
    """
    if step is None and progress.done:
        step = progress.phase.text
    if not failures:
        row = row_of(run, progress.next_seq, EventType.ROLLED_BACK, step=step)
        return Finish(rows=(row,), state=State.ROLLED_BACK, failure=_cause(progress))
    failure = rollback_failed(failures, _cause(progress), run.source)
    row = row_of(run, progress.next_seq, EventType.ROLLBACK_FAILED, step=step, exception=failure)
    return Finish(rows=(row,), state=State.ROLLBACK_FAILED, failure=row.exception)


def _cause(progress: Progress) -> Failure:
    if progress.rollback is None or progress.rollback.exception is None:
        raise EngineBug("a rollback has no reason")
    return progress.rollback.exception


def after_raising(
    plan: Plan, run: OperationRun, progress: Progress, move: Invoke | Handle | Undo, failure: Failure
) -> MessageEvent:
    if progress.rollback is None:
        return begin_rollback(run, progress, failure, move.name).rows[0]
    if plan.policy == "continue":
        text = move.text if isinstance(move, (Undo, Handle)) else move.name
        call = move.attempt - 1 if isinstance(move, Handle) else None
        return _passed_over(run, progress, text, failure, call)
    step = move.text if isinstance(move, (Undo, Handle)) else move.name
    return _end_rollback(run, progress, [*progress.recorded, failure], step).rows[0]


def roll_back(
    lineage: Lineage,
    rows: Iterable[MessageEvent],
    not_taken: Iterable[Lineage] = (),
    *,
    reason: str,
    source: str,
) -> tuple[MessageEvent, ...]:
    """Return the row that undoes a committed hierarchy, or the part of it below a run.

    `rows` are all rows of the hierarchy. `not_taken` are its runs that no handler has taken. Returns no rows if a run
    above or below has not ended, or if no handler of the message has committed.
    """
    by_lineage: dict[Lineage, list[MessageEvent]] = {}
    for row in rows:
        by_lineage.setdefault(row.cooperation_lineage, []).append(row)
    not_taken = list(not_taken)
    kinship = Kinship([*by_lineage, *not_taken])
    below = kinship.below(lineage[-1])
    above = {*kinship.above(lineage)}
    related = [one for one in by_lineage if is_run(one) and (one[-1] in below or one[-1] in above)]
    waiting = [one for one in not_taken if one[-1] in below and state_of(by_lineage.get(one, ())) is State.CREATED]
    if waiting or any(state_of(by_lineage[one]) not in ENDED for one in related):
        return ()
    own = by_lineage.get(lineage, [])
    failure = Failure(type=ROLLBACK_REQUESTED, message=reason, source=source)
    if not is_run(lineage):
        emitted = [row for row in own if row.type is EventType.EMITTED]
        committed = any(state_of(found) is State.COMMITTED for one, found in by_lineage.items() if one[:-1] == lineage)
        if not committed or not emitted or any(row.type is EventType.ROLLBACK_EMITTED for row in own):
            return ()
        return (
            MessageEvent(
                seq=next_seq(own),
                message_id=emitted[0].message_id,
                type=EventType.ROLLBACK_EMITTED,
                cooperation_lineage=lineage,
                exception=placed(failure, lineage[-1], next_seq(own)),
                context=EMPTY,
            ),
        )
    if state_of(own) is not State.COMMITTED:
        return ()
    seen = next(row for row in own if row.type is EventType.SEEN)
    last = next(row.context for row in reversed(own) if row.context is not None and row.type is not EventType.EMITTED)
    return (
        MessageEvent(
            seq=next_seq(own),
            message_id=seen.message_id,
            type=EventType.ROLLING_BACK,
            coroutine_name=seen.coroutine_name,
            coroutine_identifier=seen.coroutine_identifier,
            cooperation_lineage=lineage,
            exception=placed(failure, lineage[-1], next_seq(own)),
            context=last,
        ),
    )
