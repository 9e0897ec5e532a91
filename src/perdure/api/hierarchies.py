"""Hierarchies of operations: reading their rows, cancelling them, and rolling them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from perdure.api.fences import Fences
from perdure.coordinator.turns import in_turns
from perdure.errors import (
    CommitRefused,
    EngineBug,
    InvalidTransition,
    Misuse,
    RunFinished,
    RunNotFound,
)
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation, ScopeRows
from perdure.kernel.lineages import Lineage, depth_of, is_root_run
from perdure.kernel.status import FINISHED, Status
from perdure.models.cooperation.cancellation import cancel
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.context import CancellationToken, checked_tokens
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import MessageEvent
from perdure.models.cooperation.moves import NewRun, OperationRun
from perdure.models.cooperation.notifications import asking
from perdure.models.cooperation.rollback import roll_back
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.models.cooperation.token_cancellation import cancellation
from perdure.session import Session
from perdure.values.checks import checked_remark, checked_text

AT_WORK: Final = (Status.SUSPENDED, Status.RUNNING)


# Reading.


async def hierarchy_rows(session: Session, id: str) -> StoredScopes:
    """Return all rows of a hierarchy, or of the runs below a given run."""
    session.check_open()
    return await read_rows(session, await session.caller_store.hierarchy(checked_text(id, "an id")))


async def root_rows(session: Session, id: str) -> StoredScopes:
    """Return the rows of a root emission and of the runs that handle its message, without the rows of runs further
    below."""
    session.check_open()
    return await read_rows(session, await session.caller_store.scopes([id]))


async def run_rows(session: Session, run_id: str) -> StoredScopes:
    """Return the rows of one operation's run. Raises RunNotFound. Raises Misuse if the run is not a handler's."""
    found = await root_rows(session, checked_text(run_id, "a run's id"))
    if run_id in found.runs:
        return found
    if (stored := (await session.caller_store.load([run_id])).get(run_id)) is not None:
        raise Misuse(
            f"run {run_id!r} is a run of the workflow {stored.run.workflow!r} and handles no message: its code gives "
            "its result, and cancel() ends it. `runs.list(workflow=…)` with the name of a handler lists runs that "
            "you can complete",
            run_id=run_id,
        )
    if found.messages:
        raise RunNotFound(run_id, "this is the id of a root emission: name one of the runs that handle its message")
    raise RunNotFound(run_id)


async def read_rows(session: Session, rows: ScopeRows) -> StoredScopes:
    """Decode rows. Each turn of the event loop decodes a bounded number of rows."""
    return await in_turns(RowCodec(session.codec).read_in_pieces(rows))


async def with_causes(session: Session, failure: Failure) -> Failure:
    """Return the failure with its causes. The causes are read from other rows, up to a limit."""
    return await CauseReader(session.caller_store, RowCodec(session.codec)).whole(failure)


# Cancelling and rolling back.


async def cancel_hierarchy(session: Session, id: str, *, reason: str, actor: str) -> bool:
    """Cancel a hierarchy, by the id of its root. With the id of a run, cancel only the part of the hierarchy below that
    run.

    Each of its runs that has not ended rolls back at its next step boundary. Functions and graphs that were started in
    the hierarchy are cancelled. Returns False if the hierarchy has ended, or was cancelled before.

    Once this has returned True, no engine begins a further step, except rollbacks. So this call waits until the engines
    that have the runs have read their mail. If this process dies before the call returns, a cancellation that is
    already stored still takes effect.
    """
    if not (asked := await request_cancel(session, id, reason=reason, actor=actor)):
        return False
    await Fences(session).of_hierarchies([id])
    stored = await session.caller_store.load(asked)
    return any(one.run.status is not Status.SUCCEEDED for one in stored.values())


async def request_cancel(session: Session, id: str, *, reason: str, actor: str) -> list[str]:
    """Cancel a hierarchy without waiting for other engines.

    Returns the ids of the runs that were asked to roll back. The list is empty if the hierarchy has ended, or was
    cancelled before.
    """
    session.check_open()
    checked_remark(reason, actor)
    found = await root_rows(session, checked_text(id, "an id"))
    lineage, message_id = _place(found, id)
    concerned = [run for run in found.runs.values() if run.id == id or _is_handled_by(run, id)]
    if not lineage or all(found.statuses[run.id] in FINISHED for run in concerned):
        return []
    hierarchy = await in_turns(found.hierarchy_in_pieces())
    rows = cancel(lineage, hierarchy.own(lineage), message_id, reason=reason or "cancelled", source=actor)
    if not rows:
        return []
    now = session.clock.now()
    notices = [
        _asking(session, hierarchy.view(run, now), found.statuses[run.id], rows[0], actor) for run in concerned
    ]  # fmt: skip
    op = ops.CancelScope(run_id=id, at=now, actor=actor, added=stamped(session, rows, now), notices=tuple(notices))
    return [run.id for run in concerned] if await submitted(session, op) else []


async def cancel_token(session: Session, token: CancellationToken, *, reason: str, actor: str) -> bool:
    """Cancel a cancellation token for good: each run that has the token rolls back.

    Returns False if the token was cancelled before.

    Once this has returned, no further step of these runs begins. If this process dies before the call returns, a
    cancellation that is already stored still takes effect: another engine notifies the runs. Raises InvalidArguments.
    """
    session.check_open()
    checked_remark(reason, actor)
    (name,) = checked_tokens([token])
    now = session.clock.now()
    op = ops.CancelScope(
        run_id=token.scope,
        at=now,
        actor=actor,
        added=stamped(session, [cancellation(token, reason=reason, source=actor)], now),
        members=(ops.NotifyMembers(run_id=token.scope, at=now, actor=actor, token=name),),
    )
    is_first = await submitted(session, op)
    await session.read_mail()
    await Fences(session).of_hierarchies(await session.token_members(session.caller_store).ids(token))
    return is_first


async def roll_back_hierarchy(session: Session, id: str, *, reason: str, actor: str) -> bool:
    """Roll back a hierarchy that has ended.

    Everything that was committed in it is undone, newest first. With the id of a run, only that run and the runs below
    it are rolled back.

    Returns False, and does nothing, if a run above or below has not ended, or if no work needs to be undone.
    """
    session.check_open(to_start=True)
    checked_remark(reason, actor)
    lineage, _ = _place(await root_rows(session, checked_text(id, "an id")), id)
    if not lineage:
        return False
    found = await hierarchy_rows(session, lineage[0])
    runs = [run.lineage for run in found.runs.values()]
    rows = roll_back(lineage, found.events, runs, reason=reason or "asked for", source=actor)
    if not rows:
        return False
    now = session.clock.now()
    below = [run for run in found.runs.values() if _is_handled_by(run, id)]
    notices = [ops.Notify(run_id=run.id, at=now, actor=actor, kind="undo") for run in below]
    op = ops.UndoScope(run_id=id, at=now, actor=actor, added=stamped(session, rows, now), notices=tuple(notices))
    return await submitted(session, op)


async def cancel_or_refuse(session: Session, id: str, *, reason: str, actor: str) -> None:
    """Cancel a hierarchy, by the id of its root or of one of its runs.

    Raises RunNotFound. Raises RunFinished if the hierarchy has ended, or was cancelled before.
    """
    if not await cancel_hierarchy(session, id, reason=reason, actor=actor):
        await _check_there(session, id)
        raise RunFinished(f"hierarchy {id!r} has ended, or was cancelled before", run_id=id, status="finished")


async def roll_back_or_refuse(session: Session, id: str, *, reason: str, actor: str) -> None:
    """Roll back a hierarchy that has ended, by the id of its root or of one of its runs.

    Raises RunNotFound. Raises InvalidTransition if one of its runs has not ended, or if no work needs to be undone.
    """
    if not await roll_back_hierarchy(session, id, reason=reason, actor=actor):
        await _check_there(session, id)
        raise InvalidTransition(
            f"hierarchy {id!r} cannot be rolled back: one of its runs has not ended, or no work is left to undo; look "
            "at its tree, and cancel the hierarchy if it is still running",
            run_id=id,
        )


async def _check_there(session: Session, id: str) -> None:
    found = await hierarchy_rows(session, id)
    if not found.runs and not found.events:
        raise RunNotFound(id)


def _asking(session: Session, view: OperationRun, status: str, row: MessageEvent, actor: str) -> ops.Notify:
    """Return the notice that asks a cancelled run to give up."""
    if row.exception is None:
        raise EngineBug("a cancellation has no reason")
    depth = depth_of(row.cooperation_lineage)
    notifications = session.operation_runner.notifications
    return asking(notifications, view, status, row.exception, depth, view.now, actor)


def _is_handled_by(run: NewRun, root: str) -> bool:
    """Whether a run handles the message that was emitted under a root."""
    return is_root_run(run.lineage) and run.lineage[0] == root


def _place(found: StoredScopes, id: str) -> tuple[Lineage, str]:
    """Return the lineage of the run or root with this id, and the id of the message that it handles. Both are empty if
    no run or root has this id.
    """
    if id in found.runs:
        return found.runs[id].lineage, found.runs[id].message_id
    emitted = [row for row in found.events if row.cooperation_lineage == (id,)]
    return ((id,), emitted[0].message_id) if emitted else ((), "")


# Writing.


def stamped(session: Session, rows: Sequence[MessageEvent], now: int) -> Cooperation:
    """Return the rows in the form in which they are stored. Each row has a new id, and `now` as its creation time."""
    codec = RowCodec(session.codec)
    return Cooperation(events=[codec.event(replace(row, id=session.ids(now), created_at=now)) for row in rows])


async def submitted(session: Session, op: ops.Op) -> bool:
    """Submit an op that two callers may submit at the same time. Returns False if another caller has submitted it
    first.
    """
    try:
        done: bool = await session.coordinator.submit(op)
    except CommitRefused:
        return False
    return done


__all__ = [
    "AT_WORK",
    "cancel_hierarchy",
    "cancel_or_refuse",
    "cancel_token",
    "hierarchy_rows",
    "read_rows",
    "request_cancel",
    "roll_back_hierarchy",
    "roll_back_or_refuse",
    "root_rows",
    "run_rows",
    "stamped",
    "submitted",
    "with_causes",
]
