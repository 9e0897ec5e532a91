"""The inputs of a decision: the op's run, and the other values that its rule needs.

All of them are in the engine's memory, were read for the batch, or were decided earlier in the same batch. This module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct
from msgspec.structs import replace

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.damage import check_sound
from perdure.coordinator.memory import Memory
from perdure.coordinator.runless_rows import shared_inputs, task_now
from perdure.errors import DeadLetterNotFound, HandlersChanged, RunFinished
from perdure.kernel import wait_matches
from perdure.kernel.decision import NO_INPUT, DecisionInput, Stored
from perdure.kernel.operation_notices import NOT_NOTIFIED
from perdure.kernel.ops import (
    Advance,
    Answer,
    CancelScope,
    Cooperate,
    Emit,
    Forget,
    Op,
    PutRecord,
    PutToken,
    ReleaseTask,
    RetireHandlers,
    Send,
    Start,
    Wake,
)
from perdure.kernel.rows import Engine
from perdure.kernel.rules.children import born_of
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, UNDOING
from perdure.kernel.wait_matches import EMPTY, Mailbox


class Knowledge(Struct, frozen=True, kw_only=True):
    """The values on which a batch is decided, in addition to its ops and the rows that were read for them.

    `registry_version` is the version of the handler registry. It is known only after a commit was refused because an op
    used an older version of the registry.
    """

    memory: Memory
    workflows: Container[tuple[str, str, str]]  # models, names and versions that this engine can run
    engine: Engine
    number: int
    now: int
    registry_version: int | None = None


def stored_run(op: Op, before: Run | None, run: Run | None, context: BatchContext) -> tuple[Run | None, Run | None]:
    """Return a run in its state before the batch and in its current state, even if the run is not in memory. Raises
    RowDamaged.
    """
    if before is None and op.run_id in context.runs:
        loaded = context.runs[op.run_id]
        before = loaded.run
        if run is None:
            check_sound(loaded, op)
            # A dead owner writes nothing more, so the run counts as a run without an owner.
            run = replace(before, owner=None) if loaded.forsaken else before
    return before, run


def admitted(op: Start, builder: BatchBuilder, known: Knowledge, *, is_awaited: bool) -> Start:
    """Return the start with `admit` set. `admit` says whether the run begins at once on this engine. `is_awaited` says
    that a caller waits for the reply. Raises RunFinished.
    """
    has_code = op.admit and (op.model, op.workflow, op.workflow_version) in known.workflows
    op = replace(op, admitted_at=known.now, admit=has_code)
    if op.parent_id is None or not is_awaited:
        return op
    # The parent asked for this child in an earlier commit. The parent must still be active, and must not be held. A
    # parent that has begun to roll back has cancelled its children. It would not cancel this child.
    parent = builder.runs.get(op.parent_id) or known.memory.runs.get(op.parent_id)
    if parent is None or parent.status in FINISHED or parent.status in UNDOING or parent.hold is not None:
        message = f"run {op.parent_id!r} cannot start {op.run_id!r} any more: it has ended, is held or was released"
        raise RunFinished(message, run_id=op.run_id)
    return born_of(parent, op)


def inputs_of(
    op: Op, run: Run | None, builder: BatchBuilder, context: BatchContext, known: Knowledge
) -> tuple[Op, DecisionInput]:
    """Return the op and its inputs. The coordinator has filled in some fields of the op. Raises a PerdureError if the
    op is refused.
    """
    match op:  # The most frequent ops come first.
        case Advance():
            return op, _inputs_of_advance(op, builder, known)
        case Start():
            return op, NO_INPUT
        case Cooperate() | Emit() if not _knows_handlers(op, known):
            raise HandlersChanged("a handler was registered or taken out meanwhile", run_id=op.run_id)
        case PutRecord() | PutToken() | RetireHandlers():
            return op, shared_inputs(op, context, builder.batch.shared)
        case CancelScope():
            return op, DecisionInput(concerned=_concerned(op, builder, context, known))
        case Cooperate() if op.run_id not in context.runs:
            readiness = builder.readiness.get(op.run_id) or known.memory.readiness.get(op.run_id)
            return op, NO_INPUT if readiness is None else DecisionInput(readiness=readiness)
        case Send() if op.event.key is not None:
            earlier = builder.batch.keys.get(op.event.key) or context.keys.get(op.event.key)
            op = op if earlier is None else replace(op, known=earlier)
        case _:
            pass
    _check_letter(op, builder, context)
    return op, _all_inputs(op, run, builder, context, known)


def _concerned(op: CancelScope, builder: BatchBuilder, context: BatchContext, known: Knowledge) -> tuple[Run, ...]:
    """Return the runs that the notices of an op are for, as they are now. Damaged rows do not matter here."""
    found: list[Run] = []
    for notice in op.notices:
        run = builder.runs.get(notice.run_id) or known.memory.runs.get(notice.run_id)
        if run is None and (loaded := context.runs.get(notice.run_id)) is not None:
            run = replace(loaded.run, owner=None) if loaded.forsaken else loaded.run
        if run is not None:
            found.append(run)
    return tuple(found)


def _knows_handlers(op: Cooperate | Emit, known: Knowledge) -> bool:
    """Return whether an op was made with the current version of the handler registry. Return True if the current
    version is not known."""
    return known.registry_version is None or op.added.registry_version in (None, known.registry_version)


def _inputs_of_advance(op: Advance, builder: BatchBuilder, known: Knowledge) -> DecisionInput:
    mailbox = builder.mailboxes.get(op.run_id) or known.memory.mailboxes.get(op.run_id)
    if op.continuation is None:
        return NO_INPUT if mailbox is None else DecisionInput(mailbox)
    continuation = ("", op.continuation.workflow, op.continuation.workflow_version)
    return DecisionInput(EMPTY if mailbox is None else mailbox, continuation in known.workflows)


def _all_inputs(
    op: Op, run: Run | None, builder: BatchBuilder, context: BatchContext, known: Knowledge
) -> DecisionInput:
    run_id = op.run_id
    stored: Stored | None = None
    # If a run has continued in this batch, its stored waits and events do not count any more. The same positions now
    # belong to another call. The commit frees the events that had won at these positions.
    is_known = run_id in context.runs and run_id not in builder.batch.continued
    if isinstance(op, Wake) and run is not None and run.owner == known.engine.id and is_known:
        stored = context.runs[run_id].waits, context.runs[run_id].events
    return DecisionInput(
        mailbox=_mailbox(run_id, builder, context, known.memory),
        has_code=run is None or (run.known_model, run.workflow, run.workflow_version) in known.workflows,
        children=(*context.children.get(run_id, ()), *builder.children.get(run_id, ())),
        stored=stored,
        task=task_now(op.task_id, context, builder.batch.tasks) if isinstance(op, (Answer, ReleaseTask)) else None,
        readiness=builder.readiness.get(run_id) or known.memory.readiness.get(run_id, NOT_NOTIFIED),
    )


def _mailbox(run_id: str, builder: BatchBuilder, context: BatchContext, memory: Memory) -> Mailbox:
    mailbox = builder.mailboxes.get(run_id) or memory.mailboxes.get(run_id)
    if mailbox is not None:
        return mailbox
    loaded = None if run_id in memory.runs else context.runs.get(run_id)
    return EMPTY if loaded is None else wait_matches.opened(loaded.waits, loaded.events)


def _check_letter(op: Op, builder: BatchBuilder, context: BatchContext) -> None:
    """Raise DeadLetterNotFound for an op about a dead letter that no longer exists."""
    letter = op.dead_letter if isinstance(op, (Send, Forget)) else ""
    if letter and (letter not in context.dead_letters or letter in builder.batch.dead_letters_gone):
        raise DeadLetterNotFound(f"there is no dead letter {letter!r}: it was replayed or removed", letter_id=letter)


__all__ = ["Knowledge", "admitted", "inputs_of", "stored_run"]
