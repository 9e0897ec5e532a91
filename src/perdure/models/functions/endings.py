"""How a run of a durable function ends, from how its code did."""

from __future__ import annotations

from typing import Any

from msgspec.json import decode as from_json
from msgspec.json import encode as to_json

from perdure.errors import ForbiddenInWorkflow, RollbackFailed, UnstorableValue
from perdure.kernel.ops import End
from perdure.kernel.records import Failure, Outcome
from perdure.kernel.status import Status
from perdure.models.common.interrupts import failed_by_exit, is_by_signal
from perdure.models.functions.define import Workflow
from perdure.models.functions.loop import Completed, Raised
from perdure.ports import Codec
from perdure.values.failures import entry_of, to_failure
from perdure.values.json import to_text


def outcome_of(
    end: Completed | Raised, workflow: Workflow[Any, Any], codec: Codec, payload_max: int, run_id: str, elapsed: int
) -> tuple[Status, Outcome]:
    """Return the status and the outcome of a run whose code has ended. `elapsed` is the number of the last entry by
    which somebody's time was up.

    A result that cannot be stored is a failure. Raises what stops the process, if that struck while the code ran.
    """
    if isinstance(end, Completed):
        signature = workflow.signature
        try:
            text = to_text(end.value, signature.about_result, payload_max)
            signature.result.read(text, signature.about_result)
            return Status.SUCCEEDED, Outcome(output=codec.encode(text))
        except UnstorableValue as unstorable:
            error: BaseException = unstorable
    else:
        error = _without_exit(end, workflow, run_id)
    failure = to_failure(error, entry=entry_of(error, elapsed))
    return Status.FAILED, Outcome(failure=to_json(failure).decode())


def _without_exit(end: Raised, workflow: Workflow[Any, Any], run_id: str) -> BaseException:
    """What a run's code has raised; if it was to end the process, that this is forbidden."""
    _check_no_signal(end)
    if not isinstance(end.error, (KeyboardInterrupt, SystemExit)):
        return end.error
    error = ForbiddenInWorkflow(failed_by_exit(end.error, f"workflow {workflow.name!r}"), run_id=run_id)
    error.__cause__ = end.error
    return error


def end_of_rollback(end: Completed | Raised, cause: str) -> End:
    """Return the end of a rollback. `cause` is the failure that the run is undone for, as it is stored."""
    if isinstance(end, Completed):
        return End(status=Status.SUCCEEDED, outcome=Outcome(failure=cause))
    _check_no_signal(end)
    why = from_json(cause, type=Failure)
    error = RollbackFailed(f"{end.error}; it was to be undone because of {why.type}: {why.message}")
    error.__cause__ = end.error.__cause__ or end.error
    return End(status=Status.FAILED, outcome=Outcome(failure=to_json(to_failure(error)).decode()))


def _check_no_signal(end: Raised) -> None:
    if is_by_signal(end.error):
        raise end.error  # Somebody stops the process while this run's code runs: that is no end of the run.


__all__ = ["end_of_rollback", "outcome_of"]
