"""The context of workflow code and of steps: `current_run`, `current_step`, `resource`."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable
from contextvars import Context, ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec.json import decode as from_json

from perdure.errors import Misuse, NotInStep, NotInWorkflow
from perdure.models.common.resources import Resources
from perdure.models.functions.loop import WorkflowLoop, running_loop
from perdure.values.arguments import checked
from perdure.values.failures import mark
from perdure.values.json import to_text
from perdure.values.times import to_datetime

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


@checked(constructor=False)
class CurrentRun:
    """The run that the calling workflow code belongs to.

    All its values are the same in every replay. So it has no tags and no attempt number, because these may change.
    `random` and `uuid4` give new values after `continue_as`.
    """

    __slots__ = ("_loop", "id", "random", "workflow")

    def __init__(self, loop: WorkflowLoop, *, id: str, workflow: str) -> None:
        self._loop = loop
        self.id = id
        self.workflow = workflow
        self.random = random.Random(f"{id}@{loop.life}" if loop.life else id)

    def now(self) -> datetime:
        """Return the time at which the run last received a result. This time stands still until the next result."""
        return to_datetime(self._loop.now())

    def uuid4(self) -> uuid.UUID:
        """Return a random id that is the same in every replay. After `continue_as`, it returns new ids."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)


def current_run() -> CurrentRun:
    """Return the run that this code belongs to. Raises NotInWorkflow outside workflow code, and also in steps."""
    loop = require_loop("current_run")
    if not isinstance(loop.about, CurrentRun):
        # Created when it is first needed, because seeding its random generator takes a while.
        loop.about = CurrentRun(loop, id=loop.run_id, workflow=loop.about)
    return loop.about


def require_loop(verb: str) -> WorkflowLoop:
    loop = running_loop()
    if loop is None:
        where = "a step" if in_step.get(None) is not None else "code that no engine runs"
        raise NotInWorkflow(f"{verb}() belongs in a workflow, but was called in {where}")
    return loop


def timed_out(error: E) -> E:
    """Mark an exception as raised by a timeout that has just elapsed, and return the exception. If the run fails with
    this exception, a retry of the run restarts the timeout.
    """
    loop = running_loop()
    if loop is not None and loop.elapsed:
        mark(error, loop.elapsed)
    return error


class StepBody(Protocol):
    """The engine's services for the body of a step. They can be called from any thread."""

    def beat(self, details: Any, /) -> None:
        """Send a heartbeat."""
        ...

    def append(self, stream: str, value: Any, /) -> None:
        """Append an item to a stream of the run."""
        ...

    def flush(self) -> Awaitable[None]:
        """Wait until all appended items are durable."""
        ...

    def stage(self, name: str, value: Any, type: str, media_type: str | None, /) -> None:
        """Stage an artifact."""
        ...

    def stage_file(self, name: str, path: str | Path, type: str, media_type: str | None, /) -> Awaitable[None]:
        """Stage the content of a file."""
        ...

    def resource(self, kind: type[T], /) -> T:
        """Return the engine's resource of a type."""
        ...


@checked(constructor=False)
class CurrentStep:
    """The attempt of a step that the calling code belongs to."""

    __slots__ = ("_body", "_connection", "_details", "attempt", "idempotency_key", "name", "position", "run_id")

    def __init__(
        self,
        *,
        run_id: str,
        position: str,
        key: str,
        name: str,
        attempt: int,
        details: str | None,
        body: StepBody,
        connection: Any = None,
    ) -> None:
        self.run_id = run_id
        self.position = position
        self.name = name
        self.attempt = attempt
        self.idempotency_key = key
        self._details = details
        self._body = body
        self._connection = connection

    @property
    def connection(self) -> Any:
        """A transactional step's connection to the store's database. It is a connection of sqlite3 or of asyncpg.

        The connection is in a transaction. The transaction is committed with the step's result, and rolled back if the
        step fails. The connection cannot be used after the step has ended. Raises Misuse in a step that is not
        transactional.
        """
        if self._connection is None:
            raise Misuse(f"step {self.name!r} has no connection: make it transactional, with `transactional=True`")
        return self._connection

    def heartbeat(self, details: Any = None) -> None:
        """Report that the attempt is alive, and how far it got.

        The next attempt finds the details in `heartbeat_details`. This never waits. Only the newest details count.
        Passing None leaves the earlier details as they are. The details are stored soon, but not at once. A crash of
        the engine's process may lose the details of the last 0.2 seconds. In an attempt that has ended or was given up,
        this does nothing. Raises UnstorableValue if the details have no JSON form.
        """
        self._body.beat(details)

    @property
    def heartbeat_details(self) -> Any:
        """The details of the newest heartbeat of an earlier attempt, in JSON's types. None if no earlier attempt has
        sent details.

        An attempt that a crash interrupted counts as an earlier attempt here, although it has the same number.
        """
        return None if self._details is None else from_json(self._details)

    def append(self, stream: str, value: Any) -> None:
        """Append an item to a stream of the run, for example an LLM's token or a line of a log.

        You can call this from a coroutine, a thread or a worker process.

        The items of a step stay in the order of the calls. Items become durable while the step runs, many in one
        commit. From then on they can be read. Items that are not durable when the step returns become durable together
        with its result. The items of a failed attempt stay, and the next attempt appends after them. Each item has the
        step's position and the number of the attempt. A crash may lose the last items that were appended. The
        interrupted attempt runs again under the same number.

        In an attempt that has ended, because its time was up or the run was cancelled, this does nothing. When too many
        items wait to be written, a thread or a process has to wait. A coroutine gets QueueFull: see `flush`. Raises
        UnstorableValue, InvalidArguments.
        """
        self._body.append(stream, value)

    async def flush(self) -> None:
        """Wait until all items that this step has appended so far are durable.

        If a coroutine appends many items fast, call this now and then. In a worker process this does not wait.
        """
        await self._body.flush()

    def stage(self, name: str, value: Any, *, type: str = "", media_type: str | None = None) -> None:
        """Stage an artifact of the run. Text and bytes stay as they are, and any other value becomes JSON.

        You can call this from coroutines and threads. If this attempt succeeds, the artifact is staged together with
        the step's result. It is published in the commit in which the run succeeds. The artifacts of a failed attempt
        are discarded. In an attempt that has ended this does nothing. Raises UnstorableValue. Raises InvalidArguments
        if the artifact is too large. Raises Misuse in a worker process and in a transactional step.
        """
        self._body.stage(name, value, type, media_type)

    def stage_file(
        self, name: str, path: str | Path, *, type: str = "", media_type: str | None = None
    ) -> Awaitable[None]:
        """Stage the content of a file. The file may be as large as the store allows.

        The file is read part by part. Each part is in the store before the next part is read. You may remove the file
        after the call. In a coroutine the call must be awaited; in a thread the file is staged when the call returns.
        Everything else is as for `stage`. Raises OSError. Raises Misuse if the attempt has ended before the whole file
        was read.
        """
        return self._body.stage_file(name, path, type, media_type)

    def resource(self, kind: type[T]) -> T:
        return self._body.resource(kind)


class Describable(Protocol):
    def describe(self) -> CurrentStep: ...


# The attempt that the running code belongs to. The description is made only on demand, because few steps ask for it.
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
    details: str | None  # the details of earlier attempts' heartbeats, as JSON

    def receive(self, details: str | None) -> None:
        """Take a heartbeat, from any thread."""


class InOperation:
    """A step of an operation. It has the engine's resources, heartbeats and, if it is transactional, its `connection`.
    It has none of the other services that the steps of functions have.
    """

    __slots__ = ("_attempt", "_resources", "connection")

    def __init__(self, resources: Resources, attempt: OperationAttempt) -> None:
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
            details=attempt.details,
            body=self,
            connection=self.connection,
        )

    def beat(self, details: Any) -> None:
        attempt = self._attempt
        what = f"the details of a heartbeat of step {attempt.name!r}"
        attempt.receive(None if details is None else to_text(details, what, attempt.payload_max))

    def resource(self, kind: type[T]) -> T:
        found: T = self._resources.get(kind)
        return found

    def _refuse(self, *_: Any) -> Any:
        raise Misuse(f"{self._attempt.name!r} is a step of an operation: streams and artifacts belong to functions")

    append = flush = stage = stage_file = _refuse


class OperationAttempts:
    """Lets the steps of operations call `current_step`."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources

    def enter(self, context: Context, attempt: OperationAttempt) -> InOperation:
        """Make `current_step` return this attempt in a context."""
        place = InOperation(self._resources, attempt)
        context.run(in_step.set, place)
        return place


def current_step() -> CurrentStep:
    """Return the attempt that this code belongs to. Raises NotInStep outside a step.

    The result has the run's id, the attempt's number, and an idempotency key. The key is the same in every attempt and
    after every crash. Pass it to services that must do the work only once.
    """
    found = in_step.get(None)
    if found is None or running_loop() is not None:
        raise NotInStep("current_step() belongs in a step that an engine runs")
    return found.describe()


@checked
def resource(kind: type[T]) -> T:
    """Return the engine's resource of this type, for example a connection pool:

    `Engine(resources={Pool: make_pool})`.
    """
    return current_step().resource(kind)
