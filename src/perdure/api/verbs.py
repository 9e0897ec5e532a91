"""The few verbs that an engine and a client have in common. Everything else is on a handle, or in a facet.

`Client` and `Engine` take these functions into their classes as methods, so that each verb has one signature and one
description.
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
from perdure.models.cooperation.define import Topic
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
    """Start a run; return its handle once the run is durable.

    What to run is a called workflow, or its name with the arguments by name, as JSON values; without a `version` it
    is the one that the newest engine has. An engine that has the code takes it.

    With an `id` this is idempotent: the same id, workflow and arguments give the same run, others raise RunExists.
    A run that has not ended by its `deadline` fails. Raises UnknownWorkflow, InvalidArguments, UnstorableValue.

    With a `connection` of the caller's own to the store's database (asyncpg, psycopg 3, SQLAlchemy 2, sqlite3) the
    run is written by it, in its transaction: it is there with the commit and starts soon after, or never was, after
    a rollback or a crash. Until the commit its handle raises RunNotFound. Raises Misuse if the connection cannot be
    used for that, and what its driver raises; neither Misuse nor RunExists spoils the transaction.
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
    """Start many runs, which share commits; return their handles, in the order of the calls, once all are durable.

    All calls are checked before the first run is started: if one is refused, nothing is started. Raises as `start`.
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
    """Start a run and wait for its result. Raises what `start` and `RunHandle.result` raise."""
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
    """Check a start, and write nothing: `prepared.insert(connection)` writes it in a transaction of code that blocks.
    Raises as `start`."""
    return await prepare(
        self.session, call, input, version=version, id=id, tags=tags, deadline=deadline, actor=actor
    )  # fmt: skip


def handle(self: Connected, id: str) -> RunHandle[Any]:
    """Return the handle of a run that is known by its id. Asks nobody whether it exists."""
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
    """Send an event to a run, or, without `to`, broadcast it; return who has got it, once that is durable.

    A run that does not wait for it finds it in its queue when it does; `strict` raises RunNotWaiting instead. With
    a `key` it is sent once, however often this is called; another event under the same key raises KeyReused. Raises
    RunNotFound, RunFinished, QueueFull, UnstorableValue, and InvalidArguments if the event does not fit its class,
    or the class that this process knows by its name.
    """
    return await send_event(self.session, event, to, key, strict, actor)


async def send_many(self: Connected, events: Iterable[To | Event | NamedEvent], *, actor: str = "api") -> list[Sent]:
    """Send several events, which share commits; return what became of each. Raises, after all were sent, what one of
    them was refused with."""
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
    """Emit a message as the root of a hierarchy; return its handle once it is durable, with a run for every handler
    that is registered for the topic. A topic may be given by its name, if somebody handles it.

    With an `id`, the message's, this is idempotent: a second time gives the same hierarchy; on another topic, or
    with another content, it raises RunExists. An `actor` that is named is in the audit of these runs.

    A hierarchy that is not done by its `deadline` gives up and rolls back; one that has not rolled back by its
    `rollback_deadline` ends as rollback_failed. Both hold for all runs below, and the earliest one counts. Handlers
    begin after the `delay`, which a crash does not forget. When one of the `tokens` is cancelled, all runs below
    give up; if one is cancelled already, they do so before their first steps. Raises InvalidArguments,
    UnstorableValue.

    With a `connection` of the caller's own to the store's database, as `start` takes it, the message and its runs
    are written by it, in its transaction: they are there with the commit, and are handled soon after, or never
    were. Until the commit, its handle raises RunNotFound. Raises Misuse if the connection cannot be used for that,
    and what its driver raises; neither Misuse nor RunExists spoils the transaction.
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


# Life.


async def until_stopped(self: Connected) -> None:
    """Wait until it has stopped. Returns if it was shut down; raises EngineStopped if it stopped by itself, since its
    store is broken: then a process that lives for it should end, or open another one."""
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
