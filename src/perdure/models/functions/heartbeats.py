"""Heartbeats: an attempt's signs of life, and how their details reach the store. See also models/common/heartbeats.py.

A heartbeat may come from any thread, and never waits. It notes the time of the heartbeat. The details are passed to the
loop. The loop writes the newest details, one write at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from perdure.models.functions.context import CurrentStep
from perdure.models.functions.executor import Executor
from perdure.models.functions.step_protocols import StepInFlight
from perdure.values.json import to_text

T = TypeVar("T")


class BeatingStep(StepInFlight, Protocol):
    """A running step whose attempts report how far they got."""

    executor: Executor

    def note_details(self, details: str) -> None:
        """Take the details of a heartbeat."""
        ...


class Pulse(Struct, eq=False):
    """One attempt, from the point of view of its own body. Its calls are ignored once its step has another attempt or
    has ended.

    `known` are the details of earlier attempts' heartbeats. `at` is the monotonic time of this attempt's last
    heartbeat, and `newest` are its newest details.
    """

    execution: BeatingStep
    attempt: int
    known: str | None
    at: int = 0
    newest: str | None = None
    taken: str | None = None
    is_posted: bool = False
    connection: Any = None  # the connection of a transactional step

    def describe(self) -> CurrentStep:
        execution = self.execution
        return CurrentStep(
            run_id=execution.live.id,
            position=execution.request.position,
            key=execution.live.key_of(execution.request.position),
            name=execution.step.name,
            attempt=self.attempt,
            details=self.known,
            connection=self.connection,
            body=self,
        )

    def resource(self, kind: type[T]) -> T:
        """Return the engine's resource of a type."""
        found: T = self.execution.executor.resources.get(kind)
        return found

    def stage(self, name: str, value: Any, type: str, media_type: str | None) -> None:
        """Stage an artifact, from any thread. Raises UnstorableValue, InvalidArguments, Misuse."""
        self.execution.executor.artifacts.stage(self, name, value, type, media_type)

    def stage_file(self, name: str, path: str | Path, type: str, media_type: str | None) -> Awaitable[None]:
        return self.execution.executor.artifacts.stage_file(self, name, path, type, media_type)

    def append(self, stream: str, value: Any) -> None:
        """Append an item to a stream, from any thread. Raises UnstorableValue, InvalidArguments, QueueFull."""
        self.execution.executor.streams.append(self, stream, value)

    async def flush(self) -> None:
        await self.execution.executor.streams.flush(self)

    def relay(self, stream: str, text: str) -> None:
        """Append an item that a worker process sent, as JSON."""
        self.execution.executor.streams.relay(self, stream, text)

    def beat(self, details: Any) -> None:
        """Take a heartbeat, from any thread. Raises UnstorableValue."""
        execution = self.execution
        if execution.pulse is self:
            what = f"the details of a heartbeat of step {execution.step.name!r}"
            self.receive(None if details is None else to_text(details, what, execution.executor.payload_max))

    def receive(self, text: str | None) -> None:
        """Take a heartbeat with its details as JSON, from any thread."""
        execution = self.execution
        if execution.pulse is not self:
            return
        self.at = execution.executor.clock.monotonic()
        if text is None:
            return
        # Write `newest` first, then look at `is_posted`. `deliver` clears `is_posted` first, then reads `newest`. So no
        # details are lost, in whatever order the two threads run.
        self.newest = text
        if not self.is_posted:
            self.is_posted = True
            execution.executor.call_on_loop(self.deliver)

    def deliver(self) -> None:
        """Pass the newest details to the step, unless the step already has them. Called on the loop."""
        self.is_posted = False
        newest = self.newest
        if newest is not None and newest != self.taken and self.execution.pulse is self:
            self.taken = newest
            self.execution.note_details(newest)
