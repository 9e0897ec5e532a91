"""The inputs of decisions about records, tokens, handlers and tasks."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.coordinator.batch_context import BatchContext, Shared
from perdure.kernel.decision import DecisionInput
from perdure.kernel.ops import PutRecord, PutToken, RetireHandlers
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.tasks import Task, TaskWrites


def shared_inputs(op: Shared, found: BatchContext, written: SharedWrites | None) -> DecisionInput:
    """Return the inputs that were read, with the changes (`written`) of the earlier ops in the batch."""
    before = written or SharedWrites()
    match op:
        case PutRecord(record=new):
            record = found.records.get((new.kind, new.name))
            for one in before.records:
                if (one.kind, one.name) == (new.kind, new.name):
                    record = one
            return DecisionInput(record=record)
        case PutToken(token=new_token):
            token = found.tokens.get(new_token.name)
            for added in before.tokens:
                if added.name == new_token.name:
                    token = added
            return DecisionInput(token=token)
        case RetireHandlers():
            handlers = set(found.handlers)
            for change in before.handlers:
                if change.is_expected:
                    handlers.add((change.topic, change.name))
                else:
                    handlers.discard((change.topic, change.name))
            return DecisionInput(handlers=handlers)


def task_now(task_id: str, found: BatchContext, written: TaskWrites | None) -> Task | None:
    """Return a task that was read, with the changes (`written`) of the earlier ops in the batch."""
    task = found.tasks.get(task_id)
    if task is None or written is None:
        return task
    if any(one.task_id == task_id for one in written.released):
        task = replace(task, worker=None, lease_until=None)
    for answer in written.answers:
        if answer.task_id == task_id:
            task = replace(task, status="answered", answered_by=answer.by)
    return replace(task, status="withdrawn") if task_id in written.withdrawn else task
