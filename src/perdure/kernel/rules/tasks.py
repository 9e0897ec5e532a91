"""The rules of tasks. They decide which tasks are withdrawn, and which answers count.

An answer is an event to the run that waits for the task. So answers have all the guarantees that events have.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.errors import TaskClosed, TaskLost, TaskNotFound
from perdure.kernel import ops, wait_matches
from perdure.kernel.decision import Decision, DecisionInput, mine_or_free
from perdure.kernel.rules import delivery
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED
from perdure.kernel.tasks import TASK_EVENT, Task, TaskAnswer, TaskRelease, TaskWrites
from perdure.kernel.wait_matches import Mailbox


def left_open(mailbox: Mailbox, positions: Iterable[str] | None) -> list[str]:
    """Return the tasks at these positions that were not answered. With None, all positions count."""
    found: list[str] = []
    for position in mailbox.waits if positions is None else positions:
        if mailbox.won.get(position, (0, None))[1] is None:
            waits = mailbox.waits.get(position, ())
            found += [wait.name.removeprefix(TASK_EVENT) for wait in waits if wait.name.startswith(TASK_EVENT)]
    return found


def answer(run: Run | None, op: ops.Answer, me: str, inputs: DecisionInput) -> Decision:
    """Answer a task, if it is open and its run waits for it. A worker's answer counts only if the worker has the task.
    Raises TaskNotFound, TaskClosed, TaskLost, RunOwnedElsewhere."""
    task = inputs.task
    if run is None or task is None:
        raise TaskNotFound(f"there is no task {op.task_id!r}", task_id=op.task_id)
    if task.status != "open":
        raise closed(task)
    if _is_answered(inputs.mailbox, task):
        raise closed(replace(task, status="answered"))
    if run.status in FINISHED:
        raise closed(replace(task, status="withdrawn"))
    if op.worker is not None and task.worker != op.worker:
        raise lost(task, op.worker)
    mine_or_free(run, op, me)
    if not wait_matches.is_open(inputs.mailbox, task.position):
        raise closed(replace(task, status="withdrawn"))
    before = wait_matches.without_expired(inputs.mailbox, op.at)
    mailbox, given = wait_matches.put(before, op.event, only_at=task.position)
    decision = delivery.delivered(run, mailbox, given, me, inputs, reply=True)
    answered = TaskAnswer(task_id=task.id, worker=op.worker, by=op.actor if op.worker is None else op.worker, at=op.at)
    decision = replace(decision, tasks=TaskWrites(answers=[answered]))
    return delivery.noted(decision, op, "answered", f"answered task {task.id}")


def release(_run: Run | None, op: ops.ReleaseTask, _me: str, inputs: DecisionInput) -> Decision:
    """Give back a task that a worker has. Raises TaskNotFound, TaskClosed, TaskLost."""
    task = inputs.task
    if task is None:
        raise TaskNotFound(f"there is no task {op.task_id!r}", task_id=op.task_id)
    if task.status != "open":
        raise closed(task)
    if task.worker != op.worker:
        raise lost(task, op.worker)
    given_back = TaskRelease(task_id=task.id, worker=op.worker, error=op.error, actor=op.actor, at=op.at)
    return Decision(tasks=TaskWrites(released=[given_back]), reply=True)


def _is_answered(mailbox: Mailbox, task: Task) -> bool:
    return mailbox.won.get(task.position, (0, None))[1] is not None


def closed(task: Task) -> TaskClosed:
    """Return the error for a task that is no longer open."""
    if task.status == "answered":
        by = f" by {task.answered_by!r}" if task.answered_by else ""
        why = f"was answered before{by}: this changes nothing"
    else:
        why = f"was withdrawn: its run {task.run_id!r} no longer waits for it"
    return TaskClosed(f"task {task.id!r} {why}", task_id=task.id, status=task.status)


def lost(task: Task, worker: str) -> TaskLost:
    """Return the error for a worker that does not have the task."""
    has = "nobody" if task.worker is None else f"worker {task.worker!r}"
    return TaskLost(
        f"worker {worker!r} does not have task {task.id!r}: {has} has it. Claim it, and beat before the lease ends",
        task_id=task.id,
        worker=worker,
    )
