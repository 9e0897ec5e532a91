"""Holds of operations' runs. A hold says how the run can be ended without its code. This information comes from the
run's rows.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from msgspec.structs import replace

from perdure.coordinator.turns import in_turns
from perdure.errors import PerdureError, StoreError
from perdure.kernel import ops
from perdure.kernel.cooperation import read_version
from perdure.kernel.runs import Hold, Run
from perdure.models.common.host_parts import HostParts
from perdure.models.cooperation.cancellation import reasons
from perdure.models.cooperation.context import Context, ReadableKey, begun
from perdure.models.cooperation.deadlines import HAPPY_DEADLINE, ROLLBACK_DEADLINE, Deadline
from perdure.models.cooperation.failures import DEADLINE_MISSED, GAVE_UP, ROLLBACK_FAILED, Failure
from perdure.models.cooperation.message_events import ENDED, EventType, State, state_of
from perdure.models.cooperation.moves import OperationRun
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.strategies import Strategy
from perdure.models.cooperation.token_cancellation import read_scopes
from perdure.models.cooperation.versions import Operations
from perdure.ports import RunFilter

log = logging.getLogger("perdure")

_PAGE = 200
_ELSEWHERE = (EventType.EMITTED, EventType.ROLLBACK_EMITTED)  # the contexts of these rows belong to other runs


class Holds:
    """Holds runs of operations, and completes holds that were set without reading the run's rows."""

    def __init__(self, parts: HostParts, rows: RowCodec, operations: Operations) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._rows = rows
        self._enqueue = parts.coordinator.enqueue
        self._operations = operations

    def set(
        self,
        run_id: str,
        claim: int,
        reason: str,
        *,
        fingerprint: str = "",
        view: OperationRun | None = None,
        strategy: Strategy | None = None,
        is_staged: bool = False,
    ) -> None:
        """Hold a run. `view` has all rows of the run. Without a view, the rows are read once the run is held."""
        hold = Hold(kind="blocked", reason=reason, fingerprint=fingerprint, at=self._clock.now())
        if view is not None:
            hold = examined(hold, view, self._rows, strategy=strategy, is_staged=is_staged)
        self._enqueue(ops.SetHold(run_id=run_id, at=hold.at, hold=hold, claim=claim))

    def unreadable(self, run_id: str, claim: int, error: Exception) -> None:
        """Hold a run, because its rows are damaged."""
        log.error("run %s cannot be read", run_id, exc_info=error)
        self.set(run_id, claim, f"its rows cannot be read: {error}")

    async def examine(self, run: Run) -> None:
        """Complete a hold that was set without reading the run's rows. This happens if the run was paused or is poison.

        If the process dies before this is committed, `examine_left` completes the hold.
        """
        hold = run.hold
        if hold is None:
            return
        try:
            scopes = await read_scopes(self._store, self._rows, [run.id])
            journal = (await self._store.journals([run.id])).get(run.id)
        except Exception as error:  # noqa: BLE001 - a damaged row of one run must not affect other runs
            log.warning("what the held run %s may still do could not be read: %s", run.id, error)
            return
        if run.id not in scopes.runs:
            return
        hierarchy = await in_turns(scopes.hierarchy_in_pieces())
        new = scopes.runs[run.id]
        operation = self._operations.of(
            hierarchy.messages[new.message_id].topic,
            run.workflow,
            run.workflow_version,
            is_begun=any(row.seq for row in hierarchy.own(new.lineage)),
        )
        found = examined(
            hold,
            await in_turns(hierarchy.view_in_pieces(new, self._clock.now())),
            self._rows,
            strategy=None if operation is None else operation.strategy,
            is_staged=journal is not None and bool(journal.staged),
        )
        self._enqueue(ops.SetHold(run_id=run.id, at=self._clock.now(), hold=found, claim=run.claim, examined=True))

    async def examine_left(self) -> None:
        """Complete the holds that another process or an earlier version of Perdure left incomplete. Only runs whose
        code this engine has are examined."""
        try:
            for kind in ("blocked", "paused", "poison"):
                after: tuple[int, str] | None = None
                while page := await self._store.list(RunFilter(hold=kind, after=after, limit=_PAGE)):
                    for run in page:
                        if self._is_left(run):
                            await self.examine(run)
                    after = (page[-1].created_at, page[-1].id)
        except StoreError as error:
            log.warning("holds of operations could not be looked through: %s", error)

    def _is_left(self, run: Run) -> bool:
        if run.model != "operation" or run.hold is None or run.hold.next_seq or run.owner is not None:
            return False
        topic, _ = read_version(run.workflow_version)
        # The row does not say whether the run has begun. See `Operations.of`.
        return any(
            self._operations.of(topic, run.workflow, run.workflow_version, is_begun=is_begun) is not None
            for is_begun in (False, True)
        )


def examined(hold: Hold, view: OperationRun, rows: RowCodec, *, strategy: Strategy | None, is_staged: bool) -> Hold:
    """Return a hold, completed with facts from the run's rows. With these facts the run can be ended without its
    code.
    """
    state = state_of(view.events)
    if state in ENDED and state is not State.COMMITTED:
        return hold
    seq = max((row.seq for row in view.events), default=0) + 1
    quiet = (EventType.SEEN, EventType.CANCELLATION_REQUESTED)
    is_idle = not is_staged and all(row.type in quiet for row in view.events)
    context = _context_of(view)
    is_undoing = state is State.ROLLING_BACK
    is_asked = False
    with suppress(PerdureError):
        found = () if is_undoing else reasons(view, context, rolling_back=False)
        is_asked = bool(found if strategy is None else strategy.heeds(found))
    missed = f"it was held, and was not undone by the deadline of its rollback: {hold.reason}"
    gave_up = Failure(type=GAVE_UP, message=f"it was to give up while it was held: {hold.reason}", source=view.source)
    return replace(
        hold,
        next_seq=seq,
        idle_seq=seq if is_idle else 0,
        is_undoing=is_undoing,
        failure=rows.failure(gave_up),
        missed=rows.failure(Failure(type=ROLLBACK_FAILED, message=missed, source=view.source)),
        give_up_by=_time_of(context, HAPPY_DEADLINE, strategy),
        undone_by=_time_of(context, ROLLBACK_DEADLINE, strategy),
        asked=is_asked,
    )


def _context_of(view: OperationRun) -> Context:
    context = begun(view.origin.context)
    for row in view.events:
        if row.context is not None and row.type not in _ELSEWHERE:
            context = row.context
    rollback_request = view.rollback_request
    is_unanswered = rollback_request is not None and all(row.type is not EventType.ROLLING_BACK for row in view.events)
    if rollback_request is None or rollback_request.context is None or not is_unanswered:
        return context
    with suppress(PerdureError):
        return context.plus(rollback_request.context)
    return context


def _time_of(context: Context, key: ReadableKey[Deadline], strategy: Strategy | None) -> int:
    """Return the time of a deadline, or 0 if no deadline counts."""
    with suppress(PerdureError):
        deadline = context.get(key)
        if deadline is None:
            return 0
        missed = (Failure(type=DEADLINE_MISSED, message=""),)
        return deadline.at if strategy is None or strategy.heeds(missed) else 0
    return 0
