"""Records: named things with versions."""

from __future__ import annotations

from typing import Protocol

from perdure.kernel.records import Record


class RecordStore(Protocol):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        """Return one version of a record (None: the newest)."""

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        """Return the newest versions of the records of a kind, by name, strictly after the name `after`."""

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        """Return all versions of records that were put at `since` or later, by (kind, name, version), strictly after
        `after`."""
