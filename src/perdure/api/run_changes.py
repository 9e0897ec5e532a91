"""Changes of one run, by its id. The engine that owns the run decides whether the change is made, and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from perdure.api.fences import Fences
from perdure.api.hierarchies import cancel_hierarchy
from perdure.errors import ConcurrentModification, InvalidArguments, IsOperation, RunNotFound, RunNotRetryable
from perdure.kernel import ops
from perdure.kernel.events import Event
from perdure.kernel.failures import Failure
from perdure.kernel.rows import Entry
from perdure.kernel.rules.deadlines import deadline_since
from perdure.kernel.runs import Hold
from perdure.kernel.status import Status
from perdure.models.functions.waits import failed_before, read_before, started_before
from perdure.ports import RunFilter, StoredRun
from perdure.session import Session
from perdure.values.arguments import Duration, span_of
from perdure.values.checks import checked_remark, checked_tags, checked_text
from perdure.values.times import from_datetime
from perdure.views import RunView, run_view

_PAGE: Final = 500  # how many children are retried at once
_LATEST: Final = from_datetime(datetime.max.replace(tzinfo=UTC))


async def update_run(
    session: Session,
    run_id: str,
    *,
    expected_version: int | None,
    tags: Mapping[str, str] | None,
    deadline: datetime | Duration | msgspec.UnsetType | None,
    actor: str,
) -> RunView:
    """Replace a run's tags, its deadline, or both.

    Raises ConcurrentModification if the run is not at `expected_version`.
    """
    session.check_open()
    checked_remark("", actor)
    now = session.clock.now()
    run = await session.coordinator.submit(
        ops.Update(
            run_id=checked_text(run_id, "a run's id"),
            at=now,
            actor=actor,
            expected_version=expected_version,
            tags=msgspec.UNSET if tags is None else checked_tags(tags),
            deadline=msgspec.UNSET if deadline is msgspec.UNSET else deadline_at(deadline, now),
        )
    )
    return run_view(run)


async def cancel_run(
    session: Session, run_id: str, *, expected_version: int | None = None, reason: str = "", actor: str = "api"
) -> bool:
    """Cancel a run.

    A run of an operation, or a root emission, rolls back. Returns False if the run has ended or does not exist. Once
    this has returned True, no engine begins a further step of the run or of a run below it, except compensations.
    Raises ConcurrentModification.
    """
    session.check_open()
    checked_text(run_id, "a run's id")
    checked_remark(reason, actor)
    failure = Failure(type="perdure.errors:RunCancelled", message=reason or "cancelled")
    done = False
    with suppress(IsOperation):
        done = await session.coordinator.submit(
            ops.Cancel(
                run_id=run_id,
                at=session.clock.now(),
                actor=actor,
                reason=reason,
                failure=msgspec.json.encode(failure).decode(),
                expected_version=expected_version,
            )
        )
    if not done:
        return await cancel_hierarchy(session, run_id, reason=reason, actor=actor)
    await Fences(session).of_children(run_id)
    return True


async def pause_run(session: Session, run_id: str, *, expected_version: int | None, reason: str, actor: str) -> bool:
    """Hold a run until it is resumed.

    Returns False if the run is held already. Raises RunNotFound, RunFinished, ConcurrentModification.
    """
    session.check_open()
    checked_text(run_id, "a run's id")
    checked_remark(reason, actor)
    hold = Hold(kind="paused", reason=reason or "paused", at=session.clock.now())
    held: bool = await session.coordinator.submit(
        ops.SetHold(run_id=run_id, at=hold.at, actor=actor, hold=hold, expected_version=expected_version)
    )
    return held


async def resume_run(session: Session, run_id: str, *, expected_version: int | None, actor: str) -> bool:
    """Lift the hold of a run, whatever its kind.

    Returns False if the run is not held. Raises RunNotFound, ConcurrentModification.
    """
    session.check_open(to_start=True)
    checked_remark("", actor)
    lifted: bool = await session.coordinator.submit(
        ops.Resume(
            run_id=checked_text(run_id, "a run's id"),
            at=session.clock.now(),
            actor=actor,
            expected_version=expected_version,
        )
    )
    return lifted


async def retry_run(session: Session, run_id: str, *, expected_version: int | None, actor: str) -> None:
    """Run a failed run again from the entry whose failure ended it.

    Raises RunNotFound, RunNotRetryable, ConcurrentModification.
    """
    session.check_open(to_start=True)
    checked_remark("", actor)
    await _retry(session, checked_text(run_id, "a run's id"), expected_version, actor)


async def _retry(
    session: Session, run_id: str, expected_version: int | None, actor: str, *, with_parent: bool = False
) -> None:
    """Retry a run in its stored state. If the run changes before the retry is decided, read the run again and repeat
    the retry. If the caller gave a version, do not repeat it.
    """
    stored = await _stored(session, run_id)
    while True:
        try:
            await _retry_as(session, stored, expected_version, actor, with_parent=with_parent)
        except (ConcurrentModification, RunNotRetryable):
            was, stored = stored.run, await _stored(session, run_id)
            is_same = stored.run.version == was.version
            if expected_version is not None or was.status is not Status.FAILED or is_same:
                raise
            if stored.run.attempt == was.attempt:
                continue
        return  # The run is being retried, by this call or by another call at the same time.


async def _stored(session: Session, run_id: str) -> StoredRun:
    stored = (await session.caller_store.get([run_id])).get(run_id)
    if stored is None:
        raise RunNotFound(run_id)
    return stored


async def _retry_as(
    session: Session, stored: StoredRun, expected_version: int | None, actor: str, *, with_parent: bool
) -> None:
    run, run_id = stored.run, stored.run.id
    version = run.version if expected_version is None else expected_version
    failure = stored.outcome.failure
    entry = msgspec.json.decode(failure, type=Failure).entry if failure is not None else None
    read: tuple[Event, ...] = ()
    if run.status is Status.FAILED and run.model != "operation":
        entries = (await session.caller_store.journals([run_id]))[run_id].entries
        # If the failure came from the code itself or from a deadline, no entry caused it, so all entries stay.
        kept = [one for one in entries if entry is None or one.seq < entry]
        kept_until = session.clock.now() + session.event_retention_us
        read = read_before(entries[len(kept) :], session.codec, kept_until)
        if run.version == version:
            await _retry_children(session, run_id, entries, kept, actor)
    is_late = run.deadline is not None and run.deadline <= session.clock.now()
    since = deadline_since(await session.caller_store.audit(run_id)) if is_late else None
    await session.coordinator.submit(
        ops.Retry(
            run_id=run_id,
            at=session.clock.now(),
            actor=actor,
            expected_version=version,
            deadline_since=since,
            from_entry=entry,
            events=read,
            with_parent=with_parent,
        )
    )


async def _retry_children(
    session: Session, run_id: str, entries: Sequence[Entry], kept: Sequence[Entry], actor: str
) -> None:
    """Retry the failed children that the run has started. The entries that started them stay in the journal. Without
    this retry, the run would get the same failures again.
    """
    started = started_before(kept, session.codec) - failed_before(kept, session.codec)
    if not started:
        return
    handed = failed_before(entries, session.codec)
    wanted = RunFilter(parent_id=run_id, statuses=(Status.FAILED,), limit=_PAGE)
    while found := await session.caller_store.list(wanted):
        await asyncio.gather(
            *[
                _retry_child(session, child.id, actor)
                for child in found
                if child.id in started and (child.bond != "detached" or child.id in handed)
            ]
        )
        wanted = replace(wanted, after=(found[-1].created_at, found[-1].id))


async def _retry_child(session: Session, run_id: str, actor: str) -> None:
    with suppress(RunNotFound, RunNotRetryable):  # Another caller has retried the child, or the child was removed.
        await _retry(session, run_id, None, actor, with_parent=True)


def deadline_at(deadline: datetime | Duration | None, now: int) -> int | None:
    """Return a deadline in the form in which it is stored. Raises InvalidArguments."""
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        due = from_datetime(deadline)
    else:
        due = now + span_of(deadline, "a deadline that is not a datetime") // timedelta(microseconds=1)
    if due > _LATEST:
        raise InvalidArguments(f"the deadline {deadline!r} is beyond the year 9999; leave it out for no deadline")
    return max(0, due)


__all__ = ["cancel_run", "deadline_at", "pause_run", "resume_run", "retry_run", "update_run"]
