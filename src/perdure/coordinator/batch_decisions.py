"""The decisions of a batch. The kernel's rules decide each op in the state after the earlier ops of the batch.

A decision does not use the store, the clock or a model. Everything that it needs was read or passed in earlier
(decision_inputs.py). A decision changes only the batch. The state in memory changes after the batch is committed.

An op can depend on earlier ops of the batch. If several events fit one wait, the first event is delivered, and the
others are queued. If a run begins to wait for an event that is in the same batch, the run is never stored as suspended
(kernel/rules/broadcasts.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.decision_inputs import Knowledge, admitted, inputs_of, stored_run
from perdure.coordinator.queued_ops import Item
from perdure.errors import EngineBug, PerdureError, RowDamaged, RunOwnedElsewhere
from perdure.kernel.batch import Batch
from perdure.kernel.decide import decide
from perdure.kernel.decision import Decision, DecisionInput
from perdure.kernel.effects import Proceed
from perdure.kernel.invariants import check_decision
from perdure.kernel.operation_notices import JOIN, NEWS
from perdure.kernel.ops import Advance, Cancel, Cooperate, Expire, Notify, Op, SetHold, Start, Wake
from perdure.kernel.pieces import Pieces, at_once
from perdure.kernel.rules.advances import goes_on
from perdure.kernel.rules.operations import keeps_on
from perdure.kernel.runs import Run

WRITTEN: Final = Decision(reply=True)

DECIDED_AT_ONCE_MAX: Final = 512  # ops in one turn of the loop; a batch has fewer ops, not counting follow-ups

_STOPPING: Final = (Cancel, Expire, SetHold, Notify)  # ops that may stop a run from outside
# if another engine owns the run, these ops are dropped, because the owner has its own timers
_WAKING: Final = (Wake, Expire)


class Mailed(Struct, frozen=True):
    """An op that was left for another engine. That engine will put its reply into this slot."""

    slot: str


Decided = tuple[Item, Decision | Proceed | Mailed | PerdureError]  # Proceed means a plain advance


class DecidedBatch(Struct):
    """The batch, and the decision about each op.

    `stopped` are the runs that were stopped from outside, or asked to give up. `bugs` are the ops that the rules could
    not decide, each with its error. `broken` are the runs of these ops. Their state in memory is no longer valid.
    """

    builder: BatchBuilder
    decided: list[Decided] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    bugs: list[tuple[Op, EngineBug]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    follow_ups: deque[Item] = field(default_factory=deque)  # ops that follow from decisions; they are decided next


def decide_batch(items: Iterable[Item], context: BatchContext, known: Knowledge) -> DecidedBatch:
    """Decide a batch as `decide_in_pieces` does, but all at once."""
    return at_once(decide_in_pieces(items, context, known))


def decide_in_pieces(items: Iterable[Item], context: BatchContext, known: Knowledge) -> Pieces[DecidedBatch]:
    """Decide ops one after the other. Each op sees the state after the earlier ops. `context` has the rows that were
    read for the ops.

    One op may cause ten thousand follow-ups. All of them are decided in the same batch. So a piece has at most
    DECIDED_AT_ONCE_MAX ops.
    """
    engine = known.engine
    batch = DecidedBatch(
        BatchBuilder(Batch(engine_id=engine.id, epoch=engine.epoch, number=known.number, at=known.now))
    )
    follow_ups = batch.follow_ups
    count = 0
    for item in items:
        following: Item | None = item
        while following is not None:
            count += 1
            if count % DECIDED_AT_ONCE_MAX == 0:
                yield
            _decide_op(following, batch, context, known)
            following = follow_ups.popleft() if follow_ups else None
    return batch


def _decide_op(item: Item, batch: DecidedBatch, context: BatchContext, known: Knowledge) -> None:
    op, me, builder = item.op, known.engine.id, batch.builder
    # `before` is the stored state. Its owner may be a dead engine, or may differ from the owner that earlier ops of
    # this batch have set.
    before = known.memory.runs.get(op.run_id)
    if batch.broken and op.run_id in batch.broken:
        before = None
    run = builder.runs.get(op.run_id, before)
    try:
        if type(op) is Advance and run is not None and goes_on(run, op, me):
            builder.add_entries(op.entries)
            batch.decided.append((item, Proceed(run.id)))
            return
        if type(op) is Cooperate and run is not None and keeps_on(run, op, me):
            builder.add_cooperation(op.added)
            batch.decided.append((item, WRITTEN))
            return
        if type(op) is Start:
            op = admitted(op, builder, known, is_awaited=item.reply is not None)
        before, run = stored_run(op, before, run, context)
        op, inputs = inputs_of(op, run, builder, context, known)
        decision = decide(run, op, me, inputs)
        check_decision(decision)
    except PerdureError as error:
        _refuse(item, op, error, batch)
    else:
        _accept(item, before, decision, inputs, batch, is_loaded=op.run_id in context.runs)


def _accept(
    item: Item, before: Run | None, decision: Decision, inputs: DecisionInput, batch: DecidedBatch, *, is_loaded: bool
) -> None:
    op, builder = item.op, batch.builder
    builder.add(before, decision)
    batch.decided.append((item, decision))
    if decision.effects and isinstance(op, _STOPPING) and not (type(op) is Notify and op.kind in (NEWS, JOIN)):
        batch.stopped.append(op.run_id)
    if item.mail:
        builder.answer(item.mail, decision.reply)
    if is_loaded and op.run_id not in builder.mailboxes:
        # If this engine owns the run from now on, memory keeps this mailbox.
        builder.mailboxes[op.run_id] = inputs.mailbox
    if decision.follow_ups:
        batch.follow_ups.extendleft([Item(follow_up, None, False) for follow_up in reversed(decision.follow_ups)])


def _refuse(item: Item, op: Op, error: PerdureError, batch: DecidedBatch) -> None:
    """The op was not decided. Leave it to the run's owner, or reply with the error."""
    builder = batch.builder
    if isinstance(error, RunOwnedElsewhere):
        # The owner of the run decides this op. If the op came by mail, the owner has it in its mail already.
        if item.mail or type(op) in _WAKING:
            batch.decided.append((item, error))
        else:
            batch.decided.append((item, Mailed(builder.leave_mail(op, is_awaited=item.reply is not None))))
        return
    batch.decided.append((item, error))
    if item.mail:
        builder.answer(item.mail, error)
    if isinstance(error, EngineBug) and not isinstance(error, RowDamaged):
        batch.bugs.append((op, error))
        batch.broken.add(op.run_id)


__all__ = ["DECIDED_AT_ONCE_MAX", "Decided", "DecidedBatch", "Mailed", "decide_batch", "decide_in_pieces"]
