"""The rules: `decide(run, op, me) -> Decision`. Pure; what it returns is committed by the coordinator, or not at all.

An op that is misuse raises; one that has become pointless (a late result, a second cancel) decides nothing and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from perdure.errors import (
    ConcurrentModification,
    Misuse,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
    RunOwnedElsewhere,
)
from perdure.kernel import ops
from perdure.kernel.effects import Begin, Drop, Effect, Finish, Park, Proceed, Rearm
from perdure.kernel.records import Audit, Entry, Hold, Outcome, Run, Wait
from perdure.kernel.status import FINISHED, Status, check_transition


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What an op comes to. `run` is the run's new state (None: unchanged); `row` says that its row must be written."""

    run: Run | None = None
    row: bool = False
    input: str | None = None
    outcome: Outcome | None = None
    entries: tuple[Entry, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    waits_cleared: bool = False
    archive_from: int | None = None
    audit: tuple[Audit, ...] = ()
    effects: tuple[Effect, ...] = ()
    reply: Any = None


class Started(Struct, frozen=True):
    """The reply to Start: the run, and whether this op created it."""

    run: Run
    created: bool


NOTHING = Decision(reply=False)


def decide(run: Run | None, op: ops.Op, me: str) -> Decision:
    """What `op` comes to for `run` (None: there is no such run), decided by engine `me`."""
    return _RULES[type(op)](run, op, me)


def _move(
    run: Run, became: Status, op: ops.Op, cause: str, details: str = "", **changes: Any
) -> tuple[Run, tuple[Audit, ...]]:
    """One status change: checked, versioned, audited."""
    check_transition(run.id, run.status, became)
    if became is Status.RUNNING and run.started_at is None:
        changes["started_at"] = op.at
    elif became in FINISHED:
        changes |= {"completed_at": op.at, "owner": None, "hold": None}
    moved = replace(run, status=became, version=run.version + 1, revision=run.revision + 1, updated_at=op.at, **changes)
    return moved, (_audit(moved, run.status, became, op, cause, details),)


def _note(
    run: Run, op: ops.Op, became: str, cause: str, details: str = "", bump: bool = False, **changes: Any
) -> tuple[Run, tuple[Audit, ...]]:
    """A change that is audited but is not one of status: a hold, tags, the deadline."""
    noted = replace(run, version=run.version + bump, revision=run.revision + 1, updated_at=op.at, **changes)
    return noted, (_audit(noted, run.status, became, op, cause, details),)


def _audit(run: Run, was: str | None, became: str, op: ops.Op, cause: str, details: str = "") -> Audit:
    return Audit(
        run_id=run.id,
        seq=run.revision,
        version=run.version,
        was=was,
        became=became,
        cause=cause,
        actor=op.actor,
        details=details,
        at=op.at,
    )


def _mine_or_free(run: Run | None, op: ops.Op, me: str) -> Run:
    """The run, if this engine may decide about it: its own, or one that nobody owns."""
    if run is None:
        raise RunNotFound(op.run_id)
    if run.owner is not None and run.owner != me:
        raise RunOwnedElsewhere(
            f"run {run.id!r} is owned by engine {run.owner!r}, which is alive; send this request to that engine",
            run_id=run.id,
            owner=run.owner,
        )
    return run


def _start(run: Run | None, op: ops.Start, me: str) -> Decision:
    if run is not None:
        return Decision(reply=Started(run, False))
    status = Status.RUNNING if op.admit else Status.CREATED
    check_transition(op.run_id, None, status)
    started = Run(
        id=op.run_id,
        workflow=op.workflow,
        workflow_version=op.workflow_version,
        model=op.model,
        status=status,
        version=1,
        revision=1,
        owner=me if op.admit else None,
        claim=1 if op.admit else 0,
        parent_id=op.parent_id,
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
        audit=(_audit(started, None, status, op, "started"),),
        effects=(Begin(started, op.input),) if op.admit else (),
        reply=Started(started, True),
    )


def _advance(run: Run | None, op: ops.Advance, me: str) -> Decision:
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None:
        return NOTHING
    status = run.status
    if status is not Status.RUNNING and status is not Status.SUSPENDED:
        return NOTHING
    # The hot path: a run that goes on running writes journal rows and nothing else.
    if status is Status.RUNNING and not op.idle and op.end is None and not run.recoveries:
        return Decision(
            run=run,
            entries=op.entries,
            waits=op.waits,
            waits_dropped=op.waits_dropped,
            effects=(Proceed(run.id),),
            reply=True,
        )
    before = run
    if op.entries and run.recoveries:
        run = replace(run, recoveries=0)
    audit: tuple[Audit, ...] = ()
    if status is Status.SUSPENDED and (op.entries or op.end is not None or not op.idle):
        run, audit = _move(run, Status.RUNNING, op, op.cause)
    if op.end is not None:
        run, more = _move(run, op.end.status, op, op.cause)
        return Decision(
            run=run,
            row=True,
            outcome=op.end.outcome,
            entries=op.entries,
            waits_cleared=op.end.has_waited,
            audit=audit + more,
            effects=(Finish(run, op.end.outcome),),
            reply=True,
        )
    if op.idle and run.status is Status.RUNNING:
        run, more = _move(run, Status.SUSPENDED, op, "waiting")
        audit += more
    return Decision(
        run=run,
        row=bool(audit) or before.recoveries != run.recoveries,
        entries=op.entries,
        waits=op.waits,
        waits_dropped=op.waits_dropped,
        audit=audit,
        effects=(Proceed(run.id),),
        reply=True,
    )


def _take(run: Run | None, op: ops.Take, me: str) -> Decision:
    if run is None or run.owner != me or run.claim != op.claim:
        return NOTHING
    audit: tuple[Audit, ...] = ()
    if run.hold is not None:
        run, audit = _note(run, op, "resumed", "other code is there now", run.hold.reason, hold=None, recoveries=0)
        if run.status is Status.CREATED:
            run, more = _move(run, Status.RUNNING, op, "claimed")
            audit += more
        return Decision(run=run, row=True, audit=audit, effects=(Begin(run),), reply=True)
    if run.status is Status.SUSPENDED:
        return Decision(run=run, effects=(Park(run, op.due_at),), reply=True)
    if run.status is Status.CREATED:
        run, audit = _move(run, Status.RUNNING, op, "claimed")
    elif op.orphaned and run.recoveries >= op.recoveries_max:
        reason = (
            f"its process died {run.recoveries + 1} times in a row while this run was running; "
            "find out what kills it, then resume it by hand"
        )
        hold = Hold(kind="poison", reason=reason, at=op.at)
        run, audit = _note(run, op, "poison", reason, hold=hold, owner=None)
        return Decision(run=run, row=True, audit=audit, reply=False)
    elif op.orphaned:
        run = replace(run, recoveries=run.recoveries + 1, updated_at=op.at)
    return Decision(run=run, row=bool(audit) or op.orphaned, audit=audit, effects=(Begin(run),), reply=True)


def _release(run: Run | None, op: ops.Release, me: str) -> Decision:
    if run is None or run.owner != me or run.claim != op.claim:
        return NOTHING
    return Decision(run=replace(run, owner=None), row=True, effects=(Drop(run.id, "released"),), reply=True)


def _cancel(run: Run | None, op: ops.Cancel, me: str) -> Decision:
    if run is None or run.status in FINISHED:
        return NOTHING
    run = _mine_or_free(run, op, me)
    return _end(run, Status.CANCELLED, op, Outcome(failure=op.failure), "cancelled", op.reason)


def _expire(run: Run | None, op: ops.Expire, me: str) -> Decision:
    if run is None or run.status in FINISHED or run.owner != me or run.deadline is None or run.deadline > op.at:
        return NOTHING
    return _end(run, Status.FAILED, op, Outcome(failure=op.failure), "deadline passed")


def _end(run: Run, status: Status, op: ops.Op, outcome: Outcome, cause: str, details: str = "") -> Decision:
    run, audit = _move(run, status, op, cause, details)
    return Decision(
        run=run, row=True, outcome=outcome, waits_cleared=True, audit=audit, effects=(Finish(run, outcome),), reply=True
    )


def _retry(run: Run | None, op: ops.Retry, me: str) -> Decision:
    run = _mine_or_free(run, op, me)
    if run.status is not Status.FAILED:
        raise RunNotRetryable(
            f"run {run.id!r} is {run.status}: only a failed run can be retried", run_id=run.id, status=run.status
        )
    _check_version(run, op.expected_version)
    is_late = run.deadline is not None and run.deadline <= op.at  # It would end the run again at once.
    run, audit = _move(
        run,
        Status.RUNNING,
        op,
        "retried",
        "without its deadline, which has passed" if is_late else "",
        completed_at=None,
        owner=me,
        claim=run.claim + 1,
        attempt=run.attempt + 1,
        recoveries=0,
        deadline=None if is_late else run.deadline,
    )
    return Decision(
        run=run,
        row=True,
        outcome=Outcome(),
        archive_from=op.from_entry,
        audit=audit,
        effects=(Begin(run),),
        reply=run,
    )


def _update(run: Run | None, op: ops.Update, me: str) -> Decision:
    run = _mine_or_free(run, op, me)
    _check_version(run, op.expected_version)
    changes: dict[str, Any] = {}
    if op.tags is not UNSET:
        changes["tags"] = op.tags
    if op.deadline is not UNSET:
        if run.status in FINISHED:
            raise RunFinished(
                f"run {run.id!r} is {run.status}: its deadline no longer matters", run_id=run.id, status=run.status
            )
        changes["deadline"] = op.deadline
    if not changes:
        raise Misuse(f"nothing to update for run {run.id!r}: give tags or deadline")
    run, audit = _note(run, op, "updated", "updated " + " and ".join(changes), bump=True, **changes)
    return Decision(run=run, row=True, audit=audit, effects=(Rearm(run),), reply=run)


def _check_version(run: Run, expected: int | None) -> None:
    if expected is not None and run.version != expected:
        raise ConcurrentModification(
            f"run {run.id!r} is at version {run.version}, not {expected}: somebody changed it; read it again and retry",
            run_id=run.id,
            expected_version=expected,
            version=run.version,
        )


def _set_hold(run: Run | None, op: ops.SetHold, me: str) -> Decision:
    if op.claim is not None and (run is None or run.claim != op.claim):
        return NOTHING
    run = _mine_or_free(run, op, me)
    if run.status in FINISHED:
        if op.claim is not None:
            return NOTHING
        raise RunFinished(f"run {run.id!r} is {run.status}: it cannot be held", run_id=run.id, status=run.status)
    if run.hold is not None:
        return NOTHING
    hold = op.hold
    run, audit = _note(run, op, hold.kind, hold.reason, hold.details, hold=hold, owner=None)
    return Decision(run=run, row=True, audit=audit, effects=(Drop(run.id, hold.kind),), reply=True)


def _resume(run: Run | None, op: ops.Resume, me: str) -> Decision:
    run = _mine_or_free(run, op, me)
    if run.hold is None:
        return NOTHING
    taken: dict[str, Any] = {"owner": me, "claim": run.claim + 1} if op.take else {}
    run, audit = _note(run, op, "resumed", "resumed by hand", run.hold.reason, hold=None, recoveries=0, **taken)
    if op.take and run.status is Status.CREATED:
        run, more = _move(run, Status.RUNNING, op, "resumed by hand")
        audit += more
    return Decision(run=run, row=True, audit=audit, effects=(Begin(run),) if op.take else (), reply=True)


_RULES: dict[type, Callable[[Run | None, Any, str], Decision]] = {
    ops.Start: _start,
    ops.Advance: _advance,
    ops.Take: _take,
    ops.Release: _release,
    ops.Cancel: _cancel,
    ops.Expire: _expire,
    ops.Retry: _retry,
    ops.Update: _update,
    ops.SetHold: _set_hold,
    ops.Resume: _resume,
}

__all__ = ["NOTHING", "Decision", "Started", "decide"]
