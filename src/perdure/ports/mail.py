"""Ops that other processes leave for runs, and the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.kernel.rows import Mail


class MailStore(Protocol):
    """Mail and replies."""

    async def leave_mail(self, mail: Mail) -> int:
        """Leave mail; return its id. FIFO per sender. Mail with a slot that was used before is not stored again: then
        the returned id is 0."""

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        """Return mail for runs that this engine or no living engine owns, or that do not exist; oldest first."""

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        """Take the answers that have arrived in these slots, and return them by slot."""
