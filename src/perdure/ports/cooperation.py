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
        """Return all rows that are needed to decide about these operations' runs, in one read:

        - the runs, the runs above them, and their children
        - all events of their own lineages, and the events with a key of the messages of all these runs
        - their messages, and all messages that they emitted
        - the values that they and their children returned

        An id may also belong to a root emission. Then the events and the root runs of the emission are read in the same
        way. Unknown ids are absent."""

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        """Return message events by scope and number. Unknown events are absent."""

    async def hierarchy(self, id: str) -> ScopeRows:
        """Return all rows of an operation's run and of all runs below it, or of a whole root emission."""

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        """Return the message event that records the emission of a message."""
