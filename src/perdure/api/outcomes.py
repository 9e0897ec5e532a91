"""The outcome of a run: wait for it, and read its result or failure."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from perdure.api.obstacles import Obstacles
from perdure.api.stranded_runs import why_stranded
from perdure.errors import EngineStopped, RunCancelled, RunFailed, RunNotFound
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.common.stored_failures import read_failure
from perdure.ports import Codec
from perdure.session import Session
from perdure.values.checks import checked_text
from perdure.values.failures import rebuild
from perdure.values.json import Reader

_ASK_AGAIN_S: Final = 0.01
_ASK_AGAIN_MAX_S: Final = 0.25
_CANCELLED: Final = "perdure.errors:RunCancelled"


async def outcome_of(session: Session, run_id: str) -> tuple[Run, Outcome]:
    """Wait until a run has ended, and return its last state and its outcome.

    Raises RunNotFound and EngineStopped. Raises StoreUnavailable if the store does not answer for a long time. Logs a
    warning if the run is held, or if no engine has its code.
    """
    pause_s = _ASK_AGAIN_S
    obstacles: Obstacles | None = None
    while True:
        session.check_open()
        if session.coordinator.loaded(run_id) is not None:
            if (ended := await session.followers.until_ended(run_id)) is not None:
                return ended
            continue  # This engine does not own the run any more.
        checked_text(run_id, "a run's id")
        stored = (await session.caller_store.get([run_id])).get(run_id)
        if stored is None:
            raise RunNotFound(run_id)
        if stored.run.status in FINISHED:
            return stored.run, stored.outcome
        if session.state != "open":
            session.check_unbroken()
            raise EngineStopped("the engine is stopping; the run goes on when an engine has it again")
        if session.coordinator.loaded(run_id) is None:
            obstacles = obstacles or Obstacles(lambda run: why_stranded(session, run))
            await obstacles.look(stored.run)
            # Another engine owns the run, or no engine does. So this code waits in real time, not by the engine's
            # clock.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)


def read_result(session: Session, run: Run, output: str, reader: Reader | None) -> Any:
    """Return the result of a run. If this process has the workflow, the result has the workflow's type."""
    if reader is None:
        known = session.workflows.get((run.workflow, run.workflow_version))
        reader = known.signature.result if known is not None else Reader(Any, "a result")
    return reader.read(session.codec.decode(output), f"the result of run {run.id!r}")


def failure_of(run: Run, outcome: Outcome, codec: Codec) -> Exception:
    """Return the error for a run that did not succeed: RunCancelled or RunFailed.

    The cause of RunFailed is the exception that was rebuilt from the stored failure.
    """
    failure = read_failure(outcome.failure, codec) if outcome.failure else None
    if failure is None or run.status == Status.CANCELLED or failure.type == _CANCELLED:
        reason = failure.message if failure is not None else None
        return RunCancelled(f"run {run.id!r} was cancelled: {reason}", run_id=run.id, reason=reason)
    error = RunFailed(
        f"run {run.id!r} of workflow {run.workflow!r} failed: {failure.type.rpartition(':')[2]}: {failure.text}",
        run_id=run.id,
        failure=failure,
    )
    error.__cause__ = rebuild(failure, run_id=run.id)
    return error


__all__ = ["failure_of", "outcome_of", "read_result"]
