"""Mail: ops that other processes leave for runs, and the replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.kernel.rows import Mail


class MailStore(Protocol):
    """Mail and replies."""

    async def leave_mail(self, mail: Mail) -> int:
        """Leave mail, and return its id. The mail of one sender keeps its order. If mail with the same slot was stored
        before, it is not stored again, and the returned id is 0.
        """

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        """Return mail for runs that do not exist, or that this engine or no living engine owns. The oldest mail comes
        first.
        """

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        """Remove the replies that have arrived in these slots, and return them by slot."""
