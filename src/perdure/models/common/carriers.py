"""Tasks that carry async steps: a step that waits for something has a task of its own, one that does not needs none.

A carrier runs the steps that were given to it one after the other, each in its own context, for as long as they end
without waiting. The first that waits keeps the carrier, and a new one takes the rest. So `asyncio.current_task()` is
always a task, which nobody shares while a step is suspended, and a hundred steps that need not wait cost one task.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, Protocol

from perdure.models.common.fence_check import Proof

log = logging.getLogger("perdure")

_DELIVERED_AT_ONCE_MAX: Final = 250  # Others have their turn in between.


class StepJob(Protocol):
    """An async step to be run: its coroutine, the context to run it in, and, once it waits, the task it waits in."""

    coroutine: Coroutine[Any, Any, Any] | None
    context: Context | None
    task: asyncio.Future[Any] | None
    dropped: bool

    @property
    def run_id(self) -> str:
        """The run whose step it is."""
        ...

    @property
    def label(self) -> str:
        """What it is, for a person."""
        ...

    def suspended(self) -> None:
        """It waits for something for the first time."""


class Carriers:
    """Runs cargo; `ended` gets each one's value or error, in a plain callback.

    Before one begins, the proof says whether its run is surely this engine's; if not, it is made, and what is not has
    been dropped by then.
    """

    def __init__(self, ended: Callable[[Any, Any, BaseException | None], None], proof: Proof) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._proof = proof
        self._waiting: deque[StepJob] = deque()
        self._outcomes: deque[tuple[StepJob, Any, BaseException | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_due = False

    def give(self, cargo: StepJob) -> None:
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
            while waiting and not self._proof.is_sure_of(waiting[0].run_id):
                await self._proof.make(lambda: not waiting)
            if not waiting:
                return
            cargo = waiting.popleft()
            coroutine, context = cargo.coroutine, cargo.context
            if cargo.dropped:
                self._discard(cargo)
                continue
            assert coroutine is not None
            assert context is not None
            try:
                awaited = context.run(coroutine.send, None)
            except StopIteration as stop:
                self._put_down(cargo, stop.value, None)
            except BaseException as error:  # noqa: BLE001 - however it ended, that is its outcome
                self._put_down(cargo, None, error)
            else:
                await self._wait(cargo, coroutine, context, awaited)
                return

    @types.coroutine
    def _wait(
        self, cargo: StepJob, coroutine: Coroutine[Any, Any, Any], context: Context, awaited: Any
    ) -> Generator[Any, Any, None]:
        """Go on with a step that waits for something, to its end."""
        cargo.task = asyncio.current_task()
        cargo.suspended()
        if self._waiting and not self._is_due:
            self._dispatch()
        resume: Callable[[Any], Any]
        while True:
            try:
                received = yield awaited
                resume = coroutine.send
            except BaseException as error:  # noqa: BLE001 - a cancellation, most likely: it is the step's to handle
                received = error
                resume = coroutine.throw
            try:
                awaited = context.run(resume, received)
            except StopIteration as stop:
                return self._put_down(cargo, stop.value, None)
            except BaseException as error:  # noqa: BLE001 - as above
                return self._put_down(cargo, None, error)

    def _put_down(self, cargo: StepJob, value: Any, error: BaseException | None) -> None:
        # The context refers back to the cargo: without the cycle both are freed now.
        cargo.coroutine = cargo.context = None
        if error is not None and error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            # So that it begins with the step's own code; also of an exception that refuses to be changed.
            BaseException.with_traceback(error, error.__traceback__.tb_next)
        if not self._outcomes:
            self._loop.call_soon(self._deliver)
        self._outcomes.append((cargo, value, error))

    def _deliver(self) -> None:
        outcomes, self._outcomes = self._outcomes, deque()
        try:
            for _ in range(min(len(outcomes), _DELIVERED_AT_ONCE_MAX)):
                cargo, value, error = outcomes.popleft()
                try:
                    self._ended(cargo, value, error)
                except Exception:
                    # One that cannot be dealt with must not take the others of this turn with it.
                    log.exception("what %s came to could not be dealt with", cargo.label)
        finally:  # One that was interrupted from outside raises, and the others have ended all the same.
            if outcomes:
                if not self._outcomes:
                    self._loop.call_soon(self._deliver)
                outcomes.extend(self._outcomes)
                self._outcomes = outcomes

    @staticmethod
    def _discard(cargo: StepJob) -> None:
        if cargo.coroutine is not None:
            cargo.coroutine.close()
        cargo.coroutine = cargo.context = None

    frames: Final = (_carry.__code__, _wait.__code__)  # One of them is under every step, which its `cargo` is.
