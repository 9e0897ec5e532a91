"""The rules of artifacts and tasks: what is published, what is withdrawn, and whose answer counts.

What a run stages goes with the entry that it belongs to, and is published in the commit in which the run succeeds. An
answer is an event to the run that waits for it, so all that holds of events holds of answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from perdure.errors import TaskClosed, TaskLost, TaskNotFound
from perdure.kernel import mailboxes, ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput, mine_or_free
from perdure.kernel.mailboxes import Mailbox
from perdure.kernel.records import Run
from perdure.kernel.rules import delivery
from perdure.kernel.status import FINISHED, Status
from perdure.kernel.stock import TASK_EVENT, Stock, Task, TaskAnswer

_FATES: Final = {
    Status.SUCCEEDED: "published",
    Status.FAILED: "aside",
    Status.CANCELLED: "gone",
    Status.ROLLED_BACK: "gone",
    Status.ROLLBACK_FAILED: "gone",
}


def brought(decision: Decision, op: ops.Advance, inputs: DecisionInput) -> Decision:
    """The decision about an advance, with what the run brings, and what it no longer waits for."""
    run = decision.run
    if run is None:
        return decision
    stock = Stock()
    if op.stock is not None:
        stock.add(op.stock)
    if op.end is not None and op.end.has_staged and run.status in _FATES:
        stock.fates[run.id] = _FATES[run.status]
    is_over = decision.waits_cleared or decision.continued or op.end is not None
    stock.withdrawn += _left(inputs.mailbox, None if is_over else op.waits_dropped)
    return _with(decision, stock)


def ended(decision: Decision, inputs: DecisionInput) -> Decision:
    """The decision to end a run from outside: nobody waits for its tasks any more."""
    run = decision.run
    if run is None:
        return decision
    stock = Stock(withdrawn=_left(inputs.mailbox, None))
    if run.status in _FATES:
        stock.fates[run.id] = _FATES[run.status]
    return _with(decision, stock)


def retried(decision: Decision) -> Decision:
    """The decision to run a failed run again: what it had staged is staged again, but for what is done anew."""
    return decision if decision.run is None else _with(decision, Stock(fates={decision.run.id: "staged"}))


def _with(decision: Decision, stock: Stock) -> Decision:
    return decision if stock.is_empty else replace(decision, stock=stock)


def _left(mailbox: Mailbox, positions: Iterable[str] | None) -> list[str]:
    """The tasks at these positions (None: at all) that were not answered."""
    found: list[str] = []
    for position in mailbox.waits if positions is None else positions:
        if mailbox.won.get(position, (0, None))[1] is None:
            waits = mailbox.waits.get(position, ())
            found += [wait.name.removeprefix(TASK_EVENT) for wait in waits if wait.name.startswith(TASK_EVENT)]
    return found


def deposit(run: Run | None, op: ops.Deposit, me: str, _inputs: DecisionInput) -> Decision:
    """Parts of an artifact of a step that runs. What is left when the run ends without it goes then."""
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    return Decision(run=run, stock=Stock(chunks=list(op.chunks), chunks_gone=list(op.gone)), reply=True)


def answer(run: Run | None, op: ops.Answer, me: str, inputs: DecisionInput) -> Decision:
    """An answer counts if the task is open, its run waits, and, from a worker, if nobody else has the task by now."""
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
    if not mailboxes.is_open(inputs.mailbox, task.position):
        raise closed(replace(task, status="withdrawn"))
    before = mailboxes.without_expired(inputs.mailbox, op.at)
    mailbox, given = mailboxes.put(before, op.event, only_at=task.position)
    decision = delivery.delivered(run, mailbox, given, me, inputs, reply=True)
    answered = TaskAnswer(task_id=task.id, worker=op.worker, by=op.actor if op.worker is None else op.worker, at=op.at)
    decision = replace(decision, stock=Stock(answers=[answered]))
    return delivery.noted(decision, op, "answered", f"answered task {task.id}")


def _is_answered(mailbox: Mailbox, task: Task) -> bool:
    return mailbox.won.get(task.position, (0, None))[1] is not None


def closed(task: Task) -> TaskClosed:
    """Somebody wants to do something with a task that is open no more."""
    if task.status == "answered":
        by = f" by {task.answered_by!r}" if task.answered_by else ""
        why = f"was answered before{by}: this changes nothing"
    else:
        why = f"was withdrawn: its run {task.run_id!r} no longer waits for it"
    return TaskClosed(f"task {task.id!r} {why}", task_id=task.id, status=task.status)


def lost(task: Task, worker: str) -> TaskLost:
    """A worker wants to do something with a task that it does not have."""
    has = "nobody" if task.worker is None else f"worker {task.worker!r}"
    return TaskLost(
        f"worker {worker!r} does not have task {task.id!r}: {has} has; claim it, and beat before the lease ends",
        task_id=task.id,
        worker=worker,
    )
