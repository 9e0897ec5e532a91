"""What runs publish and append to their streams: which of it counts."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.effects import Published
from perdure.kernel.records import Run
from perdure.kernel.status import FINISHED


def said(decision: Decision, op: ops.Advance) -> Decision:
    """The decision about an advance, with what workflow code said on the way."""
    if decision.run is None:
        return decision
    return replace(
        decision,
        published=op.published,
        stream_items=op.stream_items,
        effects=(*decision.effects, Published(op.run_id)),
    )


def append(run: Run | None, op: ops.Append, me: str, _inputs: DecisionInput) -> Decision:
    """What a step says counts while its run is this engine's. It may have begun to wait since: for its next attempt."""
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    return Decision(run=run, stream_items=op.stream_items, effects=(Published(run.id),), reply=True)
