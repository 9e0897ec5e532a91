"""The verbs that an engine and a client share: start, run, send, emit, handle. All other methods are on handles and
facets.

`Client` and `Engine` use these functions as their methods, so that each verb has one signature and one docstring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, overload

from perdure.api.emissions import emit_root
from perdure.api.events import To, send_event, send_events
from perdure.api.root_handle import RootHandle
from perdure.api.run_handle import RunHandle
from perdure.api.starts import PreparedStart, prepare, start_all
from perdure.kernel.rules.delivery import Delivered, Queued, Sent
from perdure.models.cooperation.context import EMPTY, CancellationToken, Context
from perdure.models.cooperation.topics import Topic
from perdure.models.functions.define import RunCall
from perdure.models.functions.events import Event, NamedEvent
from perdure.session import Session
from perdure.values.arguments import Duration
from perdure.values.checks import checked_text

M = TypeVar("M")
R = TypeVar("R")


class Connected(Protocol):
    """An engine or a client."""

    @property
    def session(self) -> Session: ...


# Starting runs.


@overload
async def start(
    self: Connected,
    call: RunCall[R],
    *,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RunHandle[R]: ...


@overload
async def start(
    self: Connected,
    call: str,
    input: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RunHandle[Any]: ...


async def start(
    self: Connected,
    call: RunCall[Any] | str,
    input: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RunHandle[Any]:
    """Start a run, and return its handle once the run is durable.

    `call` is a called workflow: `checkout("o-17")`. It may also be the name of a workflow. Then `input` has the
    arguments by name, as JSON values. The default `version` is the version that the newest engine with this workflow
    has. An engine that has the code executes the run.

    With an `id` the start is idempotent: the same id, workflow and arguments give the same run. Raises RunExists if the
    id belongs to a run of another workflow, or to a run with other arguments. A run that has not ended by its
    `deadline` fails. Raises UnknownWorkflow, InvalidArguments, UnstorableValue.

    With a `connection` of your own to the store's database (asyncpg, psycopg 3, SQLAlchemy 2, sqlite3), the run is
    written in that connection's transaction. The run exists once you commit, and it starts soon after the commit. If
    you roll back, or crash before the commit, the run never existed. Until the commit its handle raises RunNotFound.
    Raises Misuse if the connection is not suitable, and the errors of the connection's driver. After Misuse and after
    RunExists, you can continue your transaction.
    """
    prepared = await prepare(
        self.session, call, input, version=version, id=id, tags=tags, deadline=deadline, actor=actor
    )  # fmt: skip
    return await (prepared.submit() if connection is None else prepared.insert_async(connection))


async def start_many(
    self: Connected,
    calls: Iterable[RunCall[R]],
    *,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
) -> Sequence[RunHandle[R]]:
    """Start many runs in shared commits. Return their handles, in the order of the calls, once all runs are durable.

    All calls are checked before the first run is started. If a call is wrong, no run is started. Raises the same errors
    as `start`.
    """
    session = self.session
    prepared = [await prepare(session, call, tags=tags, deadline=deadline, actor=actor) for call in calls]
    return await start_all(session, prepared)


async def run(
    self: Connected,
    call: RunCall[R],
    *,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
) -> R:
    """Start a run, wait until it has ended, and return its result.

    Raises the errors of `start` and `RunHandle.result`.
    """
    started: RunHandle[R] = await start(self, call, id=id, tags=tags, deadline=deadline)
    return await started.result()


@overload
async def prepare_start(
    self: Connected,
    call: RunCall[R],
    *,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
) -> PreparedStart[R]: ...


@overload
async def prepare_start(
    self: Connected,
    call: str,
    input: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
) -> PreparedStart[Any]: ...


async def prepare_start(
    self: Connected,
    call: RunCall[Any] | str,
    input: Mapping[str, Any] | None = None,
    *,
    version: str | None = None,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: datetime | Duration | None = None,
    actor: str = "api",
) -> PreparedStart[Any]:
    """Check a start without writing anything, and return the prepared start.

    Synchronous code can then write the start in its own transaction: `prepared.insert(connection)`. Raises the same
    errors as `start`.
    """
    return await prepare(
        self.session, call, input, version=version, id=id, tags=tags, deadline=deadline, actor=actor
    )  # fmt: skip


def handle(self: Connected, id: str) -> RunHandle[Any]:
    """Return the handle of the run with this id. This does not check whether the run exists."""
    return RunHandle(self.session, checked_text(id, "a run's id"), None)


# Events.


async def send(
    self: Connected,
    event: Event | NamedEvent,
    *,
    to: str | None = None,
    key: str | None = None,
    strict: bool = False,
    actor: str = "api",
) -> Delivered | Queued:
    """Send an event to the run `to`. Without `to`, broadcast the event. Once the event is durable, return which runs
    have got it.

    If no run waits for the event, it is queued until a run waits for it. With `strict`, RunNotWaiting is raised
    instead. With a `key` the event is sent only once, however often you call this. Another event with the same key
    raises KeyReused. Raises RunNotFound, RunFinished, QueueFull, UnstorableValue. Raises InvalidArguments if the event
    does not fit its event class, or the class that this process has for its name.
    """
    return await send_event(self.session, event, to, key, strict, actor)


async def send_many(self: Connected, events: Iterable[To | Event | NamedEvent], *, actor: str = "api") -> list[Sent]:
    """Send several events in shared commits, and return the outcome of each.

    If an event is refused, the others are sent, and then the error of the refused event is raised.
    """
    return await send_events(self.session, events, actor)


# Messages.


@overload
async def emit(
    self: Connected,
    topic: Topic[M],
    message: M,
    *,
    id: str | None = None,
    context: Context = EMPTY,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[CancellationToken] = (),
    tags: Mapping[str, str] | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RootHandle: ...


@overload
async def emit(
    self: Connected,
    topic: str,
    message: Any,
    *,
    id: str | None = None,
    context: Context = EMPTY,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[CancellationToken] = (),
    tags: Mapping[str, str] | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RootHandle: ...


async def emit(
    self: Connected,
    topic: Topic[Any] | str,
    message: Any,
    *,
    id: str | None = None,
    context: Context = EMPTY,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[CancellationToken] = (),
    tags: Mapping[str, str] | None = None,
    actor: str = "api",
    connection: object | None = None,
) -> RootHandle:
    """Emit a message as the root of a hierarchy.

    Return the root's handle once the message is durable, together with one run for each handler that is registered for
    the topic. You may pass the name of a topic if the topic has a handler.

    `id` is the id of the message. With an `id` the call is idempotent: a second call returns the same hierarchy. Raises
    RunExists if the second call has another topic or another message. The audit trails of the runs name the `actor`.

    A hierarchy that is not done by its `deadline` rolls back. A hierarchy that has not rolled back by its
    `rollback_deadline` ends as rollback_failed. Both deadlines apply to all runs of the hierarchy. If a run has several
    deadlines, the earliest counts. Handlers begin after the `delay`, even if engines crash in the meantime. When one of
    the `tokens` is cancelled, all runs of the hierarchy roll back. If a token is already cancelled, the runs roll back
    before their first steps. Raises InvalidArguments, UnstorableValue.

    With a `connection` of your own to the store's database, as for `start`, the message and its runs are written in
    that connection's transaction. The message and its runs exist once you commit, and the runs begin soon after the
    commit. If you roll back, or crash before the commit, the message and its runs never existed. Until the commit the
    handle raises RunNotFound. Raises Misuse if the connection is not suitable, and the errors of the connection's
    driver. After Misuse and after RunExists, you can continue your transaction.
    """
    return await emit_root(
        self.session,
        topic,
        message,
        id=id,
        context=context,
        deadline=deadline,
        rollback_deadline=rollback_deadline,
        delay=delay,
        tokens=tokens,
        tags=tags,
        actor=actor,
        connection=connection,
    )


# Stopping.


async def until_stopped(self: Connected) -> None:
    """Wait until the engine or client has stopped.

    Returns normally if it was shut down. Raises EngineStopped if it stopped by itself because its store is broken. Then
    end the process, or open another engine.
    """
    await self.session.until_stopped()


__all__ = [
    "Connected",
    "emit",
    "handle",
    "prepare_start",
    "run",
    "send",
    "send_many",
    "start",
    "start_many",
    "until_stopped",
]
