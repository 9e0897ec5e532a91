"""The engine's and the client's verbs for changing runs: cancel, retry, pause, resume, tags and deadlines."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure.coordinator.coordinator import Coordinator
from perdure.errors import InvalidArguments, IsOperation, RunNotFound
from perdure.handles import RunHandle
from perdure.kernel import ops
from perdure.kernel.records import Failure, Hold
from perdure.models.functions.checks import checked_remark, checked_tags, checked_text
from perdure.models.functions.context import from_datetime
from perdure.ports import Clock, Store
from perdure.views import RunView, run_view

_LATEST = from_datetime(datetime.max.replace(tzinfo=UTC))


class Controlling:
    """What whoever has these parts can do to runs, wherever they are: their owner does it, and answers."""

    _coordinator: Coordinator
    _store: Store
    _clock: Clock

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
        deadline: datetime | timedelta | msgspec.UnsetType | None = msgspec.UNSET,
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
        return done or await self.cancel_scope(id, reason=reason, actor=actor)

    async def cancel_scope(self, id: str, *, reason: str = "", actor: str = "api") -> bool:
        raise NotImplementedError

    async def retry(self, id: str, *, expected_version: int | None = None, actor: str = "api") -> RunHandle[Any]:
        """Run a failed run again: what it did before the entry whose failure ended it stays done.

        Raises RunNotFound, RunNotRetryable, and ConcurrentModification if it is not at `expected_version`.
        """
        self._check_open(to_start=True)
        checked_remark("", actor)
        stored = (await self._store.get([checked_text(id, "a run's id")])).get(id)
        if stored is None:
            raise RunNotFound(id)
        failure = stored.outcome.failure
        entry = msgspec.json.decode(failure, type=Failure).entry if failure is not None else None
        await self._coordinator.submit(
            ops.Retry(
                run_id=id,
                at=self._clock.now(),
                actor=actor,
                expected_version=stored.run.version if expected_version is None else expected_version,
                from_entry=entry,
            )
        )
        return self.handle(id)

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


def deadline_at(deadline: datetime | timedelta | None, now: int) -> int | None:
    """A deadline as it is stored. Raises InvalidArguments."""
    if deadline is None:
        return None
    if not isinstance(deadline, (datetime, timedelta)):
        raise InvalidArguments(f"a deadline is a datetime, or a timedelta from now, not {deadline!r}")
    if isinstance(deadline, timedelta):
        due = now + deadline // timedelta(microseconds=1)
    else:
        due = from_datetime(deadline)
    if due > _LATEST:
        raise InvalidArguments(f"the deadline {deadline!r} is beyond the year 9999; leave it out for none at all")
    return max(0, due)
