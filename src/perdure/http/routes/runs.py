"""Runs: start, look at, list, change."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from litestar import Response, Router, get, patch, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure.engine import AnyClient
from perdure.errors import (
    ConcurrentModification,
    InvalidArguments,
    Misuse,
    NotPublished,
    RunExists,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
    UnknownWorkflow,
    UnstorableValue,
)
from perdure.http.access import caller_of
from perdure.http.conditions import IdempotencyKey, IfMatch, etag, expected_version, run_id_of
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Limit, Name, Wanted, moment, wanted_runs
from perdure.http.problems import no
from perdure.http.reach import operates_run, operates_some, reach_of, reads_run, reads_some
from perdure.http.scopes import Scope
from perdure.views import History, Page, RunTree, RunView, StreamItemView

Tags = dict[Name, Name]
_TREE_RUNS_MAX = 10_000
_ETAG = [ResponseHeader(name="ETag", description="The run's version.", documentation_only=True)]
_CHANGE = (RunNotFound, RunFinished, ConcurrentModification, InvalidArguments, "precondition_required")


class NewRun(Body, frozen=True, kw_only=True):
    """What to start. With an `id` it is started once; without a `version`, as the newest engine has it."""

    workflow: Name
    input: dict[str, Any] = field(default_factory=dict)
    version: Annotated[str, Meta(max_length=500)] | None = None
    id: Name | None = None
    tags: Tags = field(default_factory=dict)
    deadline: datetime | None = None


class RunChange(Body, frozen=True, kw_only=True):
    """Tags replace all that there were; a deadline of null is none."""

    tags: Tags | UnsetType = UNSET
    deadline: datetime | UnsetType | None = UNSET


class Reason(Body, frozen=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=10_000)] = ""


class Nothing(Body, frozen=True, kw_only=True):
    """An empty object."""


class PublishedView(Struct, frozen=True, kw_only=True):
    """A value that a run shows."""

    key: str
    value: Any


class StreamPage(Struct, frozen=True, kw_only=True):
    """Items of a stream. `after` of the next page is `next`."""

    items: list[StreamItemView]
    next: int


@post(
    "/",
    guards=[operates_some],
    response_headers=[*_ETAG, ResponseHeader(name="Location", documentation_only=True)],
    responses=no(RunExists, UnknownWorkflow, UnstorableValue, InvalidArguments, changes=True),
)
async def start_run(
    request: Asked, client: TheClient, data: JSONBody[NewRun], idempotency_key: IdempotencyKey = None
) -> Response[RunView]:
    """Start a run. With an id, or with an Idempotency-Key, sending it again gives the same run."""
    run_id = data.id
    reach = reach_of(request)
    reach.check(Scope.OPERATE, data.workflow, data.tags)
    if run_id is not None:
        reach.check_id(run_id, data.workflow, data.tags)
    elif idempotency_key is not None:
        run_id = run_id_of(idempotency_key, reach.key_scope(data.workflow, data.tags))

    async def start() -> str:
        handle = await client.start(
            data.workflow,
            data.input,
            version=data.version,
            id=run_id,
            tags=data.tags,
            deadline=None if data.deadline is None else moment(data.deadline),
            actor=caller_of(request).name,
        )
        return handle.id

    view = await reach.started(start(), run_id)
    location = f"{request.url.path.rstrip('/')}/{quote(view.id, safe='')}"
    return Response(view, headers={"ETag": etag(view.version), "Location": location})


@get(
    "/", guards=[reads_some], dependencies={"wanted": Provide(wanted_runs, sync_to_thread=False)}, responses=no(Misuse)
)
async def list_runs(
    request: Asked,
    wanted: NamedDependency[Wanted],
    limit: Limit = 100,
    cursor: Annotated[str | None, QueryParameter(max_length=600, description="That of the page before.")] = None,
) -> Page:
    """Runs, the newest first, without their payloads."""
    return await reach_of(request).page(wanted, limit, cursor)


@get("/{run_id:str}", guards=[reads_run], response_headers=_ETAG, responses=no(RunNotFound))
async def get_run(client: TheClient, run_id: Id) -> Response[RunView]:
    """A run with its input, and its output or failure."""
    return tagged(await found(client, run_id))


@patch(
    "/{run_id:str}", guards=[operates_run], response_headers=_ETAG, responses=no(*_CHANGE, Misuse, changes=True)
)  # fmt: skip
async def change_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[RunChange], if_match: IfMatch = None
) -> Response[RunView]:
    """Replace a run's tags, or its deadline. A token that is for some runs cannot put one out of its own reach."""
    deadline = data.deadline
    if data.tags is not UNSET:
        await reach_of(request).check_tags(run_id, data.tags)
    await client.handle(run_id).update(
        expected_version=expected_version(if_match),
        tags=None if data.tags is UNSET else data.tags,
        deadline=moment(deadline) if isinstance(deadline, datetime) else deadline,
        actor=caller_of(request).name,
    )
    return tagged(await found(client, run_id))


@post(
    "/{run_id:str}/cancel",
    guards=[operates_run],
    status_code=200,
    response_headers=_ETAG,
    responses=no(*_CHANGE, changes=True),
)
async def cancel_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Reason], if_match: IfMatch = None
) -> Response[RunView]:
    """End a run as cancelled, with its children; what it registered for that is undone."""
    version = expected_version(if_match)
    actor = caller_of(request).name
    done = await client.handle(run_id).cancel(expected_version=version, reason=data.reason, actor=actor)
    view = await found(client, run_id)
    if not done:
        raise RunFinished(f"run {run_id!r} is {view.status}: nothing to cancel", run_id=run_id, status=view.status)
    return tagged(view)


@post(
    "/{run_id:str}/retry",
    guards=[operates_run],
    status_code=200,
    response_headers=_ETAG,
    responses=no(*_CHANGE, RunNotRetryable, changes=True),
)
async def retry_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing], if_match: IfMatch = None
) -> Response[RunView]:
    """Run a failed run again, from the step whose failure ended it."""
    del data
    await client.handle(run_id).retry(expected_version=expected_version(if_match), actor=caller_of(request).name)
    return tagged(await found(client, run_id))


@post(
    "/{run_id:str}/pause",
    guards=[operates_run],
    status_code=200,
    response_headers=_ETAG,
    responses=no(*_CHANGE, changes=True),
)
async def pause_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Reason], if_match: IfMatch = None
) -> Response[RunView]:
    """Set a run aside until it is resumed. One that is held already stays as it is."""
    version = expected_version(if_match)
    await client.handle(run_id).pause(expected_version=version, reason=data.reason, actor=caller_of(request).name)
    return tagged(await found(client, run_id))


@post(
    "/{run_id:str}/resume",
    guards=[operates_run],
    status_code=200,
    response_headers=_ETAG,
    responses=no(*_CHANGE, changes=True),
)
async def resume_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing], if_match: IfMatch = None
) -> Response[RunView]:
    """Lift a run's hold, whatever its kind. One that is not held stays as it is."""
    del data
    await client.handle(run_id).resume(expected_version=expected_version(if_match), actor=caller_of(request).name)
    return tagged(await found(client, run_id))


@get("/{run_id:str}/history", guards=[reads_run], responses=no(RunNotFound))
async def run_history(client: TheClient, run_id: Id) -> History:
    """What a run did, every change of its status with who asked for it, and what retries set aside."""
    return await client.handle(run_id).history()


@get("/{run_id:str}/tree", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_tree(
    request: Asked,
    client: TheClient,
    run_id: Id,
    runs_max: Annotated[int, QueryParameter(ge=1, le=_TREE_RUNS_MAX)] = 1_000,
) -> RunTree:
    """A run with its children and theirs."""
    return await client.handle(run_id).tree(runs_max=runs_max, within=reach_of(request).within)


@get("/{run_id:str}/published", guards=[reads_run], responses=no(RunNotFound))
async def run_published(client: TheClient, run_id: Id) -> dict[str, Any]:
    """All that a run has published, by key."""
    return await client.handle(run_id).published()


@get("/{run_id:str}/published/{key:str}", guards=[reads_run], responses=no(RunNotFound, NotPublished))
async def run_published_value(client: TheClient, run_id: Id, key: Id) -> PublishedView:
    """What a run has published under a key."""
    return PublishedView(key=key, value=await client.handle(run_id).published(key))


@get("/{run_id:str}/streams/{name:str}", guards=[reads_run], responses=no(RunNotFound))
async def run_stream(
    client: TheClient,
    run_id: Id,
    name: Id,
    after: Annotated[int, QueryParameter(ge=0, le=2**63 - 1, description="The offset of the last item seen.")] = 0,
    limit: Limit = 100,
) -> StreamPage:
    """Items of a run's stream that are there by now, in order."""
    items: list[StreamItemView] = []
    async for item in client.handle(run_id).stream(name, after=after, follow=False):
        items.append(item)
        if len(items) == limit:
            break
    return StreamPage(items=items, next=items[-1].offset if items else after)


async def found(client: AnyClient, run_id: str) -> RunView:
    """Raises RunNotFound."""
    view = await client.runs.get(run_id)
    if view is None:
        raise RunNotFound(run_id)
    return view


def tagged(view: RunView) -> Response[RunView]:
    return Response(view, headers={"ETag": etag(view.version)})


router = Router(
    "/runs",
    route_handlers=[
        start_run,
        list_runs,
        get_run,
        change_run,
        cancel_run,
        retry_run,
        pause_run,
        resume_run,
        run_history,
        run_tree,
        run_published,
        run_published_value,
        run_stream,
    ],
    tags=["runs"],
)

__all__ = ["Nothing", "Reason", "Tags", "found", "router"]
