"""Runs, for the coordinator, for lists and for display. reads.py and lists.py do the reading."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from perdure.kernel.runs import Hold, Run
from perdure.ports import ChangedRun, DueRun, Journal, LoadedRun, Offer, RunFilter, StoredRun
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.fleet import offered
from perdure.storage.postgres.lists import LISTING, count_runs, list_runs
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.reads import due_waits, fetch, load_now, load_whole
from perdure.storage.postgres.rows import json_text, run_of, stored_run_of


class PostgresRuns(PostgresSlice):
    """Runs."""

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        given = {"kind": hold.kind, "reason": hold.reason, "hold": json_text(hold), "at": at}
        return bool(await self._db.write(QUERIES["set_aside"], run_id=run_id, engine_id=engine_id, **given))

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        if not ids:
            return {}
        async with self._db.snapshot() as connection:
            return {loaded.run.id: loaded for loaded in await load_now(connection, ids)}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        if not ids:
            return {}
        self._db.check_open()
        async with self._db.lanes.use() as connection:
            return await load_whole(connection, ids)

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        if not ids:
            return []
        async with self._db.snapshot() as connection:
            rows = await fetch(connection, "stopped_children" if stopped else "children", ids=[*ids])
            return await load_now(connection, [row[0] for row in rows])

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        limit = max(0, limit)
        wanted = {**offered(offers), "before": before, "limit": limit}
        async with self._db.snapshot() as connection:
            waits = await due_waits(connection, wanted, limit)
            rows = await fetch(connection, "ripe_deadlines", **wanted)
        found = sorted([*waits, *((due, run_id, True) for run_id, due in rows)])[:limit]
        return [DueRun(run_id=run_id, due_at=due, deadline=deadline) for due, run_id, deadline in found]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        if not ids:
            return {}
        return {row[0]: stored_run_of(row) for row in await self._db.read(QUERIES["stored_runs"], ids=[*ids])}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        async with self._db.snapshot(LISTING) as connection:
            return [run_of(row) for row in await list_runs(connection, wanted)]

    async def count(self, wanted: RunFilter) -> int:
        async with self._db.snapshot(LISTING) as connection:
            return await count_runs(connection, wanted)

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        statuses, begins, ends = ([cell[number] for cell in cells] for number in range(3))
        async with self._db.snapshot(LISTING) as connection:
            rows = await fetch(connection, "tally", statuses=statuses, begins=begins, ends=ends, limit=max(0, limit))
        return [count for (count,) in rows]

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        rows = await self._db.read(QUERIES["changed_runs"], since=since, after=after, limit=max(0, limit))
        return [ChangedRun(*row) for row in rows]
