"""A check of which runs can go on. The result is computed again from all rows of messages and their events. Then it is
compared with the state that engines have stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.errors import InvariantViolated
from perdure.kernel.lineages import read_origin
from perdure.kernel.status import Status
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.message_events import State, check_rows, state_of
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.models.cooperation.token_cancellation import add_cancellations
from perdure.ports import Codec, PlainCodec, RunFilter, Store
from perdure.testing.ready_runs import ready
from perdure.values.arguments import checked

_PAGE = 200

_STATUSES = {
    State.CREATED: {Status.CREATED, Status.RUNNING},  # A run that is claimed is running before its SEEN row is written.
    State.DISMISSED: {Status.CANCELLED},
    State.ACTIVE: {Status.RUNNING, Status.SUSPENDED},
    State.COMMITTED: {Status.SUCCEEDED, Status.ROLLING_BACK},
    State.ROLLING_BACK: {Status.ROLLING_BACK},
    State.ROLLED_BACK: {Status.ROLLED_BACK},
    State.ROLLBACK_FAILED: {Status.ROLLBACK_FAILED},
}


@checked
async def assert_readiness_agrees(
    store: Store, operations: Iterable[Operation[Any]], *, now: int, codec: Codec | None = None, at_rest: bool = True
) -> int:
    """Assert that all stored hierarchies are sound, and return the number of runs.

    Rows that must be unique are unique, and the status of each run agrees with its rows. With `at_rest`, also assert
    that no run can go on according to its rows. In this case, call this only when the engines with these operations
    have no work left. Raises InvariantViolated.
    """
    known = {operation.name: operation.strategy for operation in operations}
    roots: dict[str, None] = {}
    held: set[str] = set()
    after: tuple[int, str] | None = None
    count = 0
    while page := await store.list(RunFilter(after=after, limit=_PAGE)):
        for run in page:
            if run.model == "operation":
                count += 1
                roots[read_origin(run.origin)[1][0]] = None
                held |= {run.id} if run.hold is not None else set()
        after = (page[-1].created_at, page[-1].id)
    wrong: list[str] = []
    for root in roots:
        rows = RowCodec(codec or PlainCodec())
        scopes = rows.read(await store.hierarchy(root))
        await add_cancellations(scopes, store, rows)
        check_rows(scopes.events)
        wrong += _problems(scopes)
        if at_rest:
            expected: dict[str, list[str]] = {}
            runs = {(run.message_id, run.handler): run.id for run in scopes.runs.values()}
            for message_id, handler in runs:
                expected.setdefault(message_id, []).append(handler)
            found = ready(scopes.messages, scopes.events, expected=expected, strategies=known, now=now)
            wrong += [
                f"run {runs[pair]!r} of {pair[1]!r} can go on, and does not"
                for pair in sorted(found)
                if pair[1] in known and runs[pair] not in held
            ]
    if wrong:
        raise InvariantViolated("\n".join(wrong))
    return count


def _problems(scopes: StoredScopes) -> Iterable[str]:
    hierarchy = scopes.hierarchy()
    for run in scopes.runs.values():
        if run.is_call:
            continue  # The run has no rows of its own.
        state, status = state_of(hierarchy.own(run.lineage)), Status(scopes.statuses[run.id])
        if status not in _STATUSES[state]:
            yield f"run {run.id!r} of {run.handler!r} is {status}, but by its rows {state}"


__all__ = ["assert_readiness_agrees"]
