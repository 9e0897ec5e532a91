"""The rules of tokens and sessions. The versions of a token are written one after the other. A session is added or
ended.
"""

from __future__ import annotations

from perdure.kernel import ops
from perdure.kernel.decision import NOTHING, Decision, DecisionInput
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.runs import Run


def put_token(_run: Run | None, op: ops.PutToken, _me: str, inputs: DecisionInput) -> Decision:
    """Add a version of a token. Replies whether this version is now the newest version, even if it was stored
    before.
    """
    newest = inputs.token
    if newest is not None and newest.version == op.token.version:
        return Decision(reply=newest.digest == op.token.digest)
    if (0 if newest is None else newest.version) != op.token.version - 1:
        return NOTHING
    return Decision(shared=SharedWrites(tokens=[op.token]), reply=True)


def put_session(_run: Run | None, op: ops.PutSession, _me: str, _inputs: DecisionInput) -> Decision:
    """Add a session. If a session has the same id, it stays unchanged."""
    return Decision(shared=SharedWrites(sessions=[(op.session.id, op.session)]), reply=True)


def end_session(_run: Run | None, op: ops.EndSession, _me: str, _inputs: DecisionInput) -> Decision:
    return Decision(shared=SharedWrites(sessions=[(op.id, None)]), reply=True)
