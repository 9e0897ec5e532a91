"""Heartbeats: an attempt's signs of life, and the way of what they say to the store.

A heartbeat may come from any thread and never waits. It notes the time; details go on to the loop, which writes the
newest of them, one write at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perdure.models.functions.context import CurrentStep
from perdure.models.functions.values import to_text
from perdure.ports import Clock, TimerHandle

if TYPE_CHECKING:
    from perdure.models.functions.steps import Execution

WRITE_EVERY_US = 200_000


class Pulse(Struct, eq=False):
    """One attempt as its own body knows it. Once its step has another attempt, or has ended, nobody listens to it.

    `known` is what attempts before it said, `at` the time of its last heartbeat, `newest` what it said last.
    """

    execution: Execution
    attempt: int
    known: str | None
    at: int = 0
    newest: str | None = None
    taken: str | None = None
    is_posted: bool = False
    connection: Any = None  # of a transactional step

    def describe(self) -> CurrentStep:
        execution = self.execution
        return CurrentStep(
            run_id=execution.live.id,
            position=execution.request.position,
            name=execution.step.name,
            attempt=self.attempt,
            resources=execution.runner.resources,
            beat=self.beat,
            details=self.known,
            append=self.append,
            flush=self.flush,
            connection=self.connection,
            stage=self.stage,
            stage_file=self.stage_file,
        )

    def stage(self, name: str, value: Any, type: str, media_type: str | None) -> None:
        """An artifact, from any thread. Raises UnstorableValue, InvalidArguments, Misuse."""
        self.execution.runner.staging.stage(self, name, value, type, media_type)

    def stage_file(self, name: str, path: str | Path, type: str, media_type: str | None) -> Awaitable[None]:
        return self.execution.runner.staging.stage_file(self, name, path, type, media_type)

    def append(self, stream: str, value: Any) -> None:
        """An item for a stream, from any thread. Raises UnstorableValue, InvalidArguments, QueueFull."""
        self.execution.runner.speaking.append(self, stream, value)

    async def flush(self) -> None:
        await self.execution.runner.speaking.flush(self)

    def relay(self, stream: str, text: str) -> None:
        """The same from a worker process, as JSON."""
        self.execution.runner.speaking.relay(self, stream, text)

    def beat(self, details: Any) -> None:
        """A heartbeat, from any thread. Raises UnstorableValue."""
        execution = self.execution
        if execution.pulse is self:
            what = f"the details of a heartbeat of step {execution.step.name!r}"
            self.receive(None if details is None else to_text(details, what, execution.runner.payload_max))

    def receive(self, text: str | None) -> None:
        """The same with details as JSON."""
        execution = self.execution
        if execution.pulse is not self:
            return
        self.at = execution.runner.clock.now()
        if text is None:
            return
        # In this order, and the other way round in `deliver`: so no details are left lying, whoever comes first.
        self.newest = text
        if not self.is_posted:
            self.is_posted = True
            execution.runner.tell(self.deliver)

    def deliver(self) -> None:
        """On the loop: hand on what was said, unless that was done."""
        self.is_posted = False
        newest = self.newest
        if newest is not None and newest != self.taken and self.execution.pulse is self:
            self.taken = newest
            self.execution.said(newest)


class Beats:
    """When one step's details are written: at once, but not before the last write has landed, nor soon after it.

    `write` is to take the newest details to the store; `written` is called when they are there.
    """

    __slots__ = ("_clock", "_is_hasty", "_is_stale", "_is_writing", "_next_at", "_timer", "_write")

    def __init__(self, clock: Clock, write: Callable[[], None]) -> None:
        self._clock = clock
        self._write = write
        self._is_stale = False
        self._is_writing = False
        self._is_hasty = False
        self._next_at = 0
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """There are new details."""
        self._is_stale = True
        self._go_on()

    def written(self) -> None:
        self._is_writing = False
        self._go_on()

    def flush(self) -> None:
        """From now on write as soon as possible: there may be no later."""
        self._is_hasty = True
        self._stop_timer()
        self._go_on()

    def settle(self) -> None:
        """The newest details go to the store in another way, or matter no more."""
        self._is_stale = False
        self._stop_timer()

    def _go_on(self) -> None:
        if not self._is_stale or self._is_writing or self._timer is not None:
            return
        now = self._clock.now()
        if now < self._next_at and not self._is_hasty:
            self._timer = self._clock.call_at(self._next_at, self._due)
            return
        self._is_stale = False
        self._is_writing = True
        self._next_at = now + WRITE_EVERY_US
        self._write()

    def _due(self) -> None:
        self._timer = None
        self._go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
