"""Exceptions as data and back. A workflow always gets the rebuilt exception, the first time as in every replay.

What is stored of one failure is bounded, its causes and the members of a group included: see the limits below.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.errors import MaxRetriesExceeded, NonRetryable, StepFailed
from perdure.kernel.records import Attempt, Failure
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
    """How much may still be stored of one failure. Once it is used up, only beginnings of messages are."""

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
    """The exception as data. Never raises: what has no JSON form, or is too large, is left out."""
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
    """Arguments, attributes, what C keeps; and whether that is not all."""
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
    """The exception again, of its own class or of one derived from that and StepFailed; StepFailed itself if this
    process has not imported its class.

    After several attempts its cause is a MaxRetriesExceeded that tells of each, and whose cause is the exception's own.
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
    """The exception that another process sent, rebuilt. As data it is again what was sent, with the stack of there.

    `is_final`: it was none that a retry policy is asked about, such as SystemExit.
    """
    rebuilt = rebuild(failure, run_id=run_id, position=position)
    error = _Unrepeatable(failure.message) if is_final else rebuilt
    error.__dict__[_SENT] = failure  # Past a __setattr__ that refuses.
    return error


def mark(error: BaseException, seq: int) -> None:
    """Remember which journal entry an exception came from."""
    error.__dict__[_MARK] = seq


def locate(error: BaseException, where: str) -> None:
    """Remember where in a workflow an exception happened, for people: in which branch of a graph."""
    error.__dict__[_WHERE] = where


def where_of(error: BaseException) -> str:
    """Where it happened, if that was remembered."""
    where: str = error.__dict__.get(_WHERE, "")
    return where


def is_marked(error: BaseException) -> bool:
    """Whether the exception came out of the journal, and not out of the code that runs."""
    return _MARK in error.__dict__


def _sent(error: BaseException) -> Failure | None:
    sent: Failure | None = error.__dict__.get(_SENT)
    return sent


def entry_of(error: BaseException, elapsed: int = 0) -> int | None:
    """The earliest journal entry that this exception is the failure of; if of none, then of what it came from. A
    TimeoutError that tells nothing is that of the entry by which the last timeout was over (`elapsed`).

    A failure that was dealt with before this one (its context, when it is itself a step's) is not looked at: a retry
    must not repeat what the workflow had come to terms with.
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
    """The name of the exception's class and what it says: in the process that it came from, if that was another one."""
    sent = _sent(error)
    return (type_name(type(error)), message_of(error)) if sent is None else (sent.type, sent.message)


def message_of(error: BaseException) -> str:
    """What the exception says; never raises, and can be stored."""
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
    """The text, without its middle if it is too long."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n  [… {len(text) - 2 * half:,} characters …]\n{text[-half:]}"
