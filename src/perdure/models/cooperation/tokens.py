"""Cancelled tokens as rows: a CANCELLATION_REQUESTED of `message_event`, under an id of the token's own.

A run has the tokens of the context that its message was emitted with. A run finds out
whether its tokens are cancelled whenever it is read from the store. A run that was given a token is read after the
commit that created it, before it begins. The runs to notify are searched for after the commit that cancels the token.
So one of the two finds the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.coordinator.turns import in_turns
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.failures import CANCELLATION_REQUESTED, Failure, placed
from perdure.models.cooperation.message_events import EventType, MessageEvent
from perdure.models.cooperation.rows import RowCodec, StoredScopes
from perdure.ports import Store

_SEQ = 0  # the number of every CANCELLATION_REQUESTED row


def cancellation(token: CancellationToken, *, reason: str, source: str) -> MessageEvent:
    """Return the row that cancels a token. A token has at most one, so the first cancellation counts."""
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
    """Return what a decision about these runs needs: their rows, and the cancellations of their tokens.

    The event loop goes on with other work while many rows are decoded. Raises StoreError.
    """
    found = await in_turns(rows.read_in_pieces(await store.scopes(ids)))
    await add_cancellations(found, store, rows)
    return found


async def add_cancellations(found: StoredScopes, store: Store, rows: RowCodec) -> None:
    """Add the cancellations of all tokens in the rows that were read. Raises StoreError."""
    if tokens := found.tokens:
        places = [(CancellationToken(name).scope, _SEQ) for name in sorted(tokens)]
        found.add([rows.read_event(row) for row in await store.events_at(places)])
