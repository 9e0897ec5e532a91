"""Events: send them, list events that wait to be read, and purge events that have expired."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Router, get, post
from litestar.params import JSONBody
from msgspec import Struct

from perdure import Delivered, NamedEvent, Queued
from perdure.errors import (
    InvalidArguments,
    KeyReused,
    QueueFull,
    RunFinished,
    RunNotFound,
    RunNotWaiting,
    UnstorableValue,
)
from perdure.http.access import caller_of, operates
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Limit, Name, Text
from perdure.http.preconditions import IdempotencyKey, event_key_of
from perdure.http.problems import Refused, no
from perdure.http.routes.run import Nothing
from perdure.http.scopes import Scope
from perdure.http.visible_runs import operates_run, reach_of, reads_some
from perdure.views import EventView

_SENDING = (RunNotWaiting, KeyReused, QueueFull, UnstorableValue, InvalidArguments)


class NewEvent(Body, frozen=True, kw_only=True):
    """An event. If no run waits for the event, it is queued. With `strict`, it is refused instead."""

    name: Name
    value: Any = None
    strict: bool = False


class SentView(Struct, frozen=True, kw_only=True):
    """The outcome of sending an event: it was `delivered` to the runs that waited for it, or `queued`. If an event was
    already sent with the same key, the outcome is `queued`, even if the event was delivered.
    """

    outcome: Literal["delivered", "queued"]
    run_ids: list[str]
    event_id: str | None


class PurgedView(Struct, frozen=True, kw_only=True):
    """How many expired events, idempotency keys and sessions were removed."""

    removed: int


def sent_view(sent: Delivered | Queued) -> SentView:
    """Return the outcome of a send."""
    if isinstance(sent, Delivered):
        return SentView(outcome="delivered", run_ids=list(sent.run_ids), event_id=None)
    return SentView(outcome="queued", run_ids=[], event_id=sent.event_id)


@post("/events", guards=[operates], status_code=202, responses=no(*_SENDING, changes=True))
async def broadcast_event(
    request: Asked, client: TheClient, data: JSONBody[NewEvent], idempotency_key: IdempotencyKey = None
) -> SentView:
    """Broadcast an event to the runs that wait for it. If no run waits for the event, it is queued until a run waits
    for it. With an Idempotency-Key, repeated requests send the event only once.
    """
    event = NamedEvent(data.name, data.value)
    actor = caller_of(request).name
    return sent_view(await client.send(event, key=idempotency_key, strict=data.strict, actor=actor))


@post(
    "/runs/{run_id:str}/events",
    guards=[operates_run],
    status_code=202,
    responses=no(RunNotFound, RunFinished, *_SENDING, changes=True),
)
async def send_event(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[NewEvent], idempotency_key: IdempotencyKey = None
) -> SentView:
    """Send an event to a run. With an Idempotency-Key, repeated requests send the event only once."""
    event = NamedEvent(data.name, data.value)
    actor = caller_of(request).name
    key = idempotency_key
    if key is not None:
        key = event_key_of(key, await reach_of(request).key_scope_of(run_id))
    return sent_view(await client.send(event, to=run_id, key=key, strict=data.strict, actor=actor))


@get("/events", guards=[reads_some], responses=no(RunNotFound))
async def list_events(
    request: Asked, client: TheClient, name: Text = None, to: Text = None, limit: Limit = 100
) -> list[EventView]:
    """List events that wait to be read, in the order of sending. With `to`, list the events that were sent to that run.
    Without `to`, list the broadcast events.
    """
    if to is not None:
        await reach_of(request).check_run(Scope.READ, to)
    elif not caller_of(request).grants.includes(Scope.READ):
        raise Refused("forbidden", "broadcast events need a scope for everything; to list those of one run, add to=RUN")
    return await client.events.pending(name=name, to=to, limit=limit)


@post("/events:purge", guards=[operates], status_code=200, responses=no(changes=True))
async def purge_events(client: TheClient, data: JSONBody[Nothing]) -> PurgedView:
    """Remove expired events, old idempotency keys and ended sessions of the dashboard now. Engines do this regularly by
    themselves.
    """
    del data
    return PurgedView(removed=await client.events.purge())


router = Router("/", route_handlers=[broadcast_event, send_event, list_events, purge_events], tags=["events"])

__all__ = ["SentView", "router", "sent_view"]
