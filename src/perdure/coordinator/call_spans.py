"""The time that a call has spent waiting for a silent store, summed over all requests of the call.

A call may make several requests, and each of them may wait for the store. All requests of a call share one
`patience_s`. The time that earlier requests waited counts for the next request.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SPANS_MAX: Final = 1_000

# The loop's time at which the current call began. It is None outside of calls that make several requests.
call_began: Final[ContextVar[float | None]] = ContextVar("perdure_call_began", default=None)


class Silences:
    """Spans of the loop's time in which the store did not answer any request. It may be used only on the loop."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque(maxlen=_SPANS_MAX)  # do not overlap, and are in order

    def note(self, began: float, ended: float) -> None:
        """Note that requests failed from `began` until `ended`. `ended` is about now."""
        while self._spans and self._spans[-1][1] >= began:
            began = min(began, self._spans.pop()[0])
        self._spans.append((began, ended))

    def between(self, began: float, ended: float) -> float:
        """Return for how many seconds of this span of time the store was silent."""
        total = 0.0
        for start, end in reversed(self._spans):
            if end <= began:
                break
            total += max(0.0, min(end, ended) - max(start, began))
        return total


def one_call(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let all requests that a coroutine function makes share one `patience_s`. A call inside another call counts as a
    part of the outer call.

    Do not use this for calls that wait for anything other than the store, for example for the end of a run. Such calls
    may take days, and short outages would add up.
    """

    @wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        if call_began.get() is not None:
            return await function(*args, **options)
        token = call_began.set(asyncio.get_running_loop().time())
        try:
            return await function(*args, **options)
        finally:
            call_began.reset(token)

    return call


def whole_calls(*, but: Sequence[str] = ()) -> Callable[[type[T]], type[T]]:
    """Apply `one_call` to each public coroutine function of a class. `but` names functions that also wait for something
    other than the store; they are left out.
    """

    def of(owner: type[T]) -> type[T]:
        for name, member in list(vars(owner).items()):
            if not name.startswith("_") and name not in but and inspect.iscoroutinefunction(member):
                setattr(owner, name, one_call(member))
        return owner

    return of


def outside_of_calls(make: Callable[[], T]) -> T:
    """Call `make` outside of the current call. Use this for an object that outlives the call."""
    token = call_began.set(None)
    try:
        return make()
    finally:
        call_began.reset(token)


__all__ = ["Silences", "call_began", "one_call", "outside_of_calls", "whole_calls"]
