"""The rules of published values and streams. They decide which publications and items of a run count."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.effects import Published
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED


def with_outputs(decision: Decision, op: ops.Advance) -> Decision:
    """Return the decision about an advance, with the published values and the stream items of the workflow code."""
    if decision.run is None:
        return decision
    return replace(
        decision,
        published=op.published,
        stream_items=op.stream_items,
        effects=(*decision.effects, Published(op.run_id)),
    )


def append(run: Run | None, op: ops.Append, me: str, _inputs: DecisionInput) -> Decision:
    """Append a step's items to a stream, if this engine owns the run. The items count even if the step has failed in
    the meantime and waits for its next attempt.
    """
    if run is None or run.claim != op.claim or run.owner != me or run.hold is not None or run.status in FINISHED:
        return NOTHING
    return Decision(run=run, stream_items=op.stream_items, effects=(Published(run.id),), reply=True)
