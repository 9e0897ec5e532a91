"""The bodies of steps in an exploration. They are recorded, made to fail, or held until it is their turn to end.

The bodies are wrapped at the places where an engine runs them. Async steps are wrapped in the carriers, plain functions
in the threads, and the code of operations in its executor. Steps in worker processes and transactional steps of
functions are not wrapped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from perdure.engine import Engine
from perdure.models.functions.context import CurrentStep, current_step
from perdure.testing.clock import VirtualClock
from perdure.testing.explore.world import World

__all__ = ["Bodies", "Body", "StepBroke"]


# Whether the current code is in a body that is already wrapped. This is needed because operations call their plain
# functions in threads.
_is_wrapped: ContextVar[bool] = ContextVar("perdure_explored_body", default=False)


class StepBroke(Exception):
    """Raised instead of running a step's body, in a trial in which that step fails."""


class Body(Struct, frozen=True, kw_only=True):
    """One call of a step's body. It has the step, the number of the call among the run's calls of this step (from 1),
    and the attempt.
    """

    name: str
    call: int
    attempt: int

    @property
    def label(self) -> str:
        return f"{self.name}#{self.call}"


class _WrappedBody(Coroutine[Any, Any, Any]):
    """The coroutine of a wrapped body. If it is closed before it has begun, the body is closed too."""

    def __init__(self, wrapped: Coroutine[Any, Any, Any], body: Coroutine[Any, Any, Any]) -> None:
        self._wrapped = wrapped
        self._body = body

    def send(self, value: Any) -> Any:
        return self._wrapped.send(value)

    def throw(self, *error: Any) -> Any:
        return self._wrapped.throw(*error)

    def close(self) -> None:
        self._wrapped.close()
        self._body.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wrapped.__await__()


class Bodies:
    """Sees every call of a step's body in one trial, across restarts of the engine.

    `failing` is the label of a call. All attempts of this call fail. With `is_holding`, a body that has ended waits in
    `held` until `release` is called. So the explorer can choose the order in which steps end.
    """

    def __init__(self, clock: VirtualClock, world: World, *, failing: str = "", is_holding: bool = False) -> None:
        self.begun: list[Body] = []
        self.held: dict[str, asyncio.Future[None]] = {}
        self.wrote: dict[str, str] = {}  # a place in the world -> the step whose body changed it last
        self._clock = clock
        self._world = world
        self._failing = failing
        self._is_holding = is_holding
        self.mismatch = ""  # the place where the code made another call after a crash than before it
        self._asked: dict[str, str] = {}  # by idempotency key: the step and its arguments
        self._calls: dict[str, tuple[str, int]] = {}  # by idempotency key: the step, and the number of the call
        self._calls_of: Counter[str] = Counter()
        self._seen = world.observe()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def repeated(self) -> list[str]:
        """The calls whose body ran more than once in the same attempt, because the process died during the attempt."""
        counted = Counter(self.begun)
        return list(dict.fromkeys(body.label for body, times in counted.items() if times > 1))

    def wrap(self, engine: Engine) -> None:
        """Wrap the bodies of all steps that an engine runs. The engine must not be open yet."""
        runtime: Any = engine.runtime
        assemble = runtime._assemble

        def assemble_wrapped() -> None:
            assemble()
            self._wrap_parts(engine)

        runtime._assemble = assemble_wrapped

    def _wrap_parts(self, engine: Engine) -> None:
        self._loop = asyncio.get_running_loop()
        functions: Any = engine.runtime.functions
        operations: Any = engine.runtime.operations
        carriers, threads = functions._executor.carriers, functions._executor.threads
        give, submit, call = carriers.give, threads.threads.submit, operations._executor.call

        def give_wrapped(job: Any) -> None:
            request = getattr(job, "request", None)
            asked = () if request is None else (request.call.args, request.call.kwargs)
            job.coroutine = _WrappedBody(self._awaited(job.coroutine, asked), job.coroutine)
            give(job)

        def submit_wrapped(run: Callable[..., Any], function: Callable[[], Any], /) -> Future[Any]:
            future: Future[Any] = submit(run, lambda: self._called(function))
            return future

        async def call_wrapped(execution: Any, node: Any, function: Any, *args: Any) -> Any:
            return await self._awaited(call(execution, node, function, *args))

        carriers.give = give_wrapped
        threads.threads.submit = submit_wrapped
        operations._executor.call = call_wrapped

    def release(self, label: str) -> None:
        """Let a held body end."""
        self.held.pop(label).set_result(None)

    def release_all(self) -> None:
        """Let all bodies end, because their engine was killed or the trial is over."""
        for label in list(self.held):
            self.release(label)

    async def _awaited(self, coroutine: Coroutine[Any, Any, Any], asked: tuple[Any, ...] = ()) -> Any:
        try:
            body = self._begin(current_step(), asked)
        except BaseException:
            coroutine.close()
            raise
        _is_wrapped.set(True)
        try:
            return await coroutine
        finally:
            self._look(body)
            await self._hold(body)

    def _called(self, function: Callable[[], Any]) -> Any:
        """Call a plain function. This runs in a thread."""
        if _is_wrapped.get():
            return function()
        assert self._loop is not None
        body = asyncio.run_coroutine_threadsafe(self._begin_on_loop(current_step()), self._loop).result()
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # The loop is closed, because the trial is over.
                asyncio.run_coroutine_threadsafe(self._end_on_loop(body), self._loop).result()

    async def _begin_on_loop(self, step: CurrentStep) -> Body:
        return self._begin(step)

    async def _end_on_loop(self, body: Body) -> None:
        self._look(body)
        await self._hold(body)

    def _begin(self, step: CurrentStep, asked: tuple[Any, ...] = ()) -> Body:
        key, text = step.idempotency_key, f"{step.name}{_text(asked)}"
        if key not in self._calls:
            self._calls_of[step.name] += 1
            self._calls[key] = (step.name, self._calls_of[step.name])
            self._asked[key] = text
        elif self._asked[key] != text and not self.mismatch:
            self.mismatch = f"before a crash the code asked for {self._asked[key]}, and after it for {text}"
        name, call = self._calls[key]
        body = Body(name=name, call=call, attempt=step.attempt)
        self.begun.append(body)
        if body.label == self._failing:
            raise StepBroke(f"step {name!r} fails, to see what follows")
        return body

    def _look(self, body: Body) -> None:
        """Note which places in the world a body has changed."""
        now = self._world.observe()
        for place, _, _ in self._world.differences(self._seen, now):
            self.wrote[place] = body.name
        self._seen = now

    async def _hold(self, body: Body) -> None:
        if not self._is_holding:
            return
        released = self.held[body.label] = asyncio.get_running_loop().create_future()
        try:
            with self._clock.step_waits():
                await released
        finally:
            if self.held.get(body.label) is released:
                del self.held[body.label]  # The step has timed out, or its run was cancelled.


def _text(asked: tuple[Any, ...]) -> str:
    """Return the arguments of a call as text."""
    if not asked:
        return ""
    args, kwargs = asked
    return f"({', '.join([*(repr(one) for one in args), *(f'{name}={one!r}' for name, one in kwargs.items())])})"[:200]
