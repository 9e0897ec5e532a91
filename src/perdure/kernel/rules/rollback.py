"""The rule of rollbacks: how the rollback of a run of a function or a graph begins.

The run then makes the calls that it registered, in reverse order (models/functions/compensation.py). Rollbacks of
operations are decided in models/cooperation/rollback.py.
"""

from __future__ import annotations

from perdure.kernel import ops
from perdure.kernel.decision import move
from perdure.kernel.runs import Audit, Run
from perdure.kernel.status import Status


def begin_rollback(run: Run, op: ops.Op, cause: str, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    """Begin the rollback under a new claim. Late results of the run's earlier work are dropped, since they have the old
    claim. The journal still counts."""
    return move(
        run, Status.ROLLING_BACK, op, cause, owner=owner, claim=run.claim + 1, hold=None, recoveries=0, tried=""
    )
