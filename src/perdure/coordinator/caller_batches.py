"""Batches that an engine decides but does not commit. A caller inserts their rows in a transaction of its own."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.kernel.batch import Batch
from perdure.kernel.decide import decide
from perdure.kernel.invariants import check_decision
from perdure.kernel.ops import Emit, Start
from perdure.kernel.rows import Engine


def insertable_batch(op: Start, engine: Engine) -> Batch:
    """Return the rows of a new run that any engine may claim. Raises InvariantViolated."""
    return _decided((replace(op, admit=False),), engine)


def insertable_emission(op: Emit, engine: Engine) -> Batch:
    """Return the rows of a message and of the runs that handle it. Raises InvariantViolated."""
    return _decided((op, *(replace(start, admit=False) for start in op.starts)), engine)


def _decided(ops: tuple[Start | Emit, ...], engine: Engine) -> Batch:
    builder = BatchBuilder(Batch(engine_id=engine.id, epoch=engine.epoch, number=0, at=ops[0].at))
    for op in ops:
        decision = decide(None, op, engine.id)
        check_decision(decision)
        builder.add(None, decision)
    return builder.batch


__all__ = ["insertable_batch", "insertable_emission"]
