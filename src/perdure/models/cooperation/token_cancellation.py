"""Cancellation by token: the row that cancels a token, and the runs that have the token.

The row is a CANCELLATION_REQUESTED row of `message_event`. Its scope is the id of the token. A run has the tokens in
the context with which its message was emitted. When a run is read from the store, it is checked whether its tokens are
cancelled. A run that got a token with its message is read after the commit that created it, before it begins. The
search for runs to notify comes after the commit that cancels the token. So either the run finds the cancellation, or
the search finds the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from perdure.coordinator.turns import in_turns
from perdure.kernel import ops
from perdure.kernel.lineages import depth_of
from perdure.kernel.status import Status
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.failures import CANCELLATION_REQUESTED, Failure, placed
from perdure.models.cooperation.handler_runs import GIVEN
from perdure.models.cooperation.message_events import EventType, MessageEvent
from perdure.models.cooperation.notifications import Notifications, asking
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.ports import RunFilter, Store

_FORWARD: Final = (Status.CREATED, Status.RUNNING, Status.SUSPENDED)
_SEQ: Final = 0  # the number of every CANCELLATION_REQUESTED row
_PAGE: Final = 200  # how many runs are notified in one commit


class TokenMembers:
    """Finds runs whose tokens are cancelled.

    If a run inherits a token from its emitter, the emitter notifies the run. So the search looks only for runs that got
    a token with their message. These runs have a tag.
    """

    def __init__(self, store: Store, rows: RowCodec, notifications: Notifications) -> None:
        self._store = store
        self._rows = rows
        self._notifications = notifications

    async def found(self, op: ops.NotifyMembers, now: int) -> ops.NotifyMembers:
        """Return the op. If the token is cancelled, the op has notifications for the next page of runs. Raises
        StoreError.
        """
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
        """Return all runs that got a token with their message and have not ended. Raises StoreError."""
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


def cancellation(token: CancellationToken, *, reason: str, source: str) -> MessageEvent:
    """Return the row that cancels a token. A token has at most one row of this kind, so the first cancellation
    counts.
    """
    message = f"token {token.name!r} was cancelled" + (f": {reason}" if reason else "")
    failure = Failure(type=CANCELLATION_REQUESTED, message=message, source=source)
    return MessageEvent(
        seq=_SEQ,
        message_id=token.scope,
        type=EventType.CANCELLATION_REQUESTED,
        cooperation_lineage=(token.scope,),
        exception=placed(failure, token.scope, _SEQ),
    )


async def read_scopes(store: Store, rows: RowCodec, ids: Sequence[str]) -> StoredScopes:
    """Return the rows that a decision about these runs needs: their own rows, and the cancellations of their tokens.

    While many rows are decoded, the event loop can do other work. Raises StoreError.
    """
    found = await in_turns(rows.read_in_pieces(await store.scopes(ids)))
    await add_cancellations(found, store, rows)
    return found


async def add_cancellations(found: StoredScopes, store: Store, rows: RowCodec) -> None:
    """Add the cancellations of all tokens in the rows that were read. Raises StoreError."""
    if tokens := found.tokens:
        places = [(CancellationToken(name).scope, _SEQ) for name in sorted(tokens)]
        found.add([rows.read_event(row) for row in await store.events_at(places)])
