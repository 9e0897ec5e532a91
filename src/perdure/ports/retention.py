"""Deletion of rows that are no longer needed."""

from __future__ import annotations

from typing import Protocol


class RetentionStore(Protocol):
    """Deletion of rows that are no longer needed."""

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        """Remove up to `limit` rows of each kind. These are expired events, keys and replies from before `keys_before`,
        and engines that have been dead for a day (ENGINES_KEPT_US). An engine is kept if it owns a run, or if it was
        the last engine that had some code. Return how many rows were removed.
        """
