"""Records: named values with versions."""

from __future__ import annotations

from typing import Protocol

from perdure.kernel.records import Record


class RecordStore(Protocol):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        """Return one version of a record. None means the newest version."""

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        """Return the newest versions of the records of a kind, by name. Only names after `after` are returned."""

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        """Return all versions of records that were stored at the time `since` or later, by (kind, name, version). Only
        versions after `after` are returned.
        """
