"""The rule that begins the rollback of a run of a function or a graph.

After that, the run makes the calls that it has registered, in reverse order (models/functions/compensation.py).
models/cooperation/rollback.py decides the rollbacks of operations.
"""

from __future__ import annotations

from perdure.kernel import ops
from perdure.kernel.decision import move
from perdure.kernel.runs import Audit, Run
from perdure.kernel.status import Status


def begin_rollback(run: Run, op: ops.Op, cause: str, owner: str | None) -> tuple[Run, tuple[Audit, ...]]:
    """Begin the rollback with a new claim. Late results of the run's earlier work have the old claim, so they are
    dropped. The journal stays valid.
    """
    return move(
        run, Status.ROLLING_BACK, op, cause, owner=owner, claim=run.claim + 1, hold=None, recoveries=0, tried=""
    )
