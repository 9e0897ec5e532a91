"""The interfaces of a running step and its attempt, for the parts that run the step and write for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from perdure.models.common.transactions import Fate
from perdure.models.functions.artifacts import Stager
from perdure.models.functions.commands import StepRequest
from perdure.models.functions.define import Step
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.unwritten_items import UnwrittenItems


class AttemptInFlight(Protocol):
    """One attempt. Its calls are ignored once its step has another attempt or has ended."""

    attempt: int
    connection: Any  # the connection of a transactional step
    newest: str | None  # the details of this attempt's newest heartbeat, as JSON

    @property
    def execution(self) -> StepInFlight:
        """The step that the attempt belongs to."""
        ...

    def receive(self, text: str | None) -> None:
        """Take a heartbeat with details as JSON, from any thread."""
        ...

    def relay(self, stream: str, text: str) -> None:
        """Append an item to a stream, as JSON, from any thread."""
        ...


class StepInFlight(Protocol):
    """A step that a run has requested and that has not ended."""

    live: LiveRun
    request: StepRequest
    step: Step[Any, Any]
    attempt: int
    started_at: int
    details: str | None  # the details of the newest heartbeat, as JSON
    dropped: bool
    task: asyncio.Future[Any] | None
    thread: Future[Any] | None
    fate: Fate | None  # what became of a transactional step's writes
    unwritten: UnwrittenItems | None
    stager: Stager | None

    @property
    def pulse(self) -> AttemptInFlight | None:
        """The attempt that runs now."""
        ...

    def call_on_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop. This can be called from any thread."""
        ...

    def suspended(self) -> None:
        """The attempt waits for something, so its timeouts begin."""
        ...

    def began(self, pulse: AttemptInFlight) -> None:
        """An attempt that waited for a thread, a process or a transaction runs now."""
        ...

    def check_deadline(self) -> None:
        """Check that the total timeout has not elapsed. Raises StepTimedOut."""
        ...

    def interrupted(self) -> None:
        """The store failed while the attempt ran. Its body may run again."""
        ...

    def doubted(self) -> None:
        """The attempt did not begin, because the engine could not confirm that it still owns the run."""
        ...

    def ended(self, value: Any, error: BaseException | None) -> None:
        """An attempt has ended."""
        ...

    def cannot_be_stored(self, error: BaseException) -> None:
        """The attempt's result cannot be stored. Another attempt would not change that."""
        ...


__all__ = ["AttemptInFlight", "StepInFlight"]
