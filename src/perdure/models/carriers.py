"""Tasks that carry async steps: a step that waits for something has a task of its own, one that does not needs none.

A carrier runs the steps that were given to it one after the other, each in its own context, for as long as they end
without waiting. The first that waits keeps the carrier, and a new one takes the rest. So `asyncio.current_task()` is
always a task, which nobody shares while a step is suspended, and a hundred steps that need not wait cost one task.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, Protocol

_DELIVERED_AT_ONCE_MAX: Final = 250  # Others have their turn in between.


class Cargo(Protocol):
    """An async step to be run: its coroutine, the context to run it in, and, once it waits, the task it waits in."""

    coroutine: Coroutine[Any, Any, Any] | None
    context: Context | None
    task: asyncio.Future[Any] | None
    dropped: bool

    @property
    def label(self) -> str:
        """What it is, for a person."""
        ...

    def suspended(self) -> None:
        """It waits for something for the first time."""


class Carriers:
    """Runs cargo; `ended` gets each one's value or error, in a plain callback.

    Before one begins, `is_surely_alive` says whether its run is surely this engine's; if not, `prove` finds out, and
    what is not has been dropped by then.
    """

    def __init__(
        self,
        ended: Callable[[Any, Any, BaseException | None], None],
        is_surely_alive: Callable[[], bool],
        prove: Callable[[], Awaitable[object]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._is_surely_alive = is_surely_alive
        self._prove = prove
        self._waiting: deque[Cargo] = deque()
        self._outcomes: deque[tuple[Cargo, Any, BaseException | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False

    def give(self, cargo: Cargo) -> None:
        """Have a step run, from the loop's next turn on."""
        self._waiting.append(cargo)
        if not self._is_due:
            self._dispatch()

    def close(self) -> None:
        """Run nothing more of what has not begun."""
        while self._waiting:
            self._discard(self._waiting.popleft())

    def _dispatch(self) -> None:
        self._is_due = True
        task = self._loop.create_task(self._carry(), name="perdure-steps")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self) -> None:
        self._is_due = False
        waiting = self._waiting
        while waiting:
            if not self._is_surely_alive():
                await self._prove()
                if not waiting:
                    return
            cargo = waiting.popleft()
            if cargo.dropped:
                self._discard(cargo)
            elif await self.run(cargo):
                return

    @types.coroutine
    def run(self, cargo: Cargo) -> Generator[Any, Any, bool]:
        """Run a step to its end; whether it had to wait."""
        coroutine, context = cargo.coroutine, cargo.context
        assert coroutine is not None
        assert context is not None
        resume: Callable[[Any], Any] = coroutine.send
        received: Any = None
        has_waited = False
        value: Any = None
        failure: BaseException | None = None
        while True:
            try:
                awaited = context.run(resume, received)
            except StopIteration as stop:
                value = stop.value
                break
            except BaseException as error:  # noqa: BLE001 - however it ended, that is its outcome
                failure = error
                break
            if not has_waited:
                has_waited = True
                cargo.task = asyncio.current_task()
                cargo.suspended()
                if self._waiting and not self._is_due:
                    self._dispatch()
            try:
                received = yield awaited
                resume = coroutine.send
            except BaseException as error:  # noqa: BLE001 - a cancellation, most likely: it is the step's to handle
                received = error
                resume = coroutine.throw
        cargo.coroutine = cargo.context = (
            None  # The context refers back to the cargo: without the cycle both are freed now.
        )
        if not self._outcomes:
            self._loop.call_soon(self._deliver)
        self._outcomes.append((cargo, value, failure))
        return has_waited

    def _deliver(self) -> None:
        outcomes, self._outcomes = self._outcomes, deque()
        for _ in range(min(len(outcomes), _DELIVERED_AT_ONCE_MAX)):
            self._ended(*outcomes.popleft())
        if outcomes:
            if not self._outcomes:
                self._loop.call_soon(self._deliver)
            outcomes.extend(self._outcomes)
            self._outcomes = outcomes

    @staticmethod
    def _discard(cargo: Cargo) -> None:
        if cargo.coroutine is not None:
            cargo.coroutine.close()
        cargo.coroutine = cargo.context = None
