"""Events that wait to be read, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.kernel.events import DeadLetter, Event


class EventStore(Protocol):
    """Events and dead letters."""

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the events that were sent with these keys: key -> event id."""

    async def spreading(self) -> list[str]:
        """Return retained events that have not yet reached all runs that waited for them when they were sent."""

    async def events(self, *, name: str | None = None, run_id: str | None = None, limit: int = 100) -> list[Event]:
        """Return unread events in the order of sending. With `run_id`, return the events of that run. With None, return
        the events in queues.
        """

    async def dead_letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Return dead letters by id. Only ids after `after` are returned."""

    async def dead_letter(self, letter_id: str) -> DeadLetter | None:
        """Return one dead letter."""
