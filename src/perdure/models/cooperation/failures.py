"""Failures as data that travel through a hierarchy of runs: what was raised, where, and which failures caused it.

Types are texts and are never made classes again, since a child's code may not be installed where its parent runs.
"""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from perdure.errors import ScopeFailed

CHILD_ROLLED_BACK = "ChildRolledBack"
CHILD_ROLLBACK_FAILED = "ChildRollbackFailed"
PARENT_SAID_SO = "ParentSaidSo"
GAVE_UP = "GaveUp"
CANCELLATION_REQUESTED = "CancellationRequested"
ROLLBACK_REQUESTED = "RollbackRequested"
DEADLINE_MISSED = "DeadlineMissed"
ROLLBACK_FAILED = "RollbackFailed"
DISMISSED = "Dismissed"

_MODELS = Path(__file__).parent.parent
_OURS = {str(_MODELS / "carriers.py"), str(_MODELS / "cooperation" / "executing.py")}
_THREAD = concurrent.futures.thread.__file__

_FRAMES_MAX = 100
_CAUSES_MAX = 8


class Frame(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of a stack trace."""

    file_name: str
    line_number: int
    class_name: str | None = None
    function_name: str | None = None


class Failure(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What went wrong in one run: `source` is "operation[run]", `causes` are the failures it came from, its children's
    among them, the most important one first."""

    type: str
    message: str
    source: str = ""
    stack_trace: tuple[Frame, ...] = ()
    causes: tuple[Failure, ...] = ()

    def error(self) -> ScopeFailed:
        """For `raise failure.error()`: the step fails with this very failure, not with one that wraps it."""
        return ScopeFailed(f"{self.type}: {self.message}", failure=self)

    def walk(self) -> Iterator[Failure]:
        """This failure and all its causes, each before its own."""
        yield self
        for cause in self.causes:
            yield from cause.walk()

    def __str__(self) -> str:
        return trace(self)


def to_failure(error: BaseException, source: str, depth: int = 0) -> Failure:
    """The exception as data, its cause and the members of a group as causes. Never raises."""
    if isinstance(error, ScopeFailed) and isinstance(error.failure, Failure):
        return error.failure
    causes: list[Failure] = []
    if depth < _CAUSES_MAX:
        if isinstance(error, BaseExceptionGroup):
            causes += [to_failure(inner, source, depth + 1) for inner in error.exceptions]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            causes.append(to_failure(cause, source, depth + 1))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return Failure(
        type=f"{type(error).__module__}:{type(error).__qualname__}".removeprefix("builtins:"),
        message=_text(error),
        source=source,
        stack_trace=tuple(
            Frame(file_name=frame.filename, line_number=frame.lineno or 0, function_name=frame.name)
            for frame in frames[-_FRAMES_MAX:]
        ),
        causes=tuple(causes),
    )


def _is_ours(file_name: str) -> bool:
    """Whether a frame tells only that a step was called."""
    return file_name in _OURS or file_name == _THREAD


def source_of(handler: str | None, run_id: str | None) -> str:
    return f"{handler}[{run_id}]" if handler else "outside"


def child_failure(step: str, source: str, failed: Sequence[tuple[Failure, bool]]) -> Failure:
    """What a parent is told of children that rolled back (False) or could not (True). Those that could not come first,
    since what they left behind is still there; otherwise the children's own order holds."""
    worst = [failure for failure, is_left_undone in failed if is_left_undone]
    rest = [failure for failure, is_left_undone in failed if not is_left_undone]
    what = f"{len(worst)} could not roll back" if worst else "all of them rolled back"
    return Failure(
        type=CHILD_ROLLBACK_FAILED if worst else CHILD_ROLLED_BACK,
        message=f"{len(failed)} handler{'s' * (len(failed) > 1)} of what step {step!r} emitted failed: {what}",
        source=source,
        causes=(*worst, *rest),
    )


def parent_said_so(cause: Failure | None, source: str) -> Failure:
    return Failure(
        type=PARENT_SAID_SO,
        message="the scope that emitted the message rolls back",
        source=source,
        causes=() if cause is None else (cause,),
    )


def gave_up(reasons: Sequence[Failure], source: str) -> Failure:
    message = "; ".join(f"{reason.type}: {reason.message}" for reason in reasons)
    return Failure(type=GAVE_UP, message=message, source=source, causes=tuple(reasons))


def rollback_failed(failures: Sequence[Failure], began_with: Failure | None, source: str) -> Failure:
    """Why a run could not be rolled back, and behind it why it was to be."""
    if len(failures) == 1:
        first = failures[0]
        causes = first.causes if began_with is None or began_with in first.causes else (*first.causes, began_with)
        return Failure(
            type=first.type,
            message=first.message,
            source=first.source or source,
            stack_trace=first.stack_trace,
            causes=causes,
        )
    return Failure(
        type=ROLLBACK_FAILED,
        message=f"{len(failures)} parts of the rollback failed: "
        + "; ".join(f"{failure.type}: {failure.message}" for failure in failures),
        source=source,
        causes=(*failures, *(() if began_with is None else (began_with,))),
    )


def trace(failure: Failure, indent: str = "") -> str:
    """The failure as people read it: run by run from the root down, each with its own stack, causes indented."""
    at = f" in {failure.source}" if failure.source else ""
    lines = [f"{indent}{failure.type}: {failure.message}{at}"]
    lines += [
        f'{indent}  File "{frame.file_name}", line {frame.line_number}, in {_function(frame)}'
        for frame in failure.stack_trace
    ]
    for number, cause in enumerate(failure.causes):
        lines.append(f"{indent}caused by:" if number == 0 else f"{indent}and by:")
        lines.append(trace(cause, indent + "  "))
    return "\n".join(lines)


def _function(frame: Frame) -> str:
    return ".".join(part for part in (frame.class_name, frame.function_name) if part) or "?"


def _text(error: BaseException) -> str:
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return f"<{type(error).__qualname__} whose str() failed>"
