"""Records: named things with versions."""

from __future__ import annotations

from typing import Protocol

from perdure.kernel.records import Record


class RecordStore(Protocol):
    """Records."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        """Return one version of a record (None: the newest)."""

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[Record]:
        """Return the newest versions of the records of a kind, by name, strictly after one."""

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> list[Record]:
        """Return all versions of all records that were put from a time on, by (kind, name, version), strictly after
        one."""
