"""Topics: emit messages on them, and say who handles them. Roots: cancel and roll back what followed from a message.

The runs of handlers that no engine has, since they are people or other systems, are completed and failed here too.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from litestar import Router, get, post
from litestar.params import JSONBody
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
from perdure.http.conditions import IdempotencyKey, run_id_of
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Name, moment
from perdure.http.problems import Refused, no
from perdure.http.reach import operates_run, reads_run
from perdure.http.routes.runs import Nothing, Reason, Tags, found
from perdure.views import RunView

_DELAY_S_MAX = 100 * 366 * 86_400


class NewMessage(Body, frozen=True, kw_only=True):
    """What to emit. With an `id` it is emitted once."""

    message: Any
    id: Name | None = None
    tags: Tags = field(default_factory=dict)
    deadline: datetime | None = None
    rollback_deadline: datetime | None = None
    delay_s: Annotated[float, Meta(ge=0, le=_DELAY_S_MAX)] | None = None
    cancellation_tokens: Annotated[list[Name], Meta(max_length=100)] = field(default_factory=list)


class TokenCancellation(Body, frozen=True, kw_only=True):
    """Which cancellation token to cancel, and why."""

    name: Name
    reason: Annotated[str, Meta(max_length=10_000)] = ""


class NewHandler(Body, frozen=True, kw_only=True):
    """Somebody who handles messages, and whom no engine has."""

    name: Name


class Retirement(Body, frozen=True, kw_only=True):
    """With `release`, what waits for the handler goes on without it, unless it has begun."""

    release: bool = False


class Completion(Body, frozen=True, kw_only=True):
    """The values that the handler returns, by name."""

    values: dict[Name, Any] = field(default_factory=dict)


class Inability(Body, frozen=True, kw_only=True):
    """Why the handler could not do it."""

    reason: Annotated[str, Meta(min_length=1, max_length=10_000)]
    type: Name = "Refused"


class TopicView(Struct, frozen=True, kw_only=True):
    """A topic, and the names of those who handle its messages."""

    topic: str
    handlers: list[str]


class RootView(Struct, frozen=True, kw_only=True):
    """A message that was emitted: `id` is its hierarchy's, `run_ids` are the runs of those who handle it."""

    id: str
    message_id: str
    run_ids: list[str]


class MessageView(Struct, frozen=True, kw_only=True):
    """What the run of a handler is there for."""

    run_id: str
    message: Any


class Accepted(Struct, frozen=True, kw_only=True):
    """It is asked for, and will be done."""

    id: str


class CancelledToken(Struct, frozen=True, kw_only=True):
    """A token that is cancelled. `was_cancelled` says that it was so before: then the first reason counts."""

    name: str
    was_cancelled: bool


@get("/topics", guards=[reads], responses=no())
async def list_topics(client: TheClient) -> list[TopicView]:
    """Topics whose messages somebody is expected to handle."""
    return [TopicView(topic=topic, handlers=names) for topic, names in (await client.topics.handlers()).items()]


@post(
    "/topics/{topic:str}/messages",
    guards=[operates],
    responses=no(RunExists, InvalidArguments, UnstorableValue, changes=True),
)
async def emit_message(
    request: Asked, client: TheClient, topic: Id, data: JSONBody[NewMessage], idempotency_key: IdempotencyKey = None
) -> RootView:
    """Emit a message. With an id, or with an Idempotency-Key, sending it again gives the same hierarchy."""
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
    """Have messages of a topic wait for somebody whom no engine has. Who is registered already stays so."""
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
    """No longer expect a handler, for messages that are emitted from now on."""
    actor = caller_of(request).name
    if not await client.topics.retire(topic, name, release=data.release, actor=actor):
        raise Refused("not_found", f"{name!r:.80} is not expected to handle messages of the topic {topic!r:.80}")
    return TopicView(topic=topic, handlers=(await client.topics.handlers()).get(topic, []))


@get("/runs/{run_id:str}/message", guards=[reads_run], responses=no(RunNotFound))
async def run_message(client: TheClient, run_id: Id) -> MessageView:
    """The message that the run of a handler is there for."""
    return MessageView(run_id=run_id, message=await client.topics.message(run_id))


@post(
    "/runs/{run_id:str}/complete",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, RunFinished, Misuse, UnstorableValue, changes=True),
)
async def complete_handler(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Completion]) -> RunView:
    """Say that what the run of a handler was to do is done, by somebody outside."""
    await client.topics.complete(run_id, data.values, actor=caller_of(request).name)
    return await found(client, run_id)


@post(
    "/runs/{run_id:str}/fail",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, RunFinished, Misuse, changes=True),
)
async def fail_handler(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Inability]) -> RunView:
    """Say that what the run of a handler was to do cannot be done, and that nothing of it is left."""
    await client.topics.fail(run_id, data.reason, type=data.type, actor=caller_of(request).name)
    return await found(client, run_id)


@post(
    "/runs/{run_id:str}/complete-rollback",
    guards=[operates_run],
    status_code=200,
    responses=no(RunNotFound, Misuse, changes=True),
)
async def complete_rollback(request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing]) -> RunView:
    """Say that what somebody outside did for a handler is undone, as its emitter asked for."""
    del data
    await client.topics.complete_rollback(run_id, actor=caller_of(request).name)
    return await found(client, run_id)


@post(
    "/roots/{root_id:str}/cancel",
    guards=[operates],
    status_code=202,
    responses=no(RunNotFound, RunFinished, InvalidArguments, changes=True),
)
async def cancel_root(request: Asked, client: TheClient, root_id: Id, data: JSONBody[Reason]) -> Accepted:
    """Have a hierarchy, or the part of it from a run on, give up: each run rolls back at its next step boundary."""
    await cancel_or_refuse(client.session, root_id, reason=data.reason, actor=caller_of(request).name)
    return Accepted(id=root_id)


@post(
    "/cancellation-tokens/cancel",
    guards=[operates],
    status_code=202,
    responses=no(InvalidArguments, changes=True),
)
async def cancel_token(request: Asked, client: TheClient, data: JSONBody[TokenCancellation]) -> CancelledToken:
    """Have all runs give up that were emitted with a cancellation token, and those that will be."""
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
    """Undo a hierarchy that has ended, or the part of it from a run on."""
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
        cancel_root,
        cancel_token,
        roll_back_root,
    ],
    tags=["topics"],
)

__all__ = ["router"]
