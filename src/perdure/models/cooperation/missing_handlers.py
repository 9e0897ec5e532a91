"""Handlers that have not taken their message. An external party does their work, their emitter dismisses them, or they
register late and join. This module returns the rows for each of these cases.

An expected handler that is missing blocks its emitter until one of these cases happens.

A request that writes rows of a lineage is decided by the one writer of that lineage. If a function returns no rows, the
request came too late or too early.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import Misuse, RunFinished
from perdure.kernel.lineages import extended
from perdure.models.cooperation.context import begun
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import DISMISSED, Failure
from perdure.models.cooperation.machine import next_move, refusal
from perdure.models.cooperation.message_events import ENDED, EventType, MessageEvent, State, next_seq, state_of
from perdure.models.cooperation.moves import NewRun, OperationRun, Wait, Writes
from perdure.models.cooperation.progress import Progress
from perdure.models.cooperation.progress_fold import fold
from perdure.models.cooperation.return_values import ReturnValue


def complete(run: OperationRun, values: Sequence[ReturnValue] = ()) -> Writes:
    """Return the rows SEEN and COMMITTED, because an external party has done the handler's work. Raises RunFinished,
    Misuse.
    """
    _check_not_taken(run)
    rows = (
        _own(run, 1, EventType.SEEN, context=begun(run.origin.context)),
        _own(run, 2, EventType.COMMITTED),
    )
    return Writes(rows=rows, values=tuple(values))


def fail(run: OperationRun, failure: Failure) -> Writes:
    """Return the rows of a run that never begins. An external party could not do the handler's work, and no work needs
    to be undone. Raises RunFinished, Misuse.
    """
    _check_not_taken(run)
    return Writes(rows=refusal(run, failure))


def complete_rollback(run: OperationRun) -> Writes:
    """Return the rows ROLLING_BACK and ROLLED_BACK, because an external party has undone the work that it had
    completed.

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
    """Return the row with which the emitter dismisses this handler.

    Returns no rows if the handler has begun. Then the emitter waits for the handler.
    """
    if state_of(run.events) is not State.CREATED:
        return ()
    failure = Failure(type=DISMISSED, message="its emitter went on without it", source=run.source)
    return (_own(run, 1, EventType.CANCELLATION_REQUESTED, exception=failure, seq=0),)


def join(plan: Plan, emitter: OperationRun, message_id: str, handler: str, run_id: str) -> NewRun | None:
    """Return a run for a handler that registered after the message was emitted.

    Returns None if the emitter has gone on or is giving up, or if it already has a child for this message and handler.
    """
    progress = fold(plan, emitter.events)
    if progress.window is None or message_id not in progress.window.emitted:
        return None
    if emitter.children.has(message_id, handler) or not may_be_joined(plan, emitter, progress):
        return None
    return late_run(emitter, message_id, handler, run_id)


def may_be_joined(plan: Plan, emitter: OperationRun, progress: Progress) -> bool:
    """Return whether handlers that register late may still get runs for the messages that the emitter waits for."""
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


def _own(run: OperationRun, offset: int, type: EventType, **columns: object) -> MessageEvent:
    fields: dict[str, object] = {
        "seq": next_seq(run.events) - 1 + offset,
        "message_id": run.message_id,
        "type": type,
        "coroutine_name": run.handler,
        "coroutine_identifier": run.lineage[-1],
        "cooperation_lineage": run.lineage,
    }
    return MessageEvent(**fields | columns)  # type: ignore[arg-type]
