"""Tasks of the store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.tasks import Task, TaskWrites
from perdure.ports import StoredRun, TaskFilter
from perdure.storage.memory.lists import is_within


class TaskTables(Struct, eq=False):
    """The table."""

    tasks: dict[str, Task] = field(default_factory=dict)

    def accepts(self, changes: TaskWrites) -> bool:
        """Return whether all tasks that are released or answered are open, and whether the right workers have them."""
        wanted: list[tuple[str, str | None]] = [(one.task_id, one.worker) for one in changes.released]
        wanted += [(one.task_id, one.worker) for one in changes.answers]
        return all(self._is_open(task_id, worker) for task_id, worker in wanted)

    def _is_open(self, task_id: str, worker: str | None) -> bool:
        task = self.tasks.get(task_id)
        return task is not None and task.status == "open" and worker in (None, task.worker)

    def apply(self, changes: TaskWrites, at: int) -> None:
        self.tasks |= {task.id: task for task in changes.tasks}
        for one in changes.released:
            had = self.tasks[one.task_id]
            error = had.error if one.error is None else one.error
            self.tasks[had.id] = replace(
                had, worker=None, lease_until=None, beat_at=one.at, error=error, actor=one.actor
            )
        for answer in changes.answers:
            closed = replace(self.tasks[answer.task_id], status="answered", closed_at=answer.at, answered_by=answer.by)
            self.tasks[answer.task_id] = closed
        for task_id in changes.withdrawn:
            task = self.tasks.get(task_id)
            if task is not None and task.status == "open":
                self.tasks[task_id] = replace(task, status="withdrawn", closed_at=at)

    # Reading.

    def list_tasks(self, wanted: TaskFilter, runs: Mapping[str, StoredRun]) -> list[Task]:
        found = [
            self.tasks[one]
            for one in sorted(self.tasks)
            if (wanted.after is None or one > wanted.after)
            and _matches(self.tasks[one], wanted)
            and is_within(self.tasks[one].run_id, wanted.within, runs)
        ]
        return found[: max(0, wanted.limit)]

    # Writes outside of commits.

    def claim_tasks(self, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str) -> list[Task]:
        free = self.list_tasks(TaskFilter(queue=queue, status="open", at=at, limit=limit), {})
        claimed = [
            replace(
                task,
                worker=worker,
                lease_us=lease_us,
                lease_until=at + lease_us,
                beat_at=at,
                claims=task.claims + 1,
                actor=actor,
            )
            for task in free
        ]
        self.tasks |= {task.id: task for task in claimed}
        return claimed

    def renew_lease(self, task_id: str, worker: str, at: int, details: str | None, actor: str) -> bool:
        task = self.tasks.get(task_id)
        if task is None or task.status != "open" or task.worker != worker:
            return False
        self.tasks[task_id] = replace(
            task,
            lease_until=at + task.lease_us,
            beat_at=at,
            details=task.details if details is None else details,
            actor=actor,
        )
        return True


def _matches(task: Task, wanted: TaskFilter) -> bool:
    status = "claimed" if task.is_claimed(wanted.at) else task.status
    return (
        wanted.queue in (None, task.queue)
        and wanted.kind in (None, task.kind)
        and wanted.run_id in (None, task.run_id)
        and wanted.status in (None, status)
    )
