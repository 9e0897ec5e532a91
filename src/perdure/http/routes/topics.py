"""Topics: emit messages, and register and retire handlers. Also cancel and roll back the hierarchies of messages.

These routes also complete and fail the runs of handlers that are people or other systems.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from litestar import Router, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct, field

from perdure.api.hierarchies import cancel_or_refuse, roll_back_or_refuse
from perdure.cooperation import CancellationToken
from perdure.errors import (
    InvalidArguments,
    InvalidTransition,
    Misuse,
    RunExists,
    RunFinished,
    RunNotFound,
    UnstorableValue,
)
from perdure.http.access import caller_of, operates, reads
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Name, Tags, moment
from perdure.http.preconditions import IdempotencyKey, run_id_of
from perdure.http.problems import Refused, no
from perdure.http.routes.run import Nothing, Reason, found
from perdure.http.visible_runs import operates_run, reads_run
from perdure.views import HierarchyView, RunView

_DELAY_S_MAX = 100 * 366 * 86_400
_RUNS_MAX = 10_000


class NewMessage(Body, frozen=True, kw_only=True):
    """A message to emit. With an `id`, repeated requests emit the message only once."""

    message: Any
    id: Name | None = None
    tags: Tags = field(default_factory=dict)
    deadline: datetime | None = None
    rollback_deadline: datetime | None = None
    delay_s: Annotated[float, Meta(ge=0, le=_DELAY_S_MAX)] | None = None
    cancellation_tokens: Annotated[list[Name], Meta(max_length=100)] = field(default_factory=list)


class TokenCancellation(Body, frozen=True, kw_only=True):
    """The cancellation token to cancel, and the reason."""

    name: Name
    reason: Annotated[str, Meta(max_length=10_000)] = ""


class NewHandler(Body, frozen=True, kw_only=True):
    """A handler that is not code of an engine: a person or another system."""

    name: Name


class Retirement(Body, frozen=True, kw_only=True):
    """With `release`, messages no longer wait for this handler if it has not begun to handle them."""

    release: bool = False


class Completion(Body, frozen=True, kw_only=True):
    """The values that the handler returns, by name."""

    values: dict[Name, Any] = field(default_factory=dict)


class Inability(Body, frozen=True, kw_only=True):
    """The reason why the handler could not do its work."""

    reason: Annotated[str, Meta(min_length=1, max_length=10_000)]
    type: Name = "Refused"


class TopicView(Struct, frozen=True, kw_only=True):
    """A topic, and the names of its handlers."""

    topic: str
    handlers: list[str]


class RootView(Struct, frozen=True, kw_only=True):
    """A message that was emitted. `id` is the id of the message's hierarchy. `run_ids` are the ids of the runs that
    handle the message.
    """

    id: str
    message_id: str
    run_ids: list[str]


class MessageView(Struct, frozen=True, kw_only=True):
    """The message that the run of a handler has to handle."""

    run_id: str
    message: Any


class Accepted(Struct, frozen=True, kw_only=True):
    """The request is stored, and will be carried out."""

    id: str


class CancelledToken(Struct, frozen=True, kw_only=True):
    """A cancellation token that is cancelled. If `was_cancelled`, the token had already been cancelled before this
    request. Then the first reason counts.
    """

    name: str
    was_cancelled: bool


@get("/topics", guards=[reads], responses=no())
async def list_topics(client: TheClient) -> list[TopicView]:
    """List the topics that have handlers, with their handlers."""
    return [TopicView(topic=topic, handlers=names) for topic, names in (await client.topics.handlers()).items()]


@post(
    "/topics/{topic:str}/messages",
    guards=[operates],
    responses=no(RunExists, InvalidArguments, UnstorableValue, changes=True),
)
async def emit_message(
    request: Asked, client: TheClient, topic: Id, data: JSONBody[NewMessage], idempotency_key: IdempotencyKey = None
) -> RootView:
    """Emit a message. With an id, or with an Idempotency-Key, sending the request again returns the same hierarchy."""
    message_id = data.id
    if message_id is None and idempotency_key is not None:
        message_id = run_id_of(idempotency_key)
    root = await client.emit(
        topic,
        data.message,
        id=message_id,
        deadline=None if data.deadline is None else moment(data.deadline),
        rollback_deadline=None if data.rollback_deadline is None else moment(data.rollback_deadline),
        delay=None if data.delay_s is None else timedelta(seconds=data.delay_s),
        tokens=[CancellationToken(name) for name in data.cancellation_tokens],
        tags=data.tags,
        actor=caller_of(request).name,
    )
    return RootView(id=root.id, message_id=root.message_id, run_ids=list(root.run_ids))


@post("/topics/{topic:str}/handlers", guards=[operates], responses=no(Misuse, changes=True))
async def register_handler(request: Asked, client: TheClient, topic: Id, data: JSONBody[NewHandler]) -> TopicView:
    """Register a handler that is a person or another system. From then on, messages of the topic wait for this handler.
    Registering it again changes nothing.
    """
    await client.topics.register(topic, data.name, actor=caller_of(request).name)
    return TopicView(topic=topic, handlers=(await client.topics.handlers()).get(topic, []))


@post(
    "/topics/{topic:str}/handlers/{name:str}/retire",
    guards=[operates],
    status_code=200,
    responses=no("not_found", Misuse, changes=True),
)
async def retire_handler(
    request: Asked, client: TheClient, topic: Id, name: Id, data: JSONBody[Retirement]
) -> TopicView:
    """Retire a handler. Messages that are emitted from now on do not wait for it."""
    actor = caller_of(request).name
    if not await client.topics.retire(topic, name, release=data.release, actor=actor):
        raise Refused("not_found", f"the topic {topic!r:.80} has no handler {name!r:.80}")
    return TopicView(topic=topic, handlers=(await client.topics.handlers()).get(topic, []))


@get("/runs/{run_id:str}/message", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_message(client: TheClient, run_id: Id) -> MessageView:
    """Return the message that the run of a handler has to handle."""
    return MessageView(run_id=run_id, message=await client.topics.message(run_id))


@post(
    "/runs/{run_id:str}/complete",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, RunFinished, Misuse, UnstorableValue, changes=True),
)
async def complete_handler(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Completion]) -> RunView:
    """Complete the run of a handler that is a person or another system."""
    await client.topics.complete(run_id, data.values, actor=caller_of(request).name)
    return await found(client, run_id)


@post(
    "/runs/{run_id:str}/fail",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, RunFinished, Misuse, changes=True),
)
async def fail_handler(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Inability]) -> RunView:
    """Fail the run of a handler that is a person or another system. Do this only if no work of the handler needs to be
    undone.
    """
    await client.topics.fail(run_id, data.reason, type=data.type, actor=caller_of(request).name)
    return await found(client, run_id)


@post(
    "/runs/{run_id:str}/complete-rollback",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, Misuse, changes=True),
)
async def complete_rollback(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing]) -> RunView:
    """Complete the rollback of a handler that is a person or another system. Do this once the handler's work is undone,
    as the emitter has requested.
    """
    del data
    await client.topics.complete_rollback(run_id, actor=caller_of(request).name)
    return await found(client, run_id)


@get("/roots/{root_id:str}", guards=[reads], responses=no(RunNotFound, Misuse))
async def get_root(
    client: TheClient,
    root_id: Id,
    runs_max: Annotated[
        int, QueryParameter(ge=1, le=_RUNS_MAX, description="Refuse if the hierarchy has more runs.")
    ] = 1_000,
) -> HierarchyView:
    """Return a hierarchy: its runs, and the events of each message. With the id of a run, return the part of the
    hierarchy below that run."""
    return await client.handle(root_id).hierarchy(runs_max=runs_max)


@post(
    "/roots/{root_id:str}/cancel",
    guards=[operates],
    status_code=202,
    responses=no(RunNotFound, RunFinished, InvalidArguments, changes=True),
)
async def cancel_root(request: Asked, client: TheClient, root_id: Id, data: JSONBody[Reason]) -> Accepted:
    """Cancel a hierarchy. With the id of a run, cancel the part of the hierarchy below that run. Each run rolls back at
    its next step boundary.
    """
    await cancel_or_refuse(client.session, root_id, reason=data.reason, actor=caller_of(request).name)
    return Accepted(id=root_id)


@post(
    "/topics:cancel-token",
    guards=[operates],
    status_code=202,
    responses=no(InvalidArguments, changes=True),
)
async def cancel_token(request: Asked, client: TheClient, data: JSONBody[TokenCancellation]) -> CancelledToken:
    """Cancel a cancellation token. All runs of messages that were emitted with this token roll back. Runs of messages
    that are emitted with this token later roll back too.
    """
    is_first = await client.topics.cancel_token(
        CancellationToken(data.name), reason=data.reason, actor=caller_of(request).name
    )
    return CancelledToken(name=data.name, was_cancelled=not is_first)


@post(
    "/roots/{root_id:str}/roll-back",
    guards=[operates],
    status_code=202,
    responses=no(RunNotFound, InvalidTransition, InvalidArguments, changes=True),
)
async def roll_back_root(request: Asked, client: TheClient, root_id: Id, data: JSONBody[Reason]) -> Accepted:
    """Roll back a hierarchy that has ended. With the id of a run, roll back that run and all runs below it."""
    await roll_back_or_refuse(client.session, root_id, reason=data.reason, actor=caller_of(request).name)
    return Accepted(id=root_id)


router = Router(
    "/",
    route_handlers=[
        list_topics,
        emit_message,
        register_handler,
        retire_handler,
        run_message,
        complete_handler,
        fail_handler,
        complete_rollback,
        get_root,
        cancel_root,
        cancel_token,
        roll_back_root,
    ],
    tags=["topics"],
)

__all__ = ["router"]
