"""Journals and audit trails of runs."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.rows import Entry
from perdure.kernel.runs import Audit
from perdure.ports import Journal
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.reads import in_order, journals


class MemoryJournals(MemorySlice):
    """Journals and audit trails."""

    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        with self._db.opened().holding(run_id) as database:
            return database.runs[run_id].input, in_order(database.journal.get(run_id, {}))

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        database = self._db.opened()
        with database.lock:
            return journals(database, ids)

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        database = self._db.opened()
        with database.lock:
            aside = database.archive.get(run_id, {})
            return [(attempt, aside[attempt, seq]) for attempt, seq in sorted(aside)]

    async def audit(self, run_id: str) -> list[Audit]:
        database = self._db.opened()
        with database.lock:
            return in_order(database.audit.get(run_id, {}))

    async def audits(self, ids: Sequence[str]) -> list[Audit]:
        return [row for run_id in sorted({*ids}) for row in await self.audit(run_id)]
