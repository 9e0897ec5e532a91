"""Cancellation: the row that requests a cancellation, and the reasons why a run gives up.

A run checks for these reasons before and after each step. A step may also check for them itself. There are four
reasons. The run or a run above it was cancelled. One of its tokens was cancelled (token_cancellation.py). A run above
it rolls back. Or its deadline has passed (deadlines.py). A run that gives up rolls back (rollback.py). A strategy may
ignore reasons. notifications.py notifies the runs. perdure/kernel/rules/cancellation.py cancels functions and graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.lineages import Lineage, is_run
from perdure.models.cooperation.context import EXEMPT, Context
from perdure.models.cooperation.deadlines import (
    HAPPY_DEADLINE,
    ROLLBACK_DEADLINE,
    missed_deadline,
)
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import (
    CANCELLATION_REQUESTED,
    Failure,
    parent_said_so,
    placed,
)
from perdure.models.cooperation.message_events import ENDED, EventType, MessageEvent, state_of
from perdure.models.cooperation.moves import (
    OperationRun,
)


def cancel(
    lineage: Lineage, own: Sequence[MessageEvent], message_id: str, *, reason: str, source: str
) -> tuple[MessageEvent, ...]:
    """Return the row CANCELLATION_REQUESTED for a lineage. The runs of this lineage that have not ended give up at
    their next step boundary.

    `own` are the rows of exactly this lineage. Returns no rows if the run of the lineage has ended, or was cancelled
    before.
    """
    if any(row.type is EventType.CANCELLATION_REQUESTED for row in own):
        return ()
    if is_run(lineage) and state_of(own) in ENDED:
        return ()
    failure = Failure(type=CANCELLATION_REQUESTED, message=reason, source=source)
    row = MessageEvent(
        seq=0,  # The run's own writer does not write this row.
        message_id=message_id,
        type=EventType.CANCELLATION_REQUESTED,
        cooperation_lineage=lineage,
        exception=placed(failure, lineage[-1], 0),
    )
    return (row,)


def by_parent(run: OperationRun, rollback_request: MessageEvent) -> Failure:
    if rollback_request.coroutine_name is None and rollback_request.exception is not None:
        return rollback_request.exception  # The rollback was requested from outside, so there is no parent.
    return parent_said_so(rollback_request.exception, run.source)


def heeded(plan: Plan, run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Return the reasons to give up that the run's strategy does not ignore."""
    found = reasons(run, context, rolling_back=rolling_back)
    return tuple(plan.strategy.heeds(found)) if found else ()


def reasons(run: OperationRun, context: Context, *, rolling_back: bool) -> tuple[Failure, ...]:
    """Return the reasons why the run must give up. During a rollback, only a deadline is a reason."""
    if not context.values and run.rollback_request is None and not run.asks:
        return ()
    deadline = context.get(ROLLBACK_DEADLINE if rolling_back else HAPPY_DEADLINE)
    missed = (
        ()
        if deadline is None or run.now < deadline.at
        else (missed_deadline(deadline, run.source, rolling_back=rolling_back),)
    )
    if rolling_back:
        return missed
    exempt = context.get(EXEMPT) or 0
    asked = [
        ask.failure if ask.kind == "cancel" else parent_said_so(ask.failure, run.source)
        for ask in run.asks
        if ask.depth > exempt
    ]
    rollback = () if run.rollback_request is None else (by_parent(run, run.rollback_request),)
    return (*rollback, *asked, *missed)
