"""Exit codes, and errors as messages. A message says what happened, and what to do next."""

from __future__ import annotations

import re
from enum import IntEnum
from shlex import quote

from perdure import errors


class Code(IntEnum):
    """Exit codes. docs/cli.md explains them."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    STORE = 5
    NOT_CONFIRMED = 6
    TIMED_OUT = 7
    BUG = 70
    INTERRUPTED = 130


class Refusal(Exception):
    """A command cannot do what it was asked to do. `what` says what happened, and `todo` says what to do next."""

    def __init__(self, what: str, todo: str = "", *, code: Code = Code.USAGE, kind: str = "usage") -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.code = code
        self.kind = kind


_NOT_FOUND = (
    errors.RunNotFound,
    errors.DeadLetterNotFound,
    errors.ArtifactNotFound,
    errors.TaskNotFound,
    errors.RecordNotFound,
    errors.NotPublished,
    errors.UnknownWorkflow,
)
_CONFLICT = (
    errors.RunExists,
    errors.RunFinished,
    errors.RunNotWaiting,
    errors.RunNotRetryable,
    errors.RunOwnedElsewhere,
    errors.InvalidTransition,
    errors.ConcurrentModification,
    errors.TaskClosed,
    errors.TaskLost,
    errors.QueueFull,
)

# The messages of errors give advice for Python code. The advice here names commands.
_ADVICE: dict[type[errors.PerdureError], str] = {
    errors.RunNotFound: "list the runs: perdure runs list",
    errors.DeadLetterNotFound: "list the dead letters: perdure dead-letters list",
    errors.ArtifactNotFound: "list the artifacts: perdure artifacts list",
    errors.TaskNotFound: "list the tasks: perdure tasks list --status all",
    errors.UnknownWorkflow: "start an engine that has it (perdure worker MODULE), list what engines have (perdure"
    " definitions list), or give --version: the run then waits for an engine that has it",
    errors.RunFinished: "look at the run: perdure runs show {run_id}",
    errors.RunNotRetryable: "only a failed run can be retried; look at the run: perdure runs show {run_id}",
    errors.RunExists: "look at the run that has this id: perdure runs show {run_id}; or use another --id",
    errors.RunNotWaiting: "without --strict, the event is queued",
    errors.TaskClosed: "look at the task: perdure tasks show {task_id}",
    errors.InvalidAnswer: "see the schema of the answer: perdure tasks show {task_id}",
    errors.SchemaTooNew: "upgrade this Perdure: pip install -U perdure",
    errors.StoreBusy: "check that the store is up and not overloaded, then try again",
    errors.StoreUnavailable: "check that the store is up, then try again",
}


def refused(error: BaseException) -> Refusal | None:
    """Return an error as a refusal. Return None if the error is a bug."""
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, errors.PerdureError):
        return None
    if isinstance(error, errors.EngineBug) and not isinstance(error, errors.RowDamaged):
        return None
    what, todo = str(error), ""
    for kind, advice in _ADVICE.items():
        if isinstance(error, kind):
            what = _happened(error)
            todo = advice.format_map({name: quote(str(value)) for name, value in vars(error).items()})
            break
    return Refusal(what, todo, code=_code(error), kind=_kind(error))


def _happened(error: errors.PerdureError) -> str:
    """Return the part of an error's message before the last semicolon, which says what happened. The part after it is
    advice.
    """
    if isinstance(error, errors.RunNotFound):
        return f"no run has the id {error.run_id!r}"
    whole = str(error)
    return whole.rpartition("; ")[0] or whole if isinstance(error, errors.Misuse) else whole


def _code(error: errors.PerdureError) -> Code:
    if isinstance(error, _NOT_FOUND):
        return Code.NOT_FOUND
    if isinstance(error, _CONFLICT):
        return Code.CONFLICT
    if isinstance(error, (errors.StoreError, errors.RowDamaged)):
        return Code.STORE
    return Code.FAILED if isinstance(error, errors.Outcome) else Code.USAGE


def _kind(error: errors.PerdureError) -> str:
    """Return the code of an error: run_not_found for RunNotFound."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


__all__ = ["Code", "Refusal", "refused"]
