"""How the command ends: exit codes, and errors as what happened and what to do next."""

from __future__ import annotations

import re
from enum import IntEnum
from shlex import quote

from perdure import errors


class Code(IntEnum):
    """Exit codes. docs/cli.md has the same table."""

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
    """What a verb could not do: what happened, and what to do next."""

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

# The errors' own advice is for code. Here it is for whoever sits at a terminal.
_ADVICE: dict[type[errors.PerdureError], str] = {
    errors.RunNotFound: "see which there are: perdure runs list",
    errors.DeadLetterNotFound: "see which there are: perdure dead-letters list",
    errors.ArtifactNotFound: "see which there are: perdure artifacts list",
    errors.TaskNotFound: "see which there are: perdure tasks list",
    errors.UnknownWorkflow: "start an engine that has it (perdure worker MODULE), see what engines have (perdure"
    " engines), or give --version to have the run wait for one",
    errors.RunFinished: "look at it: perdure runs show {run_id}",
    errors.RunNotRetryable: "only a failed run can be retried; look at it: perdure runs show {run_id}",
    errors.RunExists: "look at that run: perdure runs show {run_id}; or use another --id",
    errors.RunNotWaiting: "leave --strict out to have it queued",
    errors.TaskClosed: "look at it: perdure tasks show {task_id}",
    errors.InvalidAnswer: "see its schema: perdure tasks show {task_id}",
    errors.SchemaTooNew: "upgrade this Perdure: pip install -U perdure",
    errors.StoreBusy: "see that the store is up and not overloaded, then try again",
    errors.StoreUnavailable: "see that the store is up, then try again",
}


def refused(error: BaseException) -> Refusal | None:
    """An error as a refusal; None if it is nobody's fault but the program's."""
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
    """The first half of a message that says what happened; and then, after a semicolon, what to do."""
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
    """RunNotFound is run_not_found."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


__all__ = ["Code", "Refusal", "refused"]
