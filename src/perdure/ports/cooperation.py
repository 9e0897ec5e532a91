"""Handlers, messages, and message events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.kernel.cooperation import HandlerList, MessageEventRow, ScopeRows


class CooperationStore(Protocol):
    """Handlers and messages."""

    async def handlers(self) -> HandlerList:
        """Return all handlers that were ever registered or seen."""

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        """Return all rows that a decision about these operations' runs needs, in one read:

        - the runs, the runs above them, and their children
        - all events of their own lineages, and all events with a key that belong to the messages of these runs
        - their messages, and all messages that they emitted
        - the values that they and their children returned

        An id may also be the id of a root emission. In that case, the events of the emission and the runs that handle
        its message are read in the same way. Unknown ids are left out.
        """

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        """Return message events by scope and number. Unknown events are left out."""

    async def hierarchy(self, id: str) -> ScopeRows:
        """Return all rows of an operation's run and of all runs below it. With the id of a root emission, return the
        rows of the whole hierarchy.
        """

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        """Return the EMITTED event of a message."""
