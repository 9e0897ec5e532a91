"""Holds of operations' runs: what can be done with a run while its code must not run, found out from its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from perdure.coordinator.turns import in_turns
from perdure.errors import PerdureError, StoreError
from perdure.kernel import ops
from perdure.kernel.records import Hold, Run
from perdure.models.cooperation.context import HAPPY_DEADLINE, ROLLBACK_DEADLINE, Context, Deadline, ReadableKey, begun
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.events import ENDED, EventType, State, state_of
from perdure.models.cooperation.failures import DEADLINE_MISSED, GAVE_UP, ROLLBACK_FAILED, Failure
from perdure.models.cooperation.moves import OperationRun
from perdure.models.cooperation.rows import RowCodec
from perdure.models.cooperation.rules import reasons
from perdure.models.cooperation.strategies import Strategy
from perdure.models.cooperation.tokens import read_scopes
from perdure.ports import Clock, RunFilter, Store

log = logging.getLogger("perdure")

_PAGE = 200
_ELSEWHERE = (EventType.EMITTED, EventType.ROLLBACK_EMITTED)  # Their context is that of other runs.


class Holds:
    """Sets runs of operations aside, and completes holds that others have made."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        rows: RowCodec,
        enqueue: Callable[[ops.Op], None],
        operation: Callable[[str, str], Operation[object] | None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._rows = rows
        self._owe = enqueue
        self._operation = operation

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
        """Hold a run. `view` has all of its rows; without one they are read once it is held."""
        hold = Hold(kind="blocked", reason=reason, fingerprint=fingerprint, at=self._clock.now())
        if view is not None:
            hold = examined(hold, view, self._rows, strategy=strategy, is_staged=is_staged)
        self._owe(ops.SetHold(run_id=run_id, at=hold.at, hold=hold, claim=claim))

    def unreadable(self, run_id: str, claim: int, error: Exception) -> None:
        """Hold a run whose rows are damaged."""
        log.error("run %s cannot be read", run_id, exc_info=error)
        self.set(run_id, claim, f"its rows cannot be read: {error}")

    async def examine(self, run: Run) -> None:
        """Complete a hold that was made without a look at the run's rows: of a run that was paused, or is poison. What
        a crash before this is committed leaves is completed by `examine_left`."""
        hold = run.hold
        if hold is None:
            return
        try:
            scopes = await read_scopes(self._store, self._rows, [run.id])
            journal = (await self._store.journals([run.id])).get(run.id)
        except Exception as error:  # noqa: BLE001 - a damaged row of one run is no reason to leave the others
            log.warning("what the held run %s may still do could not be read: %s", run.id, error)
            return
        if run.id not in scopes.runs:
            return
        hierarchy = await in_turns(scopes.hierarchy_in_pieces())
        new = scopes.runs[run.id]
        operation = self._operation(hierarchy.messages[new.message_id].topic, run.workflow)
        found = examined(
            hold,
            await in_turns(hierarchy.view_in_pieces(new, self._clock.now())),
            self._rows,
            strategy=None if operation is None else operation.strategy,
            is_staged=journal is not None and bool(journal.staged),
        )
        self._owe(ops.SetHold(run_id=run.id, at=self._clock.now(), hold=found, claim=run.claim, examined=True))

    async def examine_left(self) -> None:
        """Complete holds of runs whose code is here that a process, or an earlier version of Perdure, left as they
        were."""
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
        is_here = run.model == "operation" and self._operation(run.workflow_version, run.workflow) is not None
        return is_here and run.hold is not None and not run.hold.next_seq and run.owner is None


def examined(hold: Hold, view: OperationRun, rows: RowCodec, *, strategy: Strategy | None, is_staged: bool) -> Hold:
    """A hold that knows what the run's rows say: with it the run can be ended without its code."""
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
    told = view.told
    is_told = told is not None and all(row.type is not EventType.ROLLING_BACK for row in view.events)
    if told is None or told.context is None or not is_told:
        return context
    with suppress(PerdureError):
        return context.plus(told.context)
    return context


def _time_of(context: Context, key: ReadableKey[Deadline], strategy: Strategy | None) -> int:
    """When a deadline passes, 0 if there is none that counts."""
    with suppress(PerdureError):
        deadline = context.get(key)
        if deadline is None:
            return 0
        missed = (Failure(type=DEADLINE_MISSED, message=""),)
        return deadline.at if strategy is None or strategy.heeds(missed) else 0
    return 0
