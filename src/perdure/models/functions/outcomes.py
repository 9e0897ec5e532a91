"""The end of a durable function's run: its status and outcome, derived from how its code ended."""

from __future__ import annotations

from typing import Any, NoReturn

from msgspec.structs import replace

from perdure.errors import ForbiddenInWorkflow, RollbackFailed, UnstorableValue
from perdure.kernel.ops import End
from perdure.kernel.rows import Entry
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.models.common.interrupts import failed_by_exit, is_by_signal
from perdure.models.common.stored_failures import read_failure, write_failure
from perdure.models.functions.define import Workflow
from perdure.models.functions.loop import Completed, Raised
from perdure.ports import Codec
from perdure.values.failures import entry_of, to_failure, where_of
from perdure.values.json import to_text


def outcome_of(
    end: Completed | Raised, workflow: Workflow[Any, Any], codec: Codec, payload_max: int, run_id: str, elapsed: int
) -> tuple[Status, Outcome]:
    """Return the status and the outcome of a run whose code has ended. `elapsed` is the number of the last journal
    entry at which a timeout of the code had elapsed.

    If the result cannot be stored, the run has failed. If a signal that stops the process interrupted the code, raises
    that KeyboardInterrupt.
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
    return Status.FAILED, Outcome(failure=write_failure(failure, codec))


def _without_exit(end: Raised, workflow: Workflow[Any, Any], run_id: str) -> BaseException:
    """Return the error that a run's code has raised.

    If the code tried to end the process, return ForbiddenInWorkflow.
    """
    _check_no_signal(end)
    if not isinstance(end.error, (KeyboardInterrupt, SystemExit)):
        return end.error
    error = ForbiddenInWorkflow(failed_by_exit(end.error, f"workflow {workflow.name!r}"), run_id=run_id)
    error.__cause__ = end.error
    return error


def end_of_rollback(end: Completed | Raised, cause: str, codec: Codec) -> End:
    """Return the end of a rollback. `cause` is the stored failure that caused the rollback."""
    if isinstance(end, Completed):
        return End(status=Status.SUCCEEDED, outcome=Outcome(failure=cause))
    _check_no_signal(end)
    why = read_failure(cause, codec)
    error = RollbackFailed(f"{end.error}; the run was being undone because of {why.type}: {why.message}")
    error.__cause__ = end.error.__cause__ or end.error
    return End(status=Status.FAILED, outcome=Outcome(failure=write_failure(to_failure(error), codec)))


def _check_no_signal(end: Raised) -> None:
    if is_by_signal(end.error):
        raise end.error  # A signal stops the process while this run's code executes. The run has not ended.


__all__ = ["end_of_rollback", "outcome_of"]


def located(entry: Entry, error: BaseException, codec: Codec) -> Entry:
    """Return the entry of a failure, and add the place in the workflow's code where the failure happened. That place is
    known only after the workflow has received the exception.
    """
    where = where_of(error)
    if not where or entry.failure is None:
        return entry
    failure = replace(read_failure(entry.failure, codec), where=where)
    return replace(entry, failure=write_failure(failure, codec))


async def refuse(error: BaseException) -> NoReturn:
    """Raise the error. This runs in place of a run's code if the run must not begin."""
    raise error
