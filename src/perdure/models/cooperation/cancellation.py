"""Cancellation by token: the runs that were given a cancelled token, and their notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from perdure.coordinator.turns import in_turns
from perdure.kernel import ops
from perdure.kernel.cooperation import depth_of
from perdure.kernel.operation_notices import ASK
from perdure.kernel.status import Status
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.emissions import GIVEN
from perdure.models.cooperation.failures import Failure, gave_up
from perdure.models.cooperation.live import ChildReport
from perdure.models.cooperation.message_events import State
from perdure.models.cooperation.moves import Ask, OperationRun
from perdure.models.cooperation.notifications import Notifications
from perdure.models.cooperation.rows import RowCodec, outcome_failure
from perdure.models.cooperation.tokens import read_scopes
from perdure.ports import RunFilter, Store

_FORWARD: Final = (Status.CREATED, Status.RUNNING, Status.SUSPENDED)
_PAGE: Final = 200  # runs that are notified in one commit


def asking(
    notifications: Notifications,
    view: OperationRun,
    status: str,
    failure: Failure,
    depth: int,
    now: int,
    actor: str,
) -> ops.Notify:
    """Return the notification that has a run give up for a `failure`.

    `depth` is that of the lineage that the request was made to. A run that no engine has taken never begins.
    """
    run_id = view.lineage[-1]
    about = notifications.write_ask(Ask(kind="cancel", depth=depth, failure=failure))
    failure = gave_up((failure,), view.source)
    if status != Status.CREATED:
        call_failure = outcome_failure(failure)
        return ops.Notify(run_id=run_id, at=now, actor=actor, kind=ASK, about=about, call_failure=call_failure)
    return ops.Notify(
        run_id=run_id,
        at=now,
        actor=actor,
        kind=ASK,
        about=about,
        refusal=notifications.refused(replace(view, rollback_request=None), failure, now),
        failure=outcome_failure(failure),
        answer=notifications.write_report(ChildReport(run_id, State.ROLLED_BACK, failure)),
        parent_id=view.lineage[-2],
    )


class TokenMembers:
    """Finds runs whose tokens are cancelled.

    A run that inherits a token from the run that emitted its message is notified by that run. So only runs that were
    given a token with their message are searched for: they have a tag.
    """

    def __init__(self, store: Store, rows: RowCodec, notifications: Notifications) -> None:
        self._store = store
        self._rows = rows
        self._notifications = notifications

    async def found(self, op: ops.NotifyMembers, now: int) -> ops.NotifyMembers:
        """Return the op, with notifications for the next page of runs if the token is cancelled. Raises StoreError."""
        if not await self._store.events_at([(op.run_id, 0)]):
            return op
        wanted = RunFilter(
            tags={CancellationToken(op.token).tag: GIVEN}, statuses=_FORWARD, after=op.after, limit=_PAGE
        )
        page = await self._store.list(wanted)
        notices = await self.notices_for([run.id for run in page], now, op.actor)
        rest = (page[-1].created_at, page[-1].id) if len(page) == _PAGE else None
        return replace(op, at=now, notices=notices, rest=rest)

    async def ids(self, token: CancellationToken) -> list[str]:
        """Return all runs that were given a token and have not ended. Raises StoreError."""
        wanted = RunFilter(tags={token.tag: GIVEN}, statuses=_FORWARD, limit=_PAGE)
        ids: list[str] = []
        while page := await self._store.list(wanted):
            ids += [run.id for run in page]
            wanted = replace(wanted, after=(page[-1].created_at, page[-1].id))
        return ids

    async def notices_for(self, run_ids: Sequence[str], now: int, actor: str) -> tuple[ops.Notify, ...]:
        """Return notifications for those of these runs that have a cancelled token. Raises StoreError."""
        if not run_ids:
            return ()
        scopes = await read_scopes(self._store, self._rows, run_ids)
        hierarchy = await in_turns(scopes.hierarchy_in_pieces())
        notices: list[ops.Notify] = []
        for run_id in run_ids:
            run = scopes.runs.get(run_id)
            if run is None or scopes.statuses[run_id] not in _FORWARD:
                continue
            cancelled = next(iter(hierarchy.cancelled_tokens(run)), None)
            if cancelled is not None:
                view = await in_turns(hierarchy.view_in_pieces(run, now))
                depth = depth_of(run.lineage)
                notices.append(
                    asking(self._notifications, view, scopes.statuses[run_id], cancelled.failure, depth, now, actor)
                )
        return tuple(notices)


__all__ = ["TokenMembers", "asking"]
