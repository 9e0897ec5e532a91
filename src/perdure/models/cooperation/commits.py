"""Commits of drafts: a draft becomes an op for the coordinator. The reply of the coordinator decides how the run goes
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from perdure.errors import AskedMeanwhile, HandlersChanged, StoreError
from perdure.kernel import ops
from perdure.models.cooperation.drafts import Drafts, Making
from perdure.models.cooperation.live_run import Draft, LiveOperation
from perdure.models.cooperation.operation_parts import OperationParts
from perdure.models.cooperation.run_reader import RunReader
from perdure.models.cooperation.turns import Turns
from perdure.models.cooperation.unwritten_outcomes import Landings
from perdure.models.cooperation.waits import awaited, stored_waits

log = logging.getLogger("perdure")


class CommitListener(Protocol):
    """Goes on with runs whose drafts were committed, or must be made again."""

    def committed(self, live: LiveOperation, draft: Draft) -> None:
        """Go on after a commit."""
        ...

    def go_on(self, live: LiveOperation) -> None:
        """Make a new draft."""
        ...


class Commits:
    """Commits drafts. If the coordinator refuses a draft because the store has changed, the draft is made again."""

    def __init__(
        self,
        parts: OperationParts,
        *,
        reader: RunReader,
        landings: Landings,
        drafts: Drafts,
        turns: Turns,
        listener: CommitListener,
    ) -> None:
        self._clock = parts.engine.clock
        self._lookup = parts.engine.coordinator.loaded
        self._request = parts.engine.coordinator.request
        self._registry = parts.registry
        self._runner = parts.runner
        self._runs = parts.runs
        self._blame = parts.blame
        self._background = parts.background
        self._mail = parts.mail
        self._reader = reader
        self._landings = landings
        self._drafts = drafts
        self._turns = turns
        self._listener = listener
        self._landed: list[tuple[LiveOperation, Draft]] = []  # drafts that were just committed: see `proceed`

    def write(
        self, live: LiveOperation, draft: Draft, *, is_loaded: bool = False, again: Callable[[], None] | None = None
    ) -> Making:
        """Commit a draft. If the draft must be made again, call `again`. The default of `again` lets the run go on from
        its rows.
        """
        run = self._lookup(live.id)
        if run is None or run.claim != live.claim:
            return None  # Another engine has taken the run, and this engine is about to drop it.
        draft.asked, notified = live.asked, live.notified
        waits, gone = stored_waits(live, run, draft, is_loaded=is_loaded)
        is_same = draft.status is run.status and not (draft.rows or draft.notices or draft.runs or waits or gone)
        if is_same:
            if live.is_drafting:
                yield from self._drafts.take_in(live)
            return partial(self._listener.committed, live, draft)
        now = self._clock.now()
        added = yield from self._runner.added(draft, now)
        starts: tuple[ops.Start, ...] = ()
        members: tuple[ops.NotifyMembers, ...] = ()
        if draft.runs:
            starts = yield from self._runner.emitter.starts(draft, run.tags, now, live.plan.strategy)
            members = yield from self._runner.emitter.members(draft, now)
            draft.has_members = bool(members)
        op = ops.Cooperate(
            run_id=live.id,
            at=now,
            claim=live.claim,
            cause=draft.cause,
            status=draft.status,
            added=added,
            starts=starts,
            notices=draft.notices,
            members=members,
            waits=waits,
            waits_dropped=gone,
            outcome=self._runner.outcome(draft),
            notified=-1 if live.is_stale else notified,
            awaits=awaited(live, draft),
            is_undone=live.rollback_request is not None,
            has_waited=live.has_waited,
            workflow_version=live.operation.stored_version if live.operation.version and draft.begins else "",
        )
        if live.is_drafting:
            yield from self._drafts.take_in(live)
        live.in_commit = True
        if draft.rows:
            self._blame.forget(live.id)
        if draft.began:
            self._runs.expect(draft.began)
        self._request(op, partial(self._answered, live, draft, again))
        return None

    def proceed(self) -> None:
        """Go on with the runs whose drafts were committed.

        Call this after all effects of the commit were performed. By then, a run that the same commit has notified has
        received the notification. So the run begins no step after it was asked to give up.
        """
        landed, self._landed = self._landed, []
        for live, draft in landed:
            live.in_commit = False
            try:
                self._listener.committed(live, draft)
            except Exception:
                log.exception("run %s could not go on", live.id)

    def _answered(
        self,
        live: LiveOperation,
        draft: Draft,
        again: Callable[[], None] | None,
        is_written: bool | None,
        error: BaseException | None,
    ) -> None:
        if is_written and not live.is_closed:
            draft.apply(live)
            self._runner.notifications.failures.note(draft.own)
            if draft.has_members:
                self._background.start(self._mail.try_to_read_mail())
            self._landed.append((live, draft))
            return
        live.forget()
        for began in draft.began:
            self._runs.expected.pop(began.id, None)
        if live.is_closed:
            return
        if isinstance(error, HandlersChanged):
            self._background.start(self._write_again(live, again))
        elif isinstance(error, AskedMeanwhile):
            live.in_commit = False
            self._landings.land_later(live, again or partial(self._listener.go_on, live))
            self._reader.read_anew(live)

    async def _write_again(self, live: LiveOperation, again: Callable[[], None] | None) -> None:
        """The registry has changed: read it, and make the draft again with the new version of the registry."""
        while not live.is_closed:
            try:
                await self._registry.load(again=True)
            except StoreError as error:
                self._reader.outage.failed("the handlers could not be read and are tried again", error)
                await asyncio.sleep(0.1)
            else:
                break
        # The change may affect many runs. All these runs come here at the same time.
        self._turns.soon(live, partial(self._once_more, live, again or partial(self._listener.go_on, live)))

    def _once_more(self, live: LiveOperation, go_on: Callable[[], None]) -> None:
        live.in_commit = False
        if live.is_closed:
            return
        if live.is_stale:
            self._landings.land_later(live, go_on)
        else:
            go_on()


__all__ = ["CommitListener", "Commits"]
