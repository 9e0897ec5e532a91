"""The tasks, futures and handles of a workflow's loop. They are asyncio's own, with a position in the program and a
fixed hash.

asyncio keeps tasks and futures in sets. If they were hashed by address, the order of a set would differ each time. Here
each of them is hashed by its creation number on its loop, so a replay iterates in the original order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final

from msgspec import Struct

from perdure.models.functions.commands import Ask, StepRequest, TimerRequest
from perdure.models.functions.forbidden import foreign_await

_SLEPT: Final[Any] = getattr(asyncio.futures, "_set_result_unless_cancelled", None)


class GuardedCoroutine:
    """A task's coroutine. Where asyncio's task throws "attached to a different loop" into it, the coroutine gets
    ForbiddenInWorkflow instead.

    `send` is the coroutine's own bound method, so that the guard costs almost nothing unless an error is thrown.
    """

    __slots__ = ("inner", "send")

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self.inner = inner
        self.send = inner.send

    def close(self) -> None:
        self.inner.close()

    def throw(self, error: BaseException) -> Any:
        if type(error) is RuntimeError:
            error = foreign_await(error) or error
        try:
            return self.inner.throw(error)
        finally:
            # The error's traceback refers to this frame. This cycle would keep all objects of the workflow alive.
            del error

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # asyncio's repr and get_stack read cr_code, cr_frame and others.


class WorkflowTask(asyncio.Task[Any]):
    """A task with its own branch of positions:

    `branch` + 1, 2, 3, … in the order of the requests that its code makes.
    """

    __slots__ = ("branch", "count", "number")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        loop: asyncio.AbstractEventLoop,
        number: int,
        branch: str,
        name: str,
        context: Context | None,
    ) -> None:
        # asyncio's constructor puts the task into a set, so the number for its hash is set before that.
        self.number = number
        self.branch = branch
        self.count = 0
        super().__init__(GuardedCoroutine(coroutine), loop=loop, name=name, context=context)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return self.number

    def get_coro(self) -> Any:
        guarded = super().get_coro()
        return guarded.inner if isinstance(guarded, GuardedCoroutine) else guarded


class WorkflowFuture(asyncio.Future[Any]):
    """The result of `loop.create_future()`. The loop sets `number`, because a constructor in Python would double the
    cost.
    """

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class StepFuture(WorkflowFuture):
    """The future that workflow code awaits for a step. When workflow code cancels the future, the future notifies the
    loop.
    """

    __slots__ = ("request",)
    request: StepRequest

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().step_cancelled(self)  # type: ignore[attr-defined]
        return True


class TimerFuture(WorkflowFuture):
    """The future that workflow code awaits for one of Perdure's own timers."""

    __slots__ = ("request",)
    request: TimerRequest

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().timer_cancelled(self)  # type: ignore[attr-defined]
        return True


class AskFuture(WorkflowFuture):
    """The future that workflow code awaits for any request other than a step or a timer."""

    __slots__ = ("request",)
    request: Ask

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().ask_cancelled(self)  # type: ignore[attr-defined]
        return True


class ReadyHandle(Struct, eq=False):
    """A callback in the ready queue. It has the interface of asyncio.Handle, at half the cost. The cost matters,
    because every callback needs a handle.
    """

    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def get_context(self) -> Context:
        return self._context

    def __repr__(self) -> str:
        return f"<Handle {'cancelled ' * self._cancelled}{self._callback!r}>"


class DurableTimerHandle(asyncio.TimerHandle):
    """A `call_later` or `call_at` that is due in the future. If it is cancelled, asyncio notifies the loop."""

    __slots__ = ("number", "request")
    number: int
    request: TimerRequest

    @property
    def is_timeout(self) -> bool:
        """Whether the timer is a timeout, and not the timer of `asyncio.sleep`."""
        return getattr(self, "_callback", None) is not _SLEPT
