"""The deterministic event loop of one run of a workflow function. It does no I/O: a completion goes in, commands come
out.

An activation hands exactly one completion (the start, a step's result, a due timer) to the workflow. It runs the ready
queue until the queue is empty, and returns the workflow's new requests. Time stands still during an activation. The
same completions in the same order give the same commands, live and in replay. The code here does not know whether it
runs live or in a replay. It knows nothing about stores, JSON or decorators.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import (
    _get_running_loop,  # pyright: ignore[reportPrivateUsage]
    _set_running_loop,  # pyright: ignore[reportPrivateUsage]
    iscoroutine,
)
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from itertools import repeat
from sys import get_asyncgen_hooks, set_asyncgen_hooks
from typing import Any, Final, Unpack

from perdure.errors import ForbiddenInWorkflow, InvariantViolated, PerdureError
from perdure.kernel.pieces import Pieces, at_once
from perdure.models.functions import forbidden, loop_order, teardown
from perdure.models.functions.commands import (
    Ask,
    Commands,
    Completed,
    Continued,
    Outstanding,
    Raised,
    StepRequest,
    TimerRequest,
)
from perdure.models.functions.generators import StartHook, wrap_hooks
from perdure.models.functions.loop_tasks import ReadyHandle, TimerFuture, WorkflowTask
from perdure.models.functions.positions import Args, AskingLoop
from perdure.models.functions.stacks import format_stacks

__all__ = [
    "Ask",
    "Commands",
    "Completed",
    "Livelock",
    "Outstanding",
    "Raised",
    "StepRequest",
    "TimerRequest",
    "WorkflowLoop",
    "running_loop",
]

CLOSING_CALLBACKS_MAX: Final = 10_000
CLOSING_CALLBACKS_AT_ONCE: Final = 512  # callbacks in one turn of the event loop
BEGINNING_CALLBACKS_AT_ONCE: Final = 256
_OVER: Final = object()


class Livelock(PerdureError):
    """An activation ran too many callbacks without coming to rest. After that, the loop can only be closed. `stack`
    shows the stacks of the tasks.
    """

    run_id: str
    stack: str


class _Here(threading.local):
    """The workflow's loop that runs in this thread. It is stored here, because asking asyncio takes a system call
    before Python 3.12.
    """

    loop: WorkflowLoop | None = None


here: Final = _Here()


def running_loop() -> WorkflowLoop | None:
    """Return the workflow's loop that is activating in this thread now, or None."""
    return here.loop


class WorkflowLoop(AskingLoop):
    """One live run. Activations come from plain callbacks of the process's loop, never from inside a task.

    Activations raise only Livelock and engine bugs. An error that workflow code raises ends up in `Commands.end`.
    """

    __slots__ = ("_branch", "_callbacks_max", "_context", "_fatal", "_main", "_outer", "_tasks")

    def __init__(self, *, run_id: str, callbacks_max: int = 100_000, branch: str = "") -> None:
        super().__init__(run_id)
        self._branch = branch
        self._callbacks_max = callbacks_max
        self._outer: asyncio.AbstractEventLoop | None = None  # the loop whose callbacks run the activations
        # The context is empty, because a replay would not find the same values in the process's context variables.
        self._context = Context()
        self._main: WorkflowTask | None = None
        self._tasks: dict[int, WorkflowTask] = {}  # Unfinished tasks except the main task, in order of creation.
        self._fatal: BaseException | Continued | None = None

    def begin(self, coroutine_function: Callable[[], Coroutine[Any, Any, Any]], at: int) -> Commands:
        """Do the first activation: create the main task, and run until it waits for something.

        All later activations must come from callbacks of the same loop. If this activation runs outside a loop, all
        later activations must do so too.
        """
        commands = self.begin_some(coroutine_function, at)
        return at_once(self.begin_on()) if commands is None else commands

    def begin_some(self, coroutine_function: Callable[[], Coroutine[Any, Any, Any]], at: int) -> Commands | None:
        """Do the first activation, as `begin` does, but run at most BEGINNING_CALLBACKS_AT_ONCE callbacks.

        Returns None if more callbacks are left. Then `begin_on` runs them.
        """
        if self._main is not None:
            raise InvariantViolated(f"run {self.run_id}: its loop has begun before", run_id=self.run_id)
        forbidden.install()
        self._outer = _get_running_loop()
        self.at = at
        self._fresh = self._number
        self._ready = deque()
        self._run_some(coroutine_function)
        return None if self._ready and not self._is_over else self._activated()

    def begin_on(self) -> Pieces[Commands]:
        """Do the rest of the activation that `begin_some` began, in pieces. Code may create ten thousand tasks at once.

        Between two pieces nothing may be handed to the run. If the run is closed between two pieces, this ends, and the
        caller must ignore the commands.
        """
        left = self._callbacks_max - BEGINNING_CALLBACKS_AT_ONCE
        while self._ready and not self._is_over and not self.closed:
            if left <= 0:
                raise self._livelock()
            yield
            left -= BEGINNING_CALLBACKS_AT_ONCE
            self._run_some(None)
        return self._activated()

    @property
    def _is_over(self) -> bool:
        return self._fatal is not None or self._main is None or self._main.done()

    def _run_some(self, coroutine_function: Callable[[], Coroutine[Any, Any, Any]] | None) -> None:
        """Run callbacks on this loop. If a function is given, create the main task from it first."""
        if here.loop is not None or self.closed:
            raise InvariantViolated(f"run {self.run_id} was activated inside another's activation", run_id=self.run_id)
        wrapped = None if type(get_asyncgen_hooks()[0]) is StartHook else wrap_hooks()
        _set_running_loop(self)
        here.loop = self
        try:
            if coroutine_function is not None:
                self._start(coroutine_function)
            self._drain(min(BEGINNING_CALLBACKS_AT_ONCE, self._callbacks_max), is_part=True)
        finally:
            here.loop = None
            _set_running_loop(self._outer)
            if wrapped is not None and self._outer is None:
                set_asyncgen_hooks(*wrapped)

    def complete_step(self, position: str, at: int, value: Any = None, error: BaseException | None = None) -> Commands:
        """Hand over a step's result or error. Raises LookupError if no step is outstanding at `position`."""
        future: asyncio.Future[Any] = self._steps.pop(position)
        if error is None:
            return self._activate(at, future.set_result, value)
        if isinstance(error, StopIteration):  # A StopIteration cannot be thrown into a coroutine.
            error, cause = RuntimeError("the step raised StopIteration"), error
            error.__cause__ = cause
        return self._activate(at, future.set_exception, error)

    def complete_ask(self, position: str, at: int, value: Any = None, error: BaseException | None = None) -> Commands:
        """Hand over the answer to a request. Raises LookupError if no request is outstanding at `position`."""
        self._steps[position] = self._asks.pop(position)  # From here on the request is handled like a step.
        return self.complete_step(position, at, value, error)

    def fire_timer(self, position: str, at: int) -> Commands:
        """Hand over a due timer. Raises LookupError if no timer is outstanding at `position`."""
        timer = self._timers.pop(position)
        if isinstance(timer, TimerFuture):
            return self._activate(at, timer.set_result, (timer.request.due_at, at))
        return self._activate(at, self._make_ready, timer)

    def continue_as(self, end: Continued) -> None:
        """End this activation, and the run's code. The run's code calls this. After that, the code must await a future
        that never ends.
        """
        if self._refusal is not None:
            raise ForbiddenInWorkflow(self._refusal, run_id=self.run_id)
        self._fatal = end
        if self._ready is not None:
            self._ready.clear()

    def stack(self) -> str:
        """Return the stacks of all unfinished tasks, and what each task waits for, as a text."""
        return format_stacks(self._unfinished())

    def close(self) -> None:
        """Close the loop at once, as `close_in_pieces` does."""
        at_once(self.close_in_pieces())

    def close_in_pieces(self) -> Pieces[None]:
        """End all tasks, in the order of their creation. `finally` blocks run, but every request in them raises.

        Idempotent. Errors of workflow code are logged at debug level. The commands of the code are ignored, and no task
        or generator is left behind. Between two pieces other runs may be activated.
        """
        if self.closed:
            return
        if here.loop is not None:
            raise InvariantViolated(f"run {self.run_id} was closed inside an activation", run_id=self.run_id)
        self.closed = True
        self._refusal = "the run is being closed: nothing can be asked for in its clean-up"
        try:
            is_ended = self._main is None or self._main.done()
            if self._generators or self._orphans or self._tasks or not is_ended:
                yield from self._close_all()
        finally:
            self._ready = self._main = self._fatal = self._exception_handler = None
            self._tasks.clear()
            self._steps.clear()
            self._timers.clear()
            self._asks.clear()
            self._commands()

    def _close_all(self) -> Pieces[None]:
        if self._ready is None:
            self._ready = deque()
        work = teardown.close_tasks(self._unfinished, self._drain_closing, self.run_id)
        while self._close_some(work):
            yield

    def _close_some(self, work: Pieces[None]) -> bool:
        """Do the next piece of work on this loop. Returns whether more pieces are left."""
        if here.loop is not None:
            raise InvariantViolated(f"run {self.run_id} was closed inside an activation", run_id=self.run_id)
        previous = _get_running_loop()
        wrapped = wrap_hooks()
        _set_running_loop(self)
        here.loop = self
        try:
            if next(work, _OVER) is not _OVER:
                return True
            self.close_generators()
            return False
        finally:
            here.loop = None
            _set_running_loop(previous)
            if wrapped is not None and previous is None:
                set_asyncgen_hooks(*wrapped)

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        handle: Any = ReadyHandle(callback, args, copy_context() if context is None else context)
        if self._ready is not None:
            self._ready.append(handle)
        else:
            self._make_ready(handle)
        return handle  # type: ignore[no-any-return]

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args, context: Context | None = None
    ) -> asyncio.Handle:
        if _get_running_loop() is not self:
            raise forbidden.forbidden("loop.call_soon_threadsafe() from another thread")
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        if not iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        if self._refusal is not None:
            coro.close()
            raise ForbiddenInWorkflow(self._refusal, run_id=self.run_id)
        position = self._next_position()
        number = self.next_number()
        task = WorkflowTask(coro, self, number, position + ".", position if name is None else name, context)
        self._tasks[number] = task
        task.add_done_callback(self._task_ended, context=self._context)
        return task

    def _start(self, coroutine_function: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            coroutine = self._context.run(coroutine_function)
            if not iscoroutine(coroutine):
                raise TypeError(f"a workflow function must be async, but it gave {coroutine!r}")
        except BaseException as error:  # noqa: BLE001 - the workflow's code raised it, and it ends the run
            self._fatal = error
            return
        self._main = WorkflowTask(coroutine, self, self.next_number(), self._branch, "main", self._context)
        self._main.add_done_callback(self._main_ended, context=self._context)

    def _activate(self, at: int, hand_over: Callable[[Any], object], completion: Any) -> Commands:
        if self._ready is not None or self.closed:
            raise InvariantViolated(f"run {self.run_id}: its loop has ended or is activating", run_id=self.run_id)
        if here.loop is not None:
            raise InvariantViolated(f"run {self.run_id} was activated inside another's activation", run_id=self.run_id)
        wrapped = None if type(get_asyncgen_hooks()[0]) is StartHook else wrap_hooks()
        self.at = at
        self._fresh = self._number
        self._ready = deque()
        _set_running_loop(self)
        here.loop = self
        try:
            hand_over(completion)
            self._drain(self._callbacks_max)
        finally:
            here.loop = None
            _set_running_loop(self._outer)
            if wrapped is not None and self._outer is None:
                set_asyncgen_hooks(*wrapped)
        if self._fatal is not None or self._main is None or self._main.done():
            return Commands(end=self._end(), outputs=self.outputs)
        self._ready = None
        return self._commands()

    def _activated(self) -> Commands:
        """End an activation. `_activate` has the same code inline, to save a call on the hot path."""
        if self._fatal is not None or self._main is None or self._main.done():
            return Commands(end=self._end(), outputs=self.outputs)
        self._ready = None
        return self._commands()

    def _drain(self, callbacks_max: int, *, is_part: bool = False) -> None:
        ready = self._ready
        assert ready is not None
        budget = repeat(None, callbacks_max)
        handle: Any = None
        while True:
            try:
                for _ in budget:
                    if not ready:
                        return
                    handle = ready.popleft()
                    if not handle._cancelled:
                        handle._context.run(handle._callback, *handle._args)
                break
            except (KeyboardInterrupt, SystemExit) as error:
                self._fatal = error
                return
            except BaseException as error:  # noqa: BLE001 - as asyncio does
                message = f"exception in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})
            finally:
                handle = None  # Tracebacks of workflow code refer to this frame, and would keep the handle alive.
        if ready and not is_part:
            raise self._livelock()

    def _livelock(self) -> Livelock:
        stack, ran = self.stack(), f"run {self.run_id} ran {self._callbacks_max} callbacks"
        message = f"{ran} without waiting for anything; it stands at\n{stack}"
        return Livelock(message, run_id=self.run_id, stack=stack)

    def _drain_closing(self) -> Pieces[None]:
        """Run the ready queue until it is empty, in pieces. Give up on code that never comes to rest."""
        callbacks_max = max(CLOSING_CALLBACKS_MAX, 4 * len(self._tasks))
        for done in range(0, callbacks_max, CLOSING_CALLBACKS_AT_ONCE):
            if done:
                yield
            self._drain(CLOSING_CALLBACKS_AT_ONCE, is_part=True)
            if not self._ready:
                return
        teardown.logger.debug("run %s ran %d callbacks while it was being closed", self.run_id, callbacks_max)

    def _end(self) -> Completed | Raised | Continued:
        if isinstance(self._fatal, Continued):
            return self._fatal
        if self._fatal is not None or self._main is None:
            return Raised(self._fatal or InvariantViolated("a run ended without a main task", run_id=self.run_id))
        try:
            error = self._main.exception()
        except asyncio.CancelledError as cancelled:
            return Raised(cancelled)
        if error is not None:
            return Raised(forbidden.foreign_await(error) or error)
        return Completed(self._main.result())

    def _unfinished(self) -> list[WorkflowTask]:
        tasks = [task for task in self._tasks.values() if not task.done()]
        return tasks if self._main is None or self._main.done() else [self._main, *tasks]

    def _task_ended(self, task: WorkflowTask) -> None:
        del self._tasks[task.number]

    def _main_ended(self, _task: WorkflowTask) -> None:
        if self._ready and not self.closed:
            # The remaining callbacks run when the loop is closed. `_drain`, which holds the queue, now finds it empty.
            queue = self._ready
            self._ready = queue.copy()
            queue.clear()


loop_order.install()
