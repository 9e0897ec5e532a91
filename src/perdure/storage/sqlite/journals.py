"""Journals and audit trails of runs. reads.py does the reading."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from perdure.kernel.rows import Entry
from perdure.kernel.runs import Audit
from perdure.ports import Journal
from perdure.storage.sqlite import reads
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.rows import archived_of, audit_of, json_text


class SqliteJournals(SqliteSlice):
    """Journals and audit trails."""

    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        return await self._db.read(partial(reads.journal, run_id=run_id))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        return await self._db.read(partial(reads.journals, ids=[*ids])) if ids else {}

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        return [archived_of(row) for row in await self._db.fetch("archived", {"run_id": run_id})]

    async def audit(self, run_id: str) -> list[Audit]:
        return [audit_of(row) for row in await self._db.fetch("audit", {"run_id": run_id})]

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        return [audit_of(row) for row in await self._db.fetch("audits", {"ids": json_text([*ids])})] if ids else []
