"""Runs, for the coordinator, for lists and for display."""

from __future__ import annotations

import builtins
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from msgspec.structs import replace

from perdure.kernel.runs import Audit, Hold, Run
from perdure.kernel.status import Status
from perdure.ports import ChangedRun, DueRun, Journal, LoadedRun, Offer, RunFilter, StoredRun
from perdure.storage.memory.claims import runs_due
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.lists import matches
from perdure.storage.memory.reads import journals, loaded


class MemoryRuns(MemorySlice):
    """Runs."""

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        database = self._db.opened()
        with database.lock:
            run = database.runs[run_id].run
            if run.hold is not None or (run.owner != engine_id and database.is_alive(run.owner)):
                return False
            held = replace(run, owner=None, hold=hold, tried="", revision=run.revision + 1)
            database.runs[run_id] = replace(database.runs[run_id], run=held)
            database.audit.setdefault(run_id, {})[held.revision] = Audit(
                run_id=run_id,
                seq=held.revision,
                version=held.version,
                was=held.status,
                became=hold.kind,
                cause=hold.reason,
                actor="",
                at=at,
            )
            return True

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        database = self._db.opened()
        with database.lock:
            return {one: loaded(database, database.runs[one].run) for one in ids if one in database.runs}

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        found = await self.load(ids)
        database = self._db.opened()
        with database.lock:
            whole = journals(database, found)
        return {one: (found[one], journal) for one, journal in whole.items()}

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        database = self._db.opened()
        with database.lock:
            found = {child for run_id in ids for child in database.children.get(run_id, ())}
            runs = (database.runs[run_id].run for run_id in sorted(found if stopped else found & database.active))
            wanted = (run for run in runs if run.status not in (Status.SUCCEEDED, Status.FAILED))
            return [loaded(database, run) for run in wanted if run.bond != "detached"]

    async def due_runs(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[DueRun]:
        database = self._db.opened()
        with database.lock:
            return runs_due(database, offers, before)[:limit]

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        database = self._db.opened()
        with database.lock:
            return {one: database.runs[one] for one in ids if one in database.runs}

    async def list(self, wanted: RunFilter) -> builtins.list[Run]:
        database = self._db.opened()
        with database.lock:
            found = [stored.run for stored in database.runs.values() if matches(stored.run, wanted)]
            found.sort(key=lambda run: (run.created_at, run.id), reverse=True)
            return found[: max(0, wanted.limit)]

    async def count(self, wanted: RunFilter) -> int:
        database = self._db.opened()
        with database.lock:
            found = (stored for stored in database.runs.values() if matches(stored.run, wanted))
            return sum(1 for _ in islice(found, max(0, wanted.limit)))

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        database = self._db.opened()
        with database.lock:
            times: dict[str, builtins.list[int]] = {}
            for stored in database.runs.values():
                times.setdefault(stored.run.status, []).append(stored.run.created_at)
            for found in times.values():
                found.sort()
            return [
                max(0, min(limit, bisect_left(times.get(status, ()), end) - bisect_left(times.get(status, ()), begin)))
                for status, begin, end in cells
            ]

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        database = self._db.opened()
        with database.lock:
            found = sorted(
                (stored.run.id, stored.run.workflow)
                for stored in database.runs.values()
                if stored.run.updated_at >= since or stored.run.hold is not None
            )
        return [ChangedRun(*one) for one in found if one[0] > after][: max(0, limit)]
