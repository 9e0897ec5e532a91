"""Requests to runs from outside, as rows: cancel, roll back what has committed, complete in place of a handler, join
late, and dismiss a handler that its emitter does not wait for.

The one writer of a lineage decides each request that writes rows of that lineage. No rows means that the request came
too late or too early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.errors import Misuse, RunFinished
from perdure.kernel.cooperation import extended
from perdure.models.cooperation.context import EMPTY, begun
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import CANCELLATION_REQUESTED, DISMISSED, ROLLBACK_REQUESTED, Failure, placed
from perdure.models.cooperation.machine import next_move, refusal
from perdure.models.cooperation.message_events import (
    ENDED,
    EventType,
    Kinship,
    Lineage,
    MessageEvent,
    ReturnValue,
    State,
    is_run,
    state_of,
)
from perdure.models.cooperation.moves import NewRun, OperationRun, Wait, Writes
from perdure.models.cooperation.progress import Progress, fold


def cancel(
    lineage: Lineage, own: Sequence[MessageEvent], message_id: str, *, reason: str, source: str
) -> tuple[MessageEvent, ...]:
    """Return CANCELLATION_REQUESTED for a lineage: its runs that have not ended give up at their next step boundary.

    `own` are the rows of exactly that lineage. Returns no rows if its run has ended, or was cancelled before.
    """
    if any(row.type is EventType.CANCELLATION_REQUESTED for row in own):
        return ()
    if is_run(lineage) and state_of(own) in ENDED:
        return ()
    failure = Failure(type=CANCELLATION_REQUESTED, message=reason, source=source)
    row = MessageEvent(
        seq=0,  # It is not written by the run's writer.
        message_id=message_id,
        type=EventType.CANCELLATION_REQUESTED,
        cooperation_lineage=lineage,
        exception=placed(failure, lineage[-1], 0),
    )
    return (row,)


def roll_back(
    lineage: Lineage,
    rows: Iterable[MessageEvent],
    not_taken: Iterable[Lineage] = (),
    *,
    reason: str,
    source: str,
) -> tuple[MessageEvent, ...]:
    """Return the row that undoes a committed hierarchy, or the part of it below one of its runs.

    `rows` are all rows of the hierarchy, `not_taken` its runs that no handler has taken. Returns no rows if a run above
    or below has not ended, or if no run that handled the message has committed.
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
                seq=_next_seq(own),
                message_id=emitted[0].message_id,
                type=EventType.ROLLBACK_EMITTED,
                cooperation_lineage=lineage,
                exception=placed(failure, lineage[-1], _next_seq(own)),
                context=EMPTY,
            ),
        )
    if state_of(own) is not State.COMMITTED:
        return ()
    seen = next(row for row in own if row.type is EventType.SEEN)
    last = next(row.context for row in reversed(own) if row.context is not None and row.type is not EventType.EMITTED)
    return (
        MessageEvent(
            seq=_next_seq(own),
            message_id=seen.message_id,
            type=EventType.ROLLING_BACK,
            coroutine_name=seen.coroutine_name,
            coroutine_identifier=seen.coroutine_identifier,
            cooperation_lineage=lineage,
            exception=placed(failure, lineage[-1], _next_seq(own)),
            context=last,
        ),
    )


def complete(run: OperationRun, values: Sequence[ReturnValue] = ()) -> Writes:
    """Return SEEN and COMMITTED: an external party has done the handler's work. Raises RunFinished, Misuse."""
    _check_not_taken(run)
    rows = (
        _own(run, 1, EventType.SEEN, context=begun(run.origin.context)),
        _own(run, 2, EventType.COMMITTED),
    )
    return Writes(rows=rows, values=tuple(values))


def fail(run: OperationRun, failure: Failure) -> Writes:
    """Return the rows of a run that never begins: an external party could not do the handler's work, and left nothing
    to undo. Raises RunFinished, Misuse."""
    _check_not_taken(run)
    return Writes(rows=refusal(run, failure))


def complete_rollback(run: OperationRun) -> Writes:
    """Return ROLLING_BACK and ROLLED_BACK: an external party has undone a run that it had completed.

    Raises Misuse unless the run was completed from outside and was asked to roll back after that.
    """
    request = run.rollback_request
    if state_of(run.events) is not State.COMMITTED or request is None or len(run.events) != 2:
        raise Misuse(f"run {run.lineage[-1]!r} was not completed by an external party and then asked to roll back")
    rows = (
        _own(run, 1, EventType.ROLLING_BACK, exception=request.exception, context=request.context),
        _own(run, 2, EventType.ROLLED_BACK),
    )
    return Writes(rows=rows)


def dismiss(run: OperationRun) -> tuple[MessageEvent, ...]:
    """Return the row with which the emitter goes on without this handler.

    Returns no rows if the handler has begun: then the emitter waits for it.
    """
    if state_of(run.events) is not State.CREATED:
        return ()
    failure = Failure(type=DISMISSED, message="its emitter went on without it", source=run.source)
    return (_own(run, 1, EventType.CANCELLATION_REQUESTED, exception=failure, seq=0),)


def join(plan: Plan, emitter: OperationRun, message_id: str, handler: str, run_id: str) -> NewRun | None:
    """Return a run for a handler that registered after the message was emitted.

    Returns None if the emitter has gone on, is giving up, or has a child for this message and handler.
    """
    progress = fold(plan, emitter.events)
    if progress.window is None or message_id not in progress.window.emitted:
        return None
    if emitter.children.has(message_id, handler) or not may_be_joined(plan, emitter, progress):
        return None
    return late_run(emitter, message_id, handler, run_id)


def may_be_joined(plan: Plan, emitter: OperationRun, progress: Progress) -> bool:
    """Return whether handlers that registered late may still get runs for messages that the emitter waits for."""
    if progress.rollback is not None or emitter.asks or emitter.rollback_request is not None:
        return False
    return isinstance(next_move(plan, emitter, progress), Wait)


def late_run(emitter: OperationRun, message_id: str, handler: str, run_id: str) -> NewRun:
    return NewRun(lineage=extended(emitter.lineage, run_id), handler=handler, message_id=message_id)


def _check_not_taken(run: OperationRun) -> None:
    state = state_of(run.events)
    if state in ENDED:
        raise RunFinished(f"run {run.lineage[-1]!r} has ended", run_id=run.lineage[-1], status=state)
    if state is not State.CREATED:
        raise Misuse(f"run {run.lineage[-1]!r} was taken by its handler, and is {state}")
    if run.rollback_request is not None:
        raise Misuse(f"run {run.lineage[-1]!r} is to be rolled back: its emitter failed")


def _next_seq(own: Iterable[MessageEvent]) -> int:
    return max((row.seq for row in own), default=0) + 1


def _own(run: OperationRun, offset: int, type: EventType, **columns: object) -> MessageEvent:
    fields: dict[str, object] = {
        "seq": _next_seq(run.events) - 1 + offset,
        "message_id": run.message_id,
        "type": type,
        "coroutine_name": run.handler,
        "coroutine_identifier": run.lineage[-1],
        "cooperation_lineage": run.lineage,
    }
    return MessageEvent(**fields | columns)  # type: ignore[arg-type]
