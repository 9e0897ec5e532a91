"""Journals and audit trails of runs. reads.py does the reading."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.rows import Entry
from perdure.kernel.runs import Audit
from perdure.ports import Journal
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.reads import journal, journals
from perdure.storage.postgres.rows import audit_of, shown_entry_of


class PostgresJournals(PostgresSlice):
    """Journals and audit trails."""

    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        async with self._db.snapshot() as connection:
            return await journal(connection, run_id)

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        if not ids:
            return {}
        async with self._db.snapshot() as connection:
            return await journals(connection, ids)

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        return [
            (row[0], shown_entry_of(row[1:], "journal_archive"))
            for row in await self._db.read(QUERIES["archived"], run_id=run_id)
        ]

    async def audit(self, run_id: str) -> list[Audit]:
        return [audit_of(row) for row in await self._db.read(QUERIES["audit"], run_id=run_id)]

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        return [audit_of(row) for row in await self._db.read(QUERIES["audits"], ids=[*ids])] if ids else []
