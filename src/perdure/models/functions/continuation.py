"""Continuation: a run goes on as another call. It keeps its id and drops its history.

perdure/kernel/rules/continuation.py has the rules for the stored run.
"""

from __future__ import annotations

from typing import Any, NoReturn

from perdure.errors import InvariantViolated, Misuse
from perdure.models.functions.commands import Continued
from perdure.models.functions.context import require_loop
from perdure.models.functions.define import RunCall
from perdure.values.arguments import checked


@checked
async def continue_as(call: RunCall[Any]) -> NoReturn:
    """Continue this run as another call. Never returns.

    The run's history is cleared, so that a loop can go on forever. The run keeps its tags, its deadline, and the events
    that it has not read yet. Raises Misuse if the run has registered compensations, because they would be lost.
    """
    loop = require_loop("continue_as")
    if not isinstance(call, RunCall):
        raise Misuse(f"continue_as() takes a called workflow, as in continue_as(poll(cursor)), not {call!r}")
    if loop.has_compensations:
        raise Misuse("continue_as() would forget what compensate() has registered: end the run, or start another one")
    loop.continue_as(Continued(call.workflow, call.input(loop.payload_max)))
    await loop.create_future()
    raise InvariantViolated("a run went on after it had continued as another call", run_id=loop.run_id)
