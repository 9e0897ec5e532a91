"""Runs, for the coordinator, for lists and for display. reads.py and lists.py do the reading."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial

from perdure.kernel.runs import Hold, Run
from perdure.ports import ChangedRun, DueRun, Journal, LoadedRun, Offer, RunFilter, StoredRun
from perdure.storage.sqlite import reads
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.fleet import offers_text
from perdure.storage.sqlite.lists import count_runs, list_runs
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import json_text, run_of, stored_run_of


class SqliteRuns(SqliteSlice):
    """Runs."""

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        return await self._db.write(partial(reads.set_aside, run_id=run_id, hold=hold, engine_id=engine_id, at=at))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        return {loaded.run.id: loaded for loaded in await self._db.read(partial(reads.load, ids=[*ids]))}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        return await self._db.read(partial(reads.load_whole, ids=[*ids])) if ids else {}

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        return await self._db.read(partial(reads.children, ids=[*ids], stopped=stopped))

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        wanted = {"offers": offers_text(offers), "before": before, "limit": max(0, limit)}
        waits = await self._db.read(partial(reads.due_waits, wanted=wanted, limit=limit))
        deadlines = [(due, run_id, True) for run_id, due in await self._db.fetch("ripe_deadlines", wanted)]
        found = sorted([*waits, *deadlines])[: max(0, limit)]
        damaged = await self._db.fetch("damaged_waits", {"limit": max(0, limit - len(found))})
        found += [(before - 1, run_id, False) for (run_id,) in damaged]
        return [DueRun(run_id=run_id, due_at=due, deadline=deadline) for due, run_id, deadline in found]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        rows = await self._db.read(
            lambda connection: connection.execute(QUERIES["stored_runs"], {"ids": json_text([*ids])}).fetchall()
        )
        return {row[0]: stored_run_of(row) for row in rows}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        rows = await self._db.read(partial(list_runs, wanted=wanted))
        return [run_of(row) for row in rows]

    async def count(self, wanted: RunFilter) -> int:
        return await self._db.read(partial(count_runs, wanted=wanted))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        wanted = {"cells": json_text([*cells]), "limit": max(0, limit)}
        return [count for (count,) in await self._db.fetch("tally", wanted)]

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        wanted = {"since": since, "after": after, "limit": max(0, limit)}
        return [ChangedRun(*row) for row in await self._db.fetch("changed_runs", wanted)]
