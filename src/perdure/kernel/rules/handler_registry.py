"""The rules of the handler registry: which operations are expected to handle the messages of a topic."""

from __future__ import annotations

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.runless_rows import HandlerChange, SharedWrites
from perdure.kernel.runs import Run


def register(_run: Run | None, op: ops.RegisterHandlers, _me: str, _inputs: DecisionInput) -> Decision:
    """Add handlers to the registry. Handlers that are already expected stay unchanged."""
    changes = [HandlerChange(topic, name, True) for topic, name in op.handlers]
    return Decision(shared=SharedWrites(handlers=changes), reply=True) if changes else NOTHING


def retire(_run: Run | None, op: ops.RetireHandlers, _me: str, inputs: DecisionInput) -> Decision:
    """Remove handlers from the registry. Replies whether at least one of them was in the registry and not retired."""
    known = [pair for pair in dict.fromkeys(op.handlers) if pair in inputs.handlers]
    if not known:
        return NOTHING
    return Decision(shared=SharedWrites(handlers=[HandlerChange(*pair, False) for pair in known]), reply=True)
