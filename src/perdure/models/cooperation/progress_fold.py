"""The fold of a run's rows: it computes the run's progress. It is pure, so the result is the same in a live run and
after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from perdure.models.cooperation.context import EMPTY
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import EventType, MessageEvent, State, is_dismissal
from perdure.models.cooperation.next_steps import following, iteration_of
from perdure.models.cooperation.progress import Instance, Mismatch, Phase, Progress, Window
from perdure.models.cooperation.rollback import phases_of

_ENDS: Final = {
    EventType.SEEN: State.ACTIVE,
    EventType.COMMITTED: State.COMMITTED,
    EventType.ROLLED_BACK: State.ROLLED_BACK,
    EventType.ROLLBACK_FAILED: State.ROLLBACK_FAILED,
}


def fold(plan: Plan, events: Sequence[MessageEvent]) -> Progress:
    """Return the progress of a run with these rows. Raises Mismatch."""
    folding = Folding(plan)
    for row in events:
        folding.add(row)
    return folding.progress()


class Folding:
    """A fold to which rows are added one by one. So the rows of a run with many steps are not folded again for each new
    row.
    """

    __slots__ = (
        "_context", "_done", "_emitted", "_instances", "_last_seq", "_misfit", "_phases", "_plan", "_progress",
        "_recorded", "_rollback", "_state", "_undone", "_window",
    )  # fmt: skip

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._instances: list[Instance] = []
        self._emitted: list[str] = []
        self._undone: list[str] = []
        self._window: Window | None = None
        self._context = EMPTY
        self._rollback: MessageEvent | None = None
        self._phases: tuple[Phase, ...] = ()
        self._done = 0
        self._recorded: list[Failure] = []
        self._last_seq = 0
        self._state = State.CREATED
        self._misfit = ""
        self._progress: Progress | None = None

    def add(self, row: MessageEvent) -> None:
        """Add the next row of the lineage. Raises Mismatch."""
        self._progress = None
        if row.seq > self._last_seq:
            self._last_seq = row.seq
        kind = row.type
        if kind is EventType.EMITTED:
            self._emitted.append(row.message_id)
            return
        if kind is EventType.ROLLBACK_EMITTED:
            self._undone.append(row.message_id)
            return
        if kind is EventType.SUSPENDED:
            self._suspended(row)
        elif kind is EventType.ROLLING_BACK:
            self._rollback = row
            self._phases = phases_of(self._plan, self._instances)  # A rollback adds no instances.
            self._window = None
            self._emitted, self._undone = [], []
            self._state = State.ROLLING_BACK
        elif kind in _ENDS:
            self._state = _ENDS[kind]
        elif is_dismissal(row):
            self._state = State.DISMISSED
        if row.context is not None:
            self._context = row.context

    def _suspended(self, row: MessageEvent) -> None:
        call = row.child_failure_handler_iteration
        if self._rollback is None:
            instance = _instance(self._plan, row, self._instances, tuple(self._emitted))
            if call is None and not self._misfit:
                self._misfit = _misfit(self._plan, self._instances, instance.index)
            self._instances.append(instance)
        else:
            self._done += call is None
            if row.exception is not None:
                self._recorded.append(row.exception)
        self._window = Window(
            emitted=tuple(self._emitted),
            undone=tuple(self._undone),
            calls=0 if call is None else call + 1,
            since=row.created_at,
            step=row.step or "",
        )
        self._emitted, self._undone = [], []

    def progress(self) -> Progress:
        if self._progress is None:
            self._progress = Progress(
                instances=tuple(self._instances),
                window=self._window,
                context=self._context,
                rollback=self._rollback,
                phases=self._phases,
                done=self._done,
                recorded=tuple(self._recorded),
                next_seq=self._last_seq + 1,
                state=self._state,
                misfit=self._misfit,
            )
        return self._progress


def _instance(plan: Plan, row: MessageEvent, before: Sequence[Instance], emitted: tuple[str, ...]) -> Instance:
    try:
        index = plan.index_of(row.step or "")
    except LookupError:
        raise Mismatch(
            f"operation {plan.handler!r} has no step {row.step!r} any more, which this run has executed"
        ) from None
    call = row.child_failure_handler_iteration
    return Instance(
        index=index,
        name=row.step or "",
        iteration=before[-1].iteration if call is not None else iteration_of(plan, before, index),
        call=call,
        emitted=emitted,
        next_step=_next_step(plan, row),
        is_numbered=row.next_step is not None and not row.next_name,
    )


def _next_step(plan: Plan, row: MessageEvent) -> int | None:
    """Return the index in the plan at which the run goes on after a step. Raises Mismatch."""
    if row.next_step is None:
        return None
    if not row.next_name:
        return row.next_step
    try:
        return plan.index_of(row.next_name)
    except LookupError:
        raise Mismatch(
            f"this run is to go on with step {row.next_name!r} after {row.step!r}, which operation {plan.handler!r} "
            f"does not have any more; it has {_listed(node.name for node in plan.nodes)}"
        ) from None


def _misfit(plan: Plan, before: Sequence[Instance], index: int) -> str:
    """Return how the order of the executed steps differs from the code. Return "" if it does not differ."""
    for one in before[-2:]:
        if one.is_numbered:
            return ""  # The meaning of the number is not known. The following rows show which step came next.
    expected = following(plan, before)
    if expected == index:
        return ""
    executed = [one.name for one in before if one.call is None]
    after = f"after {executed[-1]!r}" if executed else "first"
    comes = repr(plan.nodes[expected].name) if expected < len(plan.nodes) else "the end"
    return (
        f"{after} this run has executed {plan.nodes[index].name!r}, and in operation {plan.handler!r} comes {comes}; "
        f"the run executed {_listed([*executed, plan.nodes[index].name])}, and the code has "
        f"{_listed(node.name for node in plan.nodes)}"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
