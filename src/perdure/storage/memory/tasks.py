"""Tasks: reading them, claiming them, and renewing their leases."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.tasks import Task
from perdure.ports import TaskFilter
from perdure.storage.memory.commit import check_storable
from perdure.storage.memory.connection import MemorySlice


class MemoryTasks(MemorySlice):
    """Tasks."""

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        database = self._db.opened()
        with database.lock:
            return database.tasks.list_tasks(wanted, database.runs)

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        known = self._db.opened().tasks.tasks
        return {one: known[one] for one in ids if one in known}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> list[Task]:
        database = self._db.opened()
        check_storable(queue, worker, at + lease_us, actor)
        with database.lock:
            return database.tasks.claim_tasks(queue, worker, lease_us, at, limit, actor)

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        database = self._db.opened()
        check_storable(worker, details, actor)
        with database.lock:
            return database.tasks.renew_lease(task_id, worker, at, details, actor)
