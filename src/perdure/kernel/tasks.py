"""Tasks as values: work that a run gives to somebody outside and waits for. Also the changes that a commit makes to
tasks.

Times are microseconds since the epoch. Payloads are text that the codec has encoded. The kernel does not read them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

TASK_EVENT: Final = "perdure.task/"  # the answer to a task is an event; its name is this text followed by the task's id


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """Work that a run gives to somebody outside and waits for. The task is open until it is answered, or until it is
    withdrawn because its run no longer waits. Until `lease_until`, only `worker` has the task.

    `schema` is the schema of the answer, as JSON. `details` has the details of the last heartbeat. `error` is the error
    of the last worker that failed.
    """

    id: str
    run_id: str
    position: str
    queue: str
    kind: str  # human | remote
    title: str
    schema: str
    payload: str
    status: str = "open"  # open | answered | withdrawn
    worker: str | None = None
    lease_us: int = 0
    lease_until: int | None = None
    beat_at: int | None = None
    details: str | None = None
    error: str | None = None
    claims: int = 0  # how often workers have claimed it
    due_at: int | None = None
    created_at: int
    closed_at: int | None = None
    answered_by: str | None = None
    actor: str = ""  # the person or program that requested the last claim, heartbeat or release

    def is_claimed(self, at: int) -> bool:
        return self.status == "open" and self.lease_until is not None and self.lease_until > at


class TaskAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a task. It counts only if the task is open. A worker's answer counts only if no other worker has
    the task now.
    """

    task_id: str
    worker: str | None
    by: str
    at: int


class TaskRelease(Struct, frozen=True, kw_only=True, gc=False):
    """A worker gives back a task. An `error` is stored with the task."""

    task_id: str
    worker: str
    error: str | None
    actor: str
    at: int


class TaskWrites(Struct, kw_only=True):
    """The changes that a decision or a batch makes to tasks. A store applies the fields in their order."""

    tasks: list[Task] = field(default_factory=list)
    released: list[TaskRelease] = field(default_factory=list)
    answers: list[TaskAnswer] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)  # ids of tasks to withdraw if they are open

    def add(self, other: TaskWrites) -> None:
        self.tasks += other.tasks
        self.answers += other.answers
        self.withdrawn += other.withdrawn
        self.released += other.released

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.answers or self.withdrawn or self.released)


def task_event(task_id: str) -> str:
    """Return the name of the event that answers a task."""
    return TASK_EVENT + task_id
