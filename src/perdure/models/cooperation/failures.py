"""Failures as data that travel through a hierarchy of runs. A failure has the error, its place, and the failures that
caused it.

The type of a failure is a text. It never becomes a class again, because the code of a child may not be installed where
its parent runs.

Only one row stores a failure whole. If other rows have this failure among their causes, they store a reference. A
reference has the type, the message, the root cause, and the place of the row with the whole failure. `causes.py`
replaces references by the failures.
"""

from __future__ import annotations

import concurrent.futures.thread
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

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

# The types of failures that wrap another failure while it travels through a hierarchy.
_PASSED_ON = frozenset({CHILD_ROLLED_BACK, CHILD_ROLLBACK_FAILED, PARENT_SAID_SO, GAVE_UP, ROLLBACK_FAILED})

_SCOPE_FAILED = f"{ScopeFailed.__module__}:{ScopeFailed.__qualname__}"

_MODELS = Path(__file__).parent.parent
_OURS = {str(_MODELS / "common" / "step_tasks.py"), str(_MODELS / "cooperation" / "executor.py")}
_THREAD = concurrent.futures.thread.__file__

_FRAMES_MAX = 100
_MESSAGE_MAX_CHARS = 50_000  # characters of an exception's message
_CAUSES_MAX = 8
_REASONS_NAMED = 3

LEVELS_MAX = 32  # the levels of causes that are kept in memory, and that are read from the store
SHOWN_MAX = 100  # the number of failures in one trace
MESSAGE_CHARS_MAX = 500  # characters of the message in a reference


class Frame(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of a stack trace."""

    file_name: str
    line_number: int
    class_name: str | None = None
    function_name: str | None = None


class Failure(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A failure of one run.

    `source` is "operation[run]". `causes` are the failures that led to this failure, the most important first. They
    include failures of children.

    `place` is the row that has the whole failure ("run/number"). If the failure is `cut`, this object has only the root
    cause. The stack and the other causes are in that row.
    """

    type: str
    message: str
    source: str = ""
    stack_trace: tuple[Frame, ...] = ()
    causes: tuple[Failure, ...] = ()
    step: str = ""  # the step whose code raised it
    attempts: int = 1  # how many attempts that code had
    # The failure ended a rollback. In this case, its last cause is the reason for the rollback.
    left_undone: bool = False
    place: str = ""
    cut: bool = False

    def error(self) -> ScopeFailed:
        """Return an exception that code can raise. A step that raises it fails with this same failure, not with a
        failure that wraps it.

        The first line of the exception's message is the root cause. If this failure is not the root cause, the second
        line is this failure. If a function failed because its own hierarchy failed, the message of its failure already
        has these two lines. If that failure is the root cause, only the first line of its message is used. So messages
        do not grow from level to level.
        """
        root = self.root_cause
        text = root.message.partition("\n")[0] if root.type == _SCOPE_FAILED else root.line()
        return ScopeFailed(text if root is self else f"{text}\n{self.line()}", failure=self)

    @property
    def root_cause(self) -> Failure:
        """The failure with which everything began, deepest in the hierarchy. Code raised this failure, or a caller
        requested it.

        If several children failed, it is the root cause of the first failure. If some work could not be undone, it is
        the reason why. If one exception led to another inside the same code, only the last exception counts.
        """
        found = self
        while found.causes:
            if found.type in _PASSED_ON or found.cut:
                found = found.causes[0]
                continue
            if found.left_undone:
                break
            inner = next((cause for cause in found.causes if cause.type in _PASSED_ON and cause.causes), None)
            if inner is None:
                break
            found = inner
        return found

    def line(self) -> str:
        """The failure in one line: the error, its step and its run."""
        step = f" in step {self.step!r}" if self.step else ""
        source = f" {'of' if step else 'in'} {self.source}" if self.source else ""
        attempts = f" after {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{self.type}: {self.message}{step}{source}{attempts}"

    def walk(self) -> Iterator[Failure]:
        """Yield this failure and all its causes. Each failure comes before its own causes."""
        waiting: list[Failure] = [self]
        while waiting:
            failure = waiting.pop()
            yield failure
            waiting += reversed(failure.causes)

    def __str__(self) -> str:
        return trace(self)

    def __repr__(self) -> str:
        """Return one line, even if there are many causes."""
        return f"Failure({self.line()!r}, causes={len(self.causes)}, place={self.place!r})"


def to_failure(error: BaseException, source: str, step: str = "", depth: int = 0) -> Failure:
    """Return an exception as data. The exception's cause, and the members of an exception group, become causes. Never
    raises.
    """
    if isinstance(error, ScopeFailed) and isinstance(error.failure, Failure):
        return error.failure
    causes: list[Failure] = []
    if depth < _CAUSES_MAX:
        if isinstance(error, BaseExceptionGroup):
            causes += [to_failure(inner, source, step, depth + 1) for inner in error.exceptions]
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            causes.append(to_failure(cause, source, step, depth + 1))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return Failure(
        type=f"{type(error).__module__}:{type(error).__qualname__}".removeprefix("builtins:"),
        message=_text(error),
        source=source,
        stack_trace=tuple(
            Frame(
                file_name=_storable(frame.filename), line_number=frame.lineno or 0, function_name=_storable(frame.name)
            )
            for frame in frames[-_FRAMES_MAX:]
        ),
        causes=tuple(causes),
        step=step,
    )


def _is_ours(file_name: str) -> bool:
    """Return whether a frame belongs to the code that calls steps, and not to a step."""
    return file_name in _OURS or file_name == _THREAD


def source_of(handler: str | None, run_id: str | None) -> str:
    return f"{handler}[{run_id}]" if handler else "outside"


def parent_said_so(cause: Failure | None, source: str) -> Failure:
    return Failure(
        type=PARENT_SAID_SO,
        message="the scope that emitted the message rolls back",
        source=source,
        causes=() if cause is None else (cause,),
    )


def gave_up(reasons: Sequence[Failure], source: str) -> Failure:
    return Failure(type=GAVE_UP, message=_named(reasons), source=source, causes=tuple(reasons))


def rollback_failed(failures: Sequence[Failure], began_with: Failure | None, source: str) -> Failure:
    """Return the failure of a rollback. Its causes include the reason for the rollback."""
    if len(failures) == 1:
        first = failures[0]
        is_known = began_with is None or any(_is_same(cause, began_with) for cause in first.causes)
        return Failure(
            type=first.type,
            message=first.message,
            source=first.source or source,
            stack_trace=first.stack_trace,
            causes=first.causes if is_known or began_with is None else (*first.causes, began_with),
            step=first.step,
            attempts=first.attempts,
            left_undone=True,
        )
    return Failure(
        type=ROLLBACK_FAILED,
        message=f"{len(failures)} parts of the rollback failed: {_named(failures)}",
        source=source,
        causes=(*failures, *(() if began_with is None else (began_with,))),
        left_undone=True,
    )


def _named(failures: Sequence[Failure]) -> str:
    """Return the first few failures in one line. The line does not grow from level to level."""
    named = [f"{one.type}: {_short(one.message)}" for one in failures[:_REASONS_NAMED]]
    rest = len(failures) - len(named)
    return "; ".join([*named, f"and {rest:,} more"] if rest else named)


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else f"{message[: MESSAGE_CHARS_MAX - 1]}…"


def _is_same(one: Failure, other: Failure) -> bool:
    """Return whether both are the same failure. Causes are not compared, because there may be a thousand levels of
    causes.
    """
    return one is other or (one.type, one.message, one.source, one.place) == (
        other.type,
        other.message,
        other.source,
        other.place,
    )


# ---------------------------------------------------------------------------------------------------------------------
# References


def placed(failure: Failure, scope: str, seq: int) -> Failure:
    """Return the failure with row `seq` of a scope as its place. If another row has the failure, return it
    unchanged.
    """
    return failure if failure.place else replace(failure, place=f"{scope}/{seq}")


def reference(failure: Failure) -> Failure:
    """Return the reference that a row stores instead of a failure that another row has."""
    if failure.cut:
        return failure
    root = failure.root_cause
    short = _without_rest(failure)
    return short if root is failure else replace(short, causes=(_without_rest(root),))


def _without_rest(failure: Failure) -> Failure:
    return Failure(
        type=failure.type,
        message=_short(failure.message),
        source=failure.source,
        step=failure.step,
        attempts=failure.attempts,
        left_undone=failure.left_undone,
        place=failure.place,
        cut=bool(failure.place),
    )


def as_stored(failure: Failure, place: str = "") -> Failure:
    """Return the failure in the form in which the row at `place` stores it.

    If another row has the failure, the result is a reference. Otherwise the result is the whole failure. Causes that
    other rows have are replaced by references.
    """
    if failure.place and failure.place != place:
        return reference(failure)
    return replace(failure, causes=tuple(_with_references(cause, LEVELS_MAX) for cause in failure.causes), place="")


def _with_references(failure: Failure, levels: int) -> Failure:
    if failure.place or levels == 0:
        return reference(failure)
    return replace(failure, causes=tuple(_with_references(cause, levels - 1) for cause in failure.causes))


def within_levels(failure: Failure, levels: int = LEVELS_MAX) -> Failure:
    """Return the failure with at most `levels` levels of causes. Deeper causes become references."""
    if levels == 0:
        return reference(failure)
    causes = tuple(within_levels(cause, levels - 1) for cause in failure.causes)
    if all(one is other for one, other in zip(causes, failure.causes, strict=True)):
        return failure
    return replace(failure, causes=causes)


def trace(failure: Failure, shown_max: int = SHOWN_MAX) -> str:
    """Return the failure as a text for people. It lists run by run from the root down, each with its stack; causes are
    indented.

    At most `shown_max` failures are shown. The last line says how many failures are left out.
    """
    lines: list[str] = []
    shown, left_out = 0, 0
    waiting: list[tuple[Failure, str, str]] = [(failure, "", "")]
    while waiting:
        one, indent, why = waiting.pop()
        if shown == shown_max:
            left_out += 1
            continue
        shown += 1
        lines += [f"{indent.removesuffix('  ')}{why}"] if why else []
        lines.append(f"{indent}{one.line()}")
        lines += [
            f'{indent}  File "{frame.file_name}", line {frame.line_number}, in {_function(frame)}'
            for frame in one.stack_trace
        ]
        if one.cut:
            lines.append(f"{indent}  (its stack and its causes are in row {one.place} of message_event)")
        below = [(cause, f"{indent}  ", "and by:" if place else "caused by:") for place, cause in enumerate(one.causes)]
        waiting += reversed(below)
    if left_out:
        lines.append(f"({left_out:,} more causes, and what caused those, are not shown)")
    return "\n".join(lines)


def _function(frame: Frame) -> str:
    return ".".join(part for part in (frame.class_name, frame.function_name) if part) or "?"


def _storable(text: str) -> str:
    """Return a text without lone surrogates, because JSON cannot have them. File names that are not UTF-8 contain lone
    surrogates.
    """
    return text.encode(errors="backslashreplace").decode()


def _text(error: BaseException) -> str:
    try:
        text = _storable(str(error))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return f"<{type(error).__qualname__} whose str() failed>"
    half = _MESSAGE_MAX_CHARS // 2
    if len(text) <= 2 * half:
        return text
    return f"{text[:half]}\n  [… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"
