"""Tasks: writing the batch's changes, and reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from perdure.kernel.batch import Batch
from perdure.kernel.tasks import Task, TaskWrites
from perdure.ports import TaskFilter
from perdure.storage.damage import shown_task
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.lists import within_variables
from perdure.storage.postgres.queries import load_queries

_NONE: Final = TaskWrites()

QUERIES: Final = load_queries(Path(__file__).with_name("tasks.sql").read_text("utf-8"))


def tasks_of(batch: Batch) -> dict[str, Any]:
    """Return the parts of the type stock_v1 that are about tasks."""
    changes = batch.tasks or _NONE
    return {
        "tasks": [astuple(task)[:-1] for task in changes.tasks],  # A new task has no actor yet.
        "answers": [astuple(answer) for answer in changes.answers],
        "withdrawn": changes.withdrawn,
    }


def listing_of_tasks(wanted: TaskFilter) -> tuple[str, dict[str, Any]]:
    if wanted.run_id is not None:
        query = "tasks_of_run"
    elif wanted.status in ("open", "claimed"):
        query = "tasks_open_anywhere" if wanted.queue is None else "tasks_open"
    else:
        query = "tasks_all"
    return query, within_variables(wanted)


def task_of(row: Sequence[Any]) -> Task:
    """Convert a row to a task. If the row is damaged, the task has a status that reports the damage."""
    return shown_task(dict(zip(Task.__struct_fields__, row, strict=True)), row)


class PostgresTasks(PostgresSlice):
    """Tasks."""

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        query, variables = listing_of_tasks(wanted)
        return [task_of(row) for row in await self._db.read(QUERIES[query], **variables)]

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return {row[0]: task_of(row) for row in await self._db.read(QUERIES["tasks"], ids=[*ids])} if ids else {}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> list[Task]:
        """Claim tasks for a worker. If the connection breaks, a claim may be committed without the worker's knowledge.
        Then the lease of this claim expires.
        """
        wanted = {
            "queue": queue,
            "worker": worker,
            "lease_us": lease_us,
            "at": at,
            "limit": max(0, limit),
            "actor": actor,
        }
        found = [task_of(row) for row in await self._db.write(QUERIES["claim_tasks"], **wanted)]
        return [task for task in found if task.status == "open"]

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        wanted = {"id": task_id, "worker": worker, "at": at, "details": details, "actor": actor}
        return bool(await self._db.write(QUERIES["renew_lease"], **wanted))
