"""Tasks: reading and claiming them, and renewing their leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from perdure.kernel.tasks import Task
from perdure.ports.runs import Within


class TaskFilter(Struct, frozen=True, kw_only=True):
    """A filter of tasks. It selects the tasks that match every given field and whose id is greater than `after`, in the
    order of their ids. A task that is stored as open counts as `claimed` if its lease expires after the time `at`.
    Otherwise it counts as `open`. With `within`, only tasks of these runs are listed."""

    queue: str | None = None
    kind: str | None = None
    run_id: str | None = None
    status: str | None = None  # open | claimed | answered | withdrawn
    at: int = 0
    within: Within | None = None
    after: str | None = None
    limit: int = 100


class TaskStore(Protocol):
    """Tasks."""

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        """Return the tasks that match a filter, by id."""

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        """Return tasks by id, in one query. Unknown ids are left out. With an empty list, no query is made."""

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> list[Task]:
        """Lease up to `limit` tasks of a queue to a worker, in the order of their ids. Only open tasks that no worker
        has at the time `at` are leased. No task is leased to two workers at the same time.
        """

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        """Extend a worker's lease. Return whether the task is open and the worker has it. If `details` is None, the
        stored details stay unchanged.
        """
