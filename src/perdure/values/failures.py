"""Exceptions as data, and exceptions rebuilt from data. A workflow always gets the rebuilt exception, live and in every
replay.

The stored form of a failure has a bounded size, which includes its causes and the members of a group. The limits are
below.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.errors import MaxRetriesExceeded, NonRetryable, StepFailed
from perdure.kernel.failures import Attempt, Failure
from perdure.values.replicas import (
    NO_FORM,
    attributes_of,
    encoded,
    known_failure,
    native_of,
    replica,
    set_cause,
)

MESSAGE_MAX_CHARS: Final = 50_000
DATA_MAX_BYTES: Final = 250_000
FAILURE_MAX_CHARS: Final = 1_000_000
MEMBERS_MAX: Final = 1_000
_STACK_MAX_CHARS = 20_000
_BRIEF_CHARS = 1_000
_CAUSES_MAX = 8
_MARK = "_perdure_entry"
_SENT = "_perdure_sent"
_WHERE = "_perdure_where"


class _Room:
    """The space that remains for storing one failure. Once the space is used up, only the beginnings of messages are
    stored.
    """

    def __init__(self) -> None:
        self._left = FAILURE_MAX_CHARS

    def message(self, text: str) -> str:
        text = _cut(text, MESSAGE_MAX_CHARS if len(text) <= self._left else _BRIEF_CHARS)
        self._left -= len(text)
        return text

    def has(self, data: object) -> bool:
        if not data:
            return True
        try:
            size = len(msgspec.json.encode(data))
        except Exception:  # noqa: BLE001 - users' classes may raise anything
            return False
        if size > min(DATA_MAX_BYTES, self._left):
            return False
        self._left -= size
        return True


def to_failure(error: BaseException, *, entry: int | None = None, history: Sequence[Attempt] = ()) -> Failure:
    """Return the exception as data. Never raises. Parts that are too large or have no JSON form are left out."""
    if (sent := _sent(error)) is not None:
        return msgspec.structs.replace(sent, entry=entry, history=list(history), where=where_of(error))
    failure = _to_failure(error, _Room(), 0)
    return msgspec.structs.replace(failure, stack=_stack(error), entry=entry, history=list(history))


def _to_failure(error: BaseException, room: _Room, depth: int) -> Failure:
    known = known_failure(error)
    message = room.message(message_of(error))
    args, state, native, partial = _data(error, room) if known is None else _data_again(known, room)
    return Failure(
        type=type_name(type(error)),
        message=message,
        args=args,
        state=state,
        native=native,
        partial=partial,
        members=_members(error, room, depth) if isinstance(error, BaseExceptionGroup) and depth < _CAUSES_MAX else [],
        where=where_of(error),
        cause=_to_failure(cause, room, depth + 1) if depth < _CAUSES_MAX and (cause := _cause(error)) else None,
    )


def _members(group: BaseExceptionGroup[BaseException], room: _Room, depth: int) -> list[Failure]:
    members = [_to_failure(one, room, depth + 1) for one in group.exceptions[:MEMBERS_MAX]]
    if (more := len(group.exceptions) - len(members)) > 0:
        rest = f"{more:,} more exceptions of the group, which are not stored"
        members.append(Failure(type=type_name(StepFailed), message=rest, args=[rest]))
    return members


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _data(error: BaseException, room: _Room) -> tuple[list[Any] | None, dict[str, Any], dict[str, Any], bool]:
    """Return the exception's arguments, its attributes, its built-in fields, and whether a part was left out."""
    given = [error.message] if isinstance(error, BaseExceptionGroup) else list(error.args)
    args = encoded(given)
    if args is NO_FORM or not room.has(args):
        args = None
    state, lost = _stored(_attributes(error), room)
    try:
        native, lost_too = _stored(native_of(error), room)
    except Exception:  # noqa: BLE001 - classes of others may raise anything
        native, lost_too = {}, True
    return args, state, native, lost or lost_too


def _data_again(known: Failure, room: _Room) -> tuple[list[Any] | None, dict[str, Any], dict[str, Any], bool]:
    if not room.has([known.args, known.state, known.native]):
        return None, {}, {}, True
    return known.args, known.state, known.native, known.partial


def _attributes(error: BaseException) -> dict[str, Any]:
    own = (_MARK, _SENT, _WHERE)
    return {name: encoded(value) for name, value in attributes_of(error) if name not in own}


def _stored(values: Mapping[str, Any], room: _Room) -> tuple[dict[str, Any], bool]:
    kept = {name: value for name, value in values.items() if value is not NO_FORM and room.has([name, value])}
    return kept, len(kept) < len(values)


def rebuild(failure: Failure, *, run_id: str, position: str = "", seq: int | None = None) -> Exception:
    """Rebuild the exception. The result is an instance of the original class, or of a class that derives from the
    original class and StepFailed. If this process has not imported the class, the result is a StepFailed.

    If the step was attempted several times, the cause of the exception is a MaxRetriesExceeded with the history. The
    cause of the MaxRetriesExceeded is the exception's original cause.
    """
    members = [rebuild(one, run_id=run_id) for one in failure.members]
    error = replica(failure, members, message_of, run_id=run_id, position=position)
    cause = None if failure.cause is None else rebuild(failure.cause, run_id=run_id)
    attempts = len(failure.history)
    if attempts > 1:
        exhausted = MaxRetriesExceeded(
            f"{failure.type}: {failure.message} (after {attempts} attempts)",
            failure,
            run_id=run_id,
            position=position,
            attempts=attempts,
            history=failure.history,
        )
        if error is not None:
            set_cause(exhausted, cause)
            cause = exhausted
        else:
            error = exhausted
    elif error is None:
        error = StepFailed(f"{failure.type}: {failure.message}", failure, run_id=run_id, position=position)
    set_cause(error, cause)
    if seq is not None:
        mark(error, seq)
    if failure.where:
        locate(error, failure.where)
    return error


class _Unrepeatable(StepFailed, NonRetryable): ...


def receive(failure: Failure, *, run_id: str, position: str, is_final: bool = False) -> BaseException:
    """Rebuild an exception that another process sent. If it is stored, its stored form is the failure that was sent,
    with the stack of that process.

    With `is_final`, no retry policy applies to the exception, as with SystemExit.
    """
    rebuilt = rebuild(failure, run_id=run_id, position=position)
    error = _Unrepeatable(failure.message) if is_final else rebuilt
    error.__dict__[_SENT] = failure  # Bypass a __setattr__ that refuses changes.
    return error


def mark(error: BaseException, seq: int) -> None:
    """Mark an exception with the number of the journal entry that it came from."""
    error.__dict__[_MARK] = seq


def locate(error: BaseException, where: str) -> None:
    """Mark an exception with the place in the workflow where it was raised, as a text for people, for example the
    branch of a graph.
    """
    error.__dict__[_WHERE] = where


def where_of(error: BaseException) -> str:
    """Return the place that `locate` noted for the exception, or ""."""
    where: str = error.__dict__.get(_WHERE, "")
    return where


def is_marked(error: BaseException) -> bool:
    """Whether the exception came from the journal, and not from the code that runs now."""
    return _MARK in error.__dict__


def _sent(error: BaseException) -> Failure | None:
    sent: Failure | None = error.__dict__.get(_SENT)
    return sent


def entry_of(error: BaseException, elapsed: int = 0) -> int | None:
    """Return the earliest journal entry that caused this exception. This is the exception's own entry, or the entry of
    one of its causes. A TimeoutError without an entry belongs to the entry at which the last timeout had passed
    (`elapsed`).

    If the exception is a step's own failure, its context is ignored. The workflow had already handled that earlier
    failure, so a retry must not repeat it.
    """
    return min(_marks(error, set(), elapsed), default=None)


def _marks(error: BaseException | None, seen: set[int], elapsed: int) -> Iterator[int]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    if is_marked(error):
        yield error.__dict__[_MARK]
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _marks(inner, seen, elapsed)
    if elapsed and isinstance(error, TimeoutError):
        yield elapsed
        return
    yield from _marks(_cause(error), seen, elapsed)


def type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def brief(error: BaseException) -> tuple[str, str]:
    """Return the exception's class name and message, as the process that raised it saw them."""
    sent = _sent(error)
    return (type_name(type(error)), message_of(error)) if sent is None else (sent.type, sent.message)


def message_of(error: BaseException) -> str:
    """Return the exception's message as a text that can be stored. Never raises."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return f"<{type(error).__qualname__} whose str() failed>"


def _stack(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        text = "".join(traceback.format_tb(error.__traceback__))
    return _cut(text, _STACK_MAX_CHARS).encode(errors="backslashreplace").decode()


def _cut(text: str, chars_max: int) -> str:
    """Return the text, without its middle if it is too long."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n  [… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"
