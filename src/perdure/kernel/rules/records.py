"""The rules of records: a change adds a version, unless the newest version has the same content."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.decision import Decision, DecisionInput
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.runs import Run


def put(_run: Run | None, op: ops.PutRecord, _me: str, inputs: DecisionInput) -> Decision:
    """Add a version of a record, unless the newest version has this content. Replies with the version that has the
    content.
    """
    newest = inputs.record
    if newest is not None and newest.digest == op.record.digest:
        return Decision(reply=newest.version)
    version = 1 if newest is None else newest.version + 1
    return Decision(shared=SharedWrites(records=[replace(op.record, version=version)]), reply=version)
