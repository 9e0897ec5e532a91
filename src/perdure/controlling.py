"""The engine's and the client's verbs for changing runs: cancel, retry, pause, resume, tags and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.arguments import Duration, checked, span_of
from perdure.coordinator.coordinator import Coordinator
from perdure.errors import ConcurrentModification, InvalidArguments, IsOperation, RunNotFound, RunNotRetryable
from perdure.handles import RunHandle
from perdure.kernel import ops
from perdure.kernel.records import Entry, Event, Failure, Hold
from perdure.kernel.status import Status
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.models.functions.context import from_datetime
from perdure.models.functions.waiting import failed_before, read_before, started_before
from perdure.ports import Clock, Codec, RunFilter, Store, StoredRun
from perdure.views import RunView, run_view

_PAGE: Final = 500  # children that are retried at once
_LATEST = from_datetime(datetime.max.replace(tzinfo=UTC))


@checked
class Controlling:
    """What whoever has these parts can do to runs, wherever they are: their owner does it, and answers."""

    _coordinator: Coordinator
    _patient_store: Store
    _clock: Clock
    _codec: Codec
    _event_retention: timedelta

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    def handle(self, id: str) -> RunHandle[Any]:
        raise NotImplementedError

    async def update(
        self,
        id: str,
        *,
        expected_version: int | None = None,
        tags: Mapping[str, str] | None = None,
        deadline: datetime | Duration | msgspec.UnsetType | None = msgspec.UNSET,
        actor: str = "api",
    ) -> RunView:
        """Replace a run's tags or deadline. Raises ConcurrentModification if it is not at `expected_version`."""
        self._check_open()
        checked_remark("", actor)
        now = self._clock.now()
        run = await self._coordinator.submit(
            ops.Update(
                run_id=checked_text(id, "a run's id"),
                at=now,
                actor=actor,
                expected_version=expected_version,
                tags=msgspec.UNSET if tags is None else checked_tags(tags),
                deadline=msgspec.UNSET if deadline is msgspec.UNSET else deadline_at(deadline, now),
            )
        )
        return run_view(run)

    async def cancel(
        self, id: str, *, expected_version: int | None = None, reason: str = "", actor: str = "api"
    ) -> bool:
        """End a run as cancelled: running steps are cancelled, late results dropped, its code sees nothing.

        Once this has returned True, no further step begins, of the run or of a run below it, on other engines too; but
        for compensations. A hierarchy that a function has emitted gives up when the function's compensations say so.
        A run of an operation, and all below it, give up at their next step boundary, and roll back; `id` may also be
        that of a root emission. False if it has ended already or does not exist. Raises ConcurrentModification if it is
        not at `expected_version`.
        """
        self._check_open()
        checked_text(id, "a run's id")
        checked_remark(reason, actor)
        failure = Failure(type="perdure.errors:RunCancelled", message=reason or "cancelled")
        done = False
        with suppress(IsOperation):
            done = await self._coordinator.submit(
                ops.Cancel(
                    run_id=id,
                    at=self._clock.now(),
                    actor=actor,
                    reason=reason,
                    failure=msgspec.json.encode(failure).decode(),
                    expected_version=expected_version,
                )
            )
        if not done:
            return await self.cancel_scope(id, reason=reason, actor=actor)
        await self.fence_children(id)
        return True

    async def fence_children(self, id: str) -> None:
        raise NotImplementedError

    async def cancel_scope(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        raise NotImplementedError

    async def retry(self, id: str, *, expected_version: int | None = None, actor: str = "api") -> RunHandle[Any]:
        """Run a failed run again: what it did before the entry whose failure ended it stays done.

        The rest happens again. Events that it had read are there to be read again, in order; a timeout that ended the
        run, and a deadline that has passed, begin anew. Children that it had started, that have failed, and whose
        failures it had not dealt with, are retried before it; if the process dies in between, retry it again.
        A run that somebody else retries at the same time is retried once, and both are given its handle.

        Raises RunNotFound, RunNotRetryable, and ConcurrentModification if it is not at `expected_version`.
        """
        self._check_open(to_start=True)
        checked_remark("", actor)
        await self._retry(checked_text(id, "a run's id"), expected_version, actor)
        return self.handle(id)

    async def _retry(self, id: str, expected_version: int | None, actor: str, *, with_parent: bool = False) -> None:
        """Retry a run as it is stored. If it has changed when that is decided, look again, unless the caller said which
        version it is to be."""
        stored = await self._read_to_retry(id)
        while True:
            try:
                await self._retry_as(stored, expected_version, actor, with_parent=with_parent)
            except (ConcurrentModification, RunNotRetryable):
                was, stored = stored.run, await self._read_to_retry(id)
                is_same = stored.run.version == was.version
                if expected_version is not None or was.status is not Status.FAILED or is_same:
                    raise
                if stored.run.attempt == was.attempt:
                    continue
            return  # Or somebody else has retried it meanwhile.

    async def _read_to_retry(self, id: str) -> StoredRun:
        stored = (await self._patient_store.get([id])).get(id)
        if stored is None:
            raise RunNotFound(id)
        return stored

    async def _retry_as(
        self, stored: StoredRun, expected_version: int | None, actor: str, *, with_parent: bool
    ) -> None:
        run, id = stored.run, stored.run.id
        version = run.version if expected_version is None else expected_version
        failure = stored.outcome.failure
        entry = msgspec.json.decode(failure, type=Failure).entry if failure is not None else None
        read: tuple[Event, ...] = ()
        if run.status is Status.FAILED and run.model != "operation":
            entries = (await self._patient_store.journals([id]))[id].entries
            # Code that raised by itself, and a deadline, belong to no entry: all of them stay.
            kept = [one for one in entries if entry is None or one.seq < entry]
            kept_until = self._clock.now() + self._event_retention // timedelta(microseconds=1)
            read = read_before(entries[len(kept) :], self._codec, kept_until)
            if run.version == version:
                await self._retry_children(id, entries, kept, actor)
        await self._coordinator.submit(
            ops.Retry(
                run_id=id,
                at=self._clock.now(),
                actor=actor,
                expected_version=version,
                from_entry=entry,
                events=read,
                with_parent=with_parent,
            )
        )

    async def _retry_children(self, id: str, entries: Sequence[Entry], kept: Sequence[Entry], actor: str) -> None:
        """The entries by which the run has started its children stay: it would be handed their failures again."""
        started = started_before(kept, self._codec) - failed_before(kept, self._codec)
        if not started:
            return
        handed = failed_before(entries, self._codec)
        wanted = RunFilter(parent_id=id, statuses=(Status.FAILED,), limit=_PAGE)
        while found := await self._patient_store.list(wanted):
            await asyncio.gather(
                *[
                    self._retry_child(child.id, actor)
                    for child in found
                    if child.id in started and (child.bond != "detached" or child.id in handed)
                ]
            )
            wanted = replace(wanted, after=(found[-1].created_at, found[-1].id))

    async def _retry_child(self, id: str, actor: str) -> None:
        with suppress(RunNotFound, RunNotRetryable):  # Somebody else has, or has removed it.
            await self._retry(id, None, actor, with_parent=True)

    async def pause(
        self, id: str, *, expected_version: int | None = None, reason: str = "", actor: str = "api"
    ) -> bool:
        """Set a run aside until `resume`. Its running steps are cancelled and run again then. False if it is held.
        Raises RunNotFound, RunFinished, and ConcurrentModification if it is not at `expected_version`."""
        self._check_open()
        checked_text(id, "a run's id")
        checked_remark(reason, actor)
        hold = Hold(kind="paused", reason=reason or "paused", at=self._clock.now())
        held: bool = await self._coordinator.submit(
            ops.SetHold(run_id=id, at=hold.at, actor=actor, hold=hold, expected_version=expected_version)
        )
        return held

    async def resume(self, id: str, *, expected_version: int | None = None, actor: str = "api") -> bool:
        """Lift a run's hold, whatever its kind, and go on. False if it is not held. Raises RunNotFound, and
        ConcurrentModification if it is not at `expected_version`."""
        self._check_open(to_start=True)
        checked_remark("", actor)
        lifted: bool = await self._coordinator.submit(
            ops.Resume(
                run_id=checked_text(id, "a run's id"),
                at=self._clock.now(),
                actor=actor,
                expected_version=expected_version,
            )
        )
        return lifted


def deadline_at(deadline: datetime | Duration | None, now: int) -> int | None:
    """A deadline as it is stored. Raises InvalidArguments."""
    if deadline is None:
        return None
    if isinstance(deadline, datetime):
        due = from_datetime(deadline)
    else:
        due = now + span_of(deadline, "a deadline, if it is no datetime,") // timedelta(microseconds=1)
    if due > _LATEST:
        raise InvalidArguments(f"the deadline {deadline!r} is beyond the year 9999; leave it out for none at all")
    return max(0, due)
