"""The tasks, futures and handles of a workflow's loop: asyncio's own, with a place in the program and a fixed hash.

asyncio keeps tasks and futures in sets. Hashed by address, as usual, they would be iterated in another order each time;
here each hashes by its creation number on its loop, so that a replay iterates as the original did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from perdure.models.functions.commands import Ask, StepRequest, TimerRequest
from perdure.models.functions.forbidden import foreign_await

_SLEPT: Final[Any] = getattr(asyncio.futures, "_set_result_unless_cancelled", None)

if TYPE_CHECKING:
    from perdure.models.functions.loop import WorkflowLoop


class GuardedCoroutine:
    """A task's coroutine, which sees ForbiddenInWorkflow where asyncio's task throws "attached to a different loop".

    `send` is the coroutine's own bound method, so that the guard costs next to nothing unless something is thrown.
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
            del error  # Its traceback has this frame: they would keep each other, and all that the workflow had.

    def __await__(self) -> Generator[Any, Any, Any]:
        return self.inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # asyncio's repr and get_stack look for cr_code, cr_frame and the like.


class WorkflowTask(asyncio.Task[Any]):
    """A task with a branch of positions of its own: `branch` + 1, 2, 3, … in the order in which its code asks."""

    __slots__ = ("branch", "count", "number")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        loop: WorkflowLoop,
        number: int,
        branch: str,
        name: str,
        context: Context | None,
    ) -> None:
        # asyncio's constructor puts the task into a set, so the hash must be there before.
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
    """What `loop.create_future()` gives. The loop sets `number`: a constructor in Python would double the cost."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class StepFuture(WorkflowFuture):
    """What workflow code awaits for a step. The loop hears of it when workflow code cancels it."""

    __slots__ = ("request",)
    request: StepRequest

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().step_cancelled(self)  # type: ignore[attr-defined]
        return True


class TimerFuture(WorkflowFuture):
    """What workflow code awaits for a timer of Perdure's own."""

    __slots__ = ("request",)
    request: TimerRequest

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().timer_cancelled(self)  # type: ignore[attr-defined]
        return True


class AskFuture(WorkflowFuture):
    """What workflow code awaits for anything but a step or a timer."""

    __slots__ = ("request",)
    request: Ask

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        self.get_loop().ask_cancelled(self)  # type: ignore[attr-defined]
        return True


class ReadyHandle(Struct, eq=False):
    """A callback in the ready queue: what asyncio.Handle is to those who use it, at half the cost, since there is one
    for everything that happens."""

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
    """A `call_later` or `call_at` that is due in the future. asyncio tells the loop when it is cancelled."""

    __slots__ = ("number", "request")
    number: int
    request: TimerRequest

    @property
    def is_timeout(self) -> bool:
        """Whether it is not just `asyncio.sleep`."""
        return getattr(self, "_callback", None) is not _SLEPT
