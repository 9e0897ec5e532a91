"""What workflow code and steps can ask of where they run: `current_run`, `sleep`, `current_step`, `resource`."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.json import decode as from_json

from perdure.errors import Misuse, NotInStep, NotInWorkflow
from perdure.models.functions.loop import WorkflowLoop, running_loop
from perdure.values.arguments import Duration, checked
from perdure.values.failures import mark
from perdure.values.json import to_text
from perdure.values.times import from_datetime, seconds_of, to_datetime

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class TimeReached(Struct, frozen=True):
    """What a timer gives: when it was due and when it fired."""

    scheduled_at: datetime
    fired_at: datetime


@checked(constructor=False)
class CurrentRun:
    """The run that the calling workflow code belongs to.

    All it gives is the same in every replay: so no tags or attempts, which people change meanwhile. `random` and
    `uuid4` give other values in each life of a run that continues as another call.
    """

    __slots__ = ("_loop", "id", "random", "workflow")

    def __init__(self, loop: WorkflowLoop, *, id: str, workflow: str) -> None:
        self._loop = loop
        self.id = id
        self.workflow = workflow
        self.random = random.Random(f"{id}@{loop.life}" if loop.life else id)

    def now(self) -> datetime:
        """The time at which the run was last handed something: it stands still between steps."""
        return to_datetime(self._loop.now())

    def uuid4(self) -> uuid.UUID:
        """A random id that replays the same. Another life of the run has other ids."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)


def current_run() -> CurrentRun:
    """The run this code belongs to. Raises NotInWorkflow outside workflow code, in steps too."""
    loop = require_loop("current_run")
    if not isinstance(loop.about, CurrentRun):
        # Made when first asked for: seeding its randomness takes a while.
        loop.about = CurrentRun(loop, id=loop.run_id, workflow=loop.about)
    return loop.about


@checked
async def sleep(duration: Duration) -> TimeReached:
    """Wait durably: the process may end meanwhile. Numbers are seconds. Raises InvalidArguments for a negative
    duration; for a time that may have passed, use `sleep_until`."""
    loop = require_loop("sleep")
    return await _wait_until(loop, loop.now() + round(seconds_of(duration, "sleep") * 1_000_000), "sleep")


@checked
async def sleep_until(when: datetime) -> TimeReached:
    """Wait durably until a point in time; one in the past is reached at once."""
    loop = require_loop("sleep_until")
    return await _wait_until(loop, from_datetime(when), "sleep_until")


async def _wait_until(loop: WorkflowLoop, due_at: int, name: str) -> TimeReached:
    scheduled_at, fired_at = await loop.request_timer(due_at, name)
    return TimeReached(to_datetime(scheduled_at), to_datetime(fired_at))


def require_loop(verb: str) -> WorkflowLoop:
    loop = running_loop()
    if loop is None:
        where = "a step" if in_step.get(None) is not None else "code that no engine runs"
        raise NotInWorkflow(f"{verb}() belongs into a workflow, but was called in {where}")
    return loop


def timed_out(error: E) -> E:
    """An exception for whoever's time has just been up. A retry of the run that fails with it begins that time anew."""
    loop = running_loop()
    if loop is not None and loop.elapsed:
        mark(error, loop.elapsed)
    return error


@checked(constructor=False)
class CurrentStep:
    """The attempt of a step that the calling code belongs to."""

    __slots__ = (
        "_append", "_beat", "_connection", "_details", "_flush", "_resources", "_stage", "_stage_file", "attempt",
        "idempotency_key", "name", "position", "run_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        run_id: str,
        position: str,
        key: str,
        name: str,
        attempt: int,
        resources: Callable[[type[Any]], Any],
        beat: Callable[[Any], None],
        details: str | None,
        append: Callable[[str, Any], None],
        flush: Callable[[], Awaitable[None]],
        stage: Callable[[str, Any, str, str | None], None],
        stage_file: Callable[[str, str | Path, str, str | None], Awaitable[None]],
        connection: Any = None,
    ) -> None:
        self.run_id = run_id
        self.position = position
        self.name = name
        self.attempt = attempt
        self.idempotency_key = key
        self._resources = resources
        self._beat = beat
        self._details = details
        self._append = append
        self._flush = flush
        self._stage = stage
        self._stage_file = stage_file
        self._connection = connection

    @property
    def connection(self) -> Any:
        """A transactional step's connection to the store's database: sqlite3's or asyncpg's, in a transaction that is
        committed with the step's result, or rolled back if it fails. Of no use once the step has ended.

        Raises Misuse in a step that is not transactional.
        """
        if self._connection is None:
            raise Misuse(f"step {self.name!r} has no connection: make it transactional, with `transactional=True`")
        return self._connection

    def heartbeat(self, details: Any = None) -> None:
        """Say that the attempt is alive, and how far it got: the next attempt finds it in `heartbeat_details`.

        Never waits. The newest details count, and None leaves those before as they are. They are stored soon, not at
        once: a crash of the engine's process may cost those of the last fifth of a second. In an attempt that has ended
        or was given up it does nothing. Raises UnstorableValue if the details have no JSON form.
        """
        self._beat(details)

    @property
    def heartbeat_details(self) -> Any:
        """What the newest heartbeat of an earlier attempt said, in the types that JSON has; None if none said anything.

        An attempt that a crash cut short counts as an earlier one here, though it has the same number.
        """
        return None if self._details is None else from_json(self._details)

    def append(self, stream: str, value: Any) -> None:
        """Append an item to a stream of the run, from a coroutine, a thread or a worker process: an LLM's tokens, the
        lines of a log.

        Items of a step stay in the order of these calls. They are made durable at once, many together, and can be read
        from then on, while the step runs; what is not durable when the step returns becomes so together with its
        result. What a failed attempt has appended stays, and the next attempt appends after it: each item has the
        step's position and the number of the attempt. A crash may take the last items with it, and the attempt that it
        cut short runs again under the same number.

        In an attempt that has ended (its time was up, the run was cancelled) it does nothing. When more waits to be
        written than memory should hold, a thread or a process is made to wait, and a coroutine gets QueueFull: see
        `flush`. Raises UnstorableValue, InvalidArguments.
        """
        self._append(stream, value)

    async def flush(self) -> None:
        """Wait until all that this step has appended so far is durable. A coroutine that appends much, and fast, does
        so now and then. In a worker process it does not wait."""
        await self._flush()

    def stage(self, name: str, value: Any, *, type: str = "", media_type: str | None = None) -> None:
        """Stage an artifact of the run: text and bytes as they are, any other value as JSON. From coroutines and
        threads.

        It is staged together with the step's result, if this attempt succeeds, and published in the commit in which the
        run succeeds. What a failed attempt has staged is forgotten. In an attempt that has ended it does nothing.
        Raises UnstorableValue, InvalidArguments if it is too large; Misuse in a worker process
        and in a transactional step.
        """
        self._stage(name, value, type, media_type)

    def stage_file(
        self, name: str, path: str | Path, *, type: str = "", media_type: str | None = None
    ) -> Awaitable[None]:
        """Stage the content of a file, which may be as large as the store has room for: it is read part by part, and
        each is with the store before the next one is read. The file may be removed afterwards.

        In a coroutine it must be awaited; in a thread it is done when it returns. Otherwise as `stage`. Raises OSError,
        and Misuse if the attempt has ended meanwhile.
        """
        return self._stage_file(name, path, type, media_type)

    def resource(self, kind: type[T]) -> T:
        found: T = self._resources(kind)
        return found


class Describable(Protocol):
    def describe(self) -> CurrentStep: ...


# What runs in a step's context can have its attempt described; few steps ask.
in_step: ContextVar[Describable] = ContextVar("perdure_step")


class OperationAttempt(Protocol):
    """An attempt of a step of an operation."""

    @property
    def run_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def payload_max(self) -> int: ...

    position: str
    details: str | None  # what heartbeats of earlier attempts said, as JSON

    def receive(self, details: str | None) -> None:
        """A heartbeat, from any thread."""


class InOperation:
    """A step of an operation: it has the engine's resources, heartbeats, a transactional one its `connection`, and
    nothing else that belongs to a function's step."""

    __slots__ = ("_attempt", "_resources", "connection")

    def __init__(self, resources: Callable[[type[Any]], Any], attempt: OperationAttempt) -> None:
        self._resources = resources
        self._attempt = attempt
        self.connection: Any = None

    def describe(self) -> CurrentStep:
        attempt = self._attempt
        return CurrentStep(
            run_id=attempt.run_id,
            position=attempt.position,
            key=f"{attempt.run_id}:{attempt.position}",
            name=attempt.name,
            attempt=attempt.attempt,
            resources=self._resources,
            beat=self._beat,
            details=attempt.details,
            append=self._refuse,
            flush=self._refuse,
            stage=self._refuse,
            stage_file=self._refuse,
            connection=self.connection,
        )

    def _beat(self, details: Any) -> None:
        attempt = self._attempt
        what = f"the details of a heartbeat of step {attempt.name!r}"
        attempt.receive(None if details is None else to_text(details, what, attempt.payload_max))

    def _refuse(self, *_: Any) -> Any:
        raise Misuse(f"{self._attempt.name!r} is a step of an operation: streams and artifacts belong to functions")


def enter_operation(resources: Callable[[type[Any]], Any], context: Context, attempt: OperationAttempt) -> InOperation:
    """Have code that runs in a context know that it is a step of an operation."""
    place = InOperation(resources, attempt)
    context.run(in_step.set, place)
    return place


def current_step() -> CurrentStep:
    """The attempt this code belongs to: its run's id, its number, and a key that is the same in every attempt and after
    every crash, for whoever must do the work only once. Raises NotInStep elsewhere."""
    found = in_step.get(None)
    if found is None or running_loop() is not None:
        raise NotInStep("current_step() belongs into a step that an engine runs")
    return found.describe()


@checked
def resource(kind: type[T]) -> T:
    """What the engine holds for this type (`Engine(resources={Pool: make_pool})`): a pool, a client."""
    return current_step().resource(kind)
