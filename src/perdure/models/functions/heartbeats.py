"""Heartbeats: an attempt's signs of life, and the way of what they say to the store (see models/common/heartbeats.py).

A heartbeat may come from any thread and never waits. It notes the time; details go on to the loop, which writes the
newest of them, one write at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perdure.models.functions.context import CurrentStep
from perdure.values.json import to_text

if TYPE_CHECKING:
    from perdure.models.functions.steps import Execution


class Pulse(Struct, eq=False):
    """One attempt as its own body knows it. Once its step has another attempt, or has ended, nobody listens to it.

    `known` is what attempts before it said, `at` the monotonic time of its last heartbeat, `newest` what it said last.
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
            key=execution.live.key_of(execution.request.position),
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
        self.at = execution.runner.clock.monotonic()
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
