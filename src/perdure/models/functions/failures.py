"""Exceptions as data and back. A workflow always gets the rebuilt exception, the first time as in every replay."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from perdure.errors import MaxRetriesExceeded, StepFailed
from perdure.kernel.records import Attempt, Failure

_STACK_MAX_CHARS = 20_000
_CAUSES_MAX = 8
_MARK = "_perdure_entry"
_SENT = "_perdure_sent"
_NO_FORM: Any = object()


def to_failure(
    error: BaseException, *, entry: int | None = None, history: Sequence[Attempt] = (), depth: int = 0
) -> Failure:
    """The exception as data. Never raises: what has no JSON form is left out."""
    if (sent := _sent(error)) is not None:
        return msgspec.structs.replace(sent, entry=entry, history=list(history))
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    state = _state(error)
    return Failure(
        type=type_name(type(error)),
        message=message_of(error),
        args=_plain(list(error.args)),
        state={name: value for name, value in state.items() if value is not _NO_FORM},
        partial=_NO_FORM in state.values(),
        stack=_stack(error) if depth == 0 else "",
        entry=entry,
        history=list(history),
        cause=to_failure(cause, depth=depth + 1) if cause is not None and depth < _CAUSES_MAX else None,
    )


def rebuild(failure: Failure, *, run_id: str, position: str = "", seq: int | None = None) -> BaseException:
    """The exception again: of its own class if that can be found and takes its arguments, else StepFailed.

    After several attempts its cause is a MaxRetriesExceeded that tells of each.
    """
    error = _rebuild_class(failure)
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
        if error is None:
            error = exhausted
        else:
            error.__cause__ = exhausted
    elif error is None:
        error = StepFailed(f"{failure.type}: {failure.message}", failure, run_id=run_id, position=position)
    if error.__cause__ is None and failure.cause is not None:
        error.__cause__ = rebuild(failure.cause, run_id=run_id)
    if seq is not None:
        mark(error, seq)
    return error


def receive(failure: Failure, *, run_id: str, position: str) -> BaseException:
    """The exception that another process sent, rebuilt. As data it is again what was sent, with the stack of there."""
    error = rebuild(failure, run_id=run_id, position=position)
    _set(error, _SENT, failure)
    return error


def mark(error: BaseException, seq: int) -> None:
    """Remember which journal entry an exception came from."""
    _set(error, _MARK, seq)


def _set(error: BaseException, name: str, value: object) -> None:
    try:
        setattr(error, name, value)
    except (AttributeError, TypeError):
        return


def _sent(error: BaseException) -> Failure | None:
    sent: Failure | None = getattr(error, "__dict__", {}).get(_SENT)
    return sent


def entry_of(error: BaseException) -> int | None:
    """The earliest journal entry that this exception is the failure of; if of none, then of what it came from.

    A failure that was dealt with before this one (its context, when it is itself a step's) is not looked at: a retry
    must not repeat what the workflow had come to terms with.
    """
    return min(_marks(error, set()), default=None)


def _marks(error: BaseException | None, seen: set[int]) -> Iterator[int]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    if hasattr(error, _MARK):
        yield getattr(error, _MARK)
        return
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _marks(inner, seen)
    yield from _marks(error.__cause__ or (None if error.__suppress_context__ else error.__context__), seen)


def type_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def brief(error: BaseException) -> tuple[str, str]:
    """The name of the exception's class and what it says: in the process that it came from, if that was another one."""
    sent = _sent(error)
    return (type_name(type(error)), message_of(error)) if sent is None else (sent.type, sent.message)


def _rebuild_class(failure: Failure) -> BaseException | None:
    cls = _find_class(failure.type)
    if cls is None or failure.args is None:
        return None
    try:
        error = _construct(cls, failure)
        if error is None or message_of(error) != failure.message:
            # Its __init__ makes the message from other arguments than it passes on: take it past __init__.
            if error is None and failure.partial:
                return None
            error = cls.__new__(cls, *failure.args)
            error.args = tuple(failure.args)
        error.__dict__.update(failure.state)
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return None
    return error if message_of(error) == failure.message else None


def _construct(cls: type[BaseException], failure: Failure) -> BaseException | None:
    try:
        return cls(*failure.args or ())
    except TypeError:
        return None


def _find_class(name: str) -> type[BaseException] | None:
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = sys.modules.get(module_name) or importlib.import_module(module_name)
        for part in qualname.split("."):
            found = getattr(found, part)
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def message_of(error: BaseException) -> str:
    """What the exception says; never raises, and can be stored."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return f"<{type(error).__qualname__} whose str() failed>"


def _stack(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    if len(text) > _STACK_MAX_CHARS:
        text = text[: _STACK_MAX_CHARS // 2] + "\n  […]\n" + text[-_STACK_MAX_CHARS // 2 :]
    return text.encode(errors="backslashreplace").decode()


def _state(error: BaseException) -> dict[str, Any]:
    attributes = getattr(error, "__dict__", {}).items()
    return {name: _plain(value, _NO_FORM) for name, value in attributes if name not in (_MARK, _SENT)}


def _plain(value: Any, otherwise: Any = None) -> Any:
    """The value in JSON's own types."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return otherwise
