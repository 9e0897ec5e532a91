"""Runs as a collection: start, list and count them, and change many runs at once. run.py has the routes of one run.

A run's id may be any text. So no other word can follow `/runs/`. Actions on the collection follow a colon instead:
`/runs:count`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from litestar import Response, Router, get, post
from litestar.datastructures import ResponseHeader
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from perdure import BulkReport, RunSelection
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, Misuse, PerdureError, RunExists, UnknownWorkflow, UnstorableValue
from perdure.http.access import caller_of, operates, reads
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Hold, Limit, Name, Tags, Wanted, moment, wanted_runs
from perdure.http.preconditions import ETAG, IdempotencyKey, etag, run_id_of
from perdure.http.problems import Problem, Refused, no, problem_of
from perdure.http.scopes import Scope
from perdure.http.visible_runs import operates_some, reach_of, reads_some
from perdure.kernel.status import ACTIVE, Status
from perdure.views import Page, RunView

_COUNT_MAX = 1_000_000
_CHANGED_MAX = 10_000
_MANY_MAX = 1_000

Ids = Annotated[list[str], QueryParameter(name="id", min_items=1, max_items=_MANY_MAX, description="The ids.")]


class NewRun(Body, frozen=True, kw_only=True):
    """A run to start. With an `id`, a repeated start changes nothing. The default `version` is the version that the
    newest engine with this workflow has.
    """

    workflow: Name
    input: dict[str, Any] = field(default_factory=dict)
    version: Annotated[str, Meta(max_length=500)] | None = None
    id: Name | None = None
    tags: Tags = field(default_factory=dict)
    deadline: datetime | None = None


class NewRuns(Body, frozen=True, kw_only=True):
    """Runs to start."""

    runs: Annotated[list[NewRun], Meta(min_length=1, max_length=_MANY_MAX)]


class StartedRun(Struct, frozen=True, kw_only=True):
    """The result for one run of the request: its `id`, or the `error` because of which it was not started."""

    id: str | None
    error: Problem | None


class RunCount(Struct, frozen=True, kw_only=True):
    """The number of runs. Counting stops at `limit`. If the number equals `limit`, there may be more runs."""

    count: int
    limit: int


class Selection(Body, frozen=True, kw_only=True):
    """A selection of runs. A run is selected if it matches all fields. An empty object selects all runs."""

    workflow: Name | None = None
    status: Annotated[list[Status], Meta(max_length=len(Status))] = field(default_factory=list)
    hold: Hold | None = None
    parent: Name | None = None
    tags: Tags = field(default_factory=dict)
    created_from: datetime | None = None
    created_before: datetime | None = None


class ManyChanges(Body, frozen=True, kw_only=True):
    """A change of many runs. With `dry_run`, nothing is changed. The report has the runs that would be changed."""

    selection: Selection
    dry_run: bool = False


class ManyChangesWithReason(ManyChanges, frozen=True, kw_only=True):
    """A change of many runs. With `dry_run`, nothing is changed. The report has the runs that would be changed. The
    audit trails of the runs keep the `reason`.
    """

    reason: Annotated[str, Meta(max_length=10_000)] = ""


@post(
    "/runs",
    guards=[operates_some],
    response_headers=[*ETAG, ResponseHeader(name="Location", documentation_only=True)],
    responses=no(RunExists, UnknownWorkflow, UnstorableValue, InvalidArguments, changes=True),
)
async def start_run(
    request: Asked, client: TheClient, data: JSONBody[NewRun], idempotency_key: IdempotencyKey = None
) -> Response[RunView]:
    """Start a run. With an id, or with an Idempotency-Key, sending the request again returns the same run."""
    run_id = data.id
    reach = reach_of(request)
    reach.check(Scope.OPERATE, data.workflow, data.tags)
    if run_id is not None:
        reach.check_id(run_id, data.workflow, data.tags)
    elif idempotency_key is not None:
        run_id = run_id_of(idempotency_key, reach.key_scope(data.workflow, data.tags))
    view = await reach.started(_start(client, replace(data, id=run_id), caller_of(request).name), run_id)
    location = f"{request.url.path.rstrip('/')}/{quote(view.id, safe='')}"
    return Response(view, headers={"ETag": etag(view.version), "Location": location})


async def _start(client: AnyClient, wanted: NewRun, actor: str) -> str:
    handle = await client.start(
        wanted.workflow,
        wanted.input,
        version=wanted.version,
        id=wanted.id,
        tags=wanted.tags,
        deadline=None if wanted.deadline is None else moment(wanted.deadline),
        actor=actor,
    )
    return handle.id


@post("/runs:start-many", guards=[operates], status_code=200, responses=no(changes=True))
async def start_runs(request: Asked, client: TheClient, data: JSONBody[NewRuns]) -> list[StartedRun]:
    """Start many runs in shared commits. The result has one item for each run, in the same order. If a run cannot be
    started, the other runs are started nevertheless. If all runs have ids, you can repeat the request, and no run
    starts twice.
    """
    actor = caller_of(request).name

    async def start(wanted: NewRun) -> StartedRun:
        try:
            return StartedRun(id=await _start(client, wanted, actor), error=None)
        except (PerdureError, Refused) as error:
            return StartedRun(id=None, error=problem_of(error))

    return list(await asyncio.gather(*[start(wanted) for wanted in data.runs]))


@get(
    "/runs",
    guards=[reads_some],
    dependencies={"wanted": Provide(wanted_runs, sync_to_thread=False)},
    responses=no(Misuse),
)
async def list_runs(
    request: Asked,
    wanted: NamedDependency[Wanted],
    limit: Limit = 100,
    cursor: Annotated[
        str | None, QueryParameter(max_length=600, description="The cursor that the previous page has.")
    ] = None,
) -> Page:
    """List runs, newest first, without their payloads."""
    return await reach_of(request).page(wanted, limit, cursor)


@get("/runs:get-many", guards=[reads], responses=no(InvalidArguments))
async def get_runs(client: TheClient, ids: Ids) -> dict[str, RunView]:
    """Return runs by their ids, in one query. Ids without a run are left out."""
    return await client.runs.get_many(ids)


@get(
    "/runs:count",
    guards=[reads],
    dependencies={"wanted": Provide(wanted_runs, sync_to_thread=False)},
    responses=no(Misuse),
)
async def count_runs(
    client: TheClient,
    wanted: NamedDependency[Wanted],
    limit: Annotated[int, QueryParameter(ge=1, le=_COUNT_MAX, description="Stop counting at this number.")] = 10_000,
) -> RunCount:
    """Count runs."""
    return RunCount(count=await client.runs.count(wanted.selection(), limit=limit), limit=limit)


@post("/runs:cancel", guards=[operates], status_code=200, responses=no(Misuse, changes=True))
async def cancel_runs(request: Asked, client: TheClient, data: JSONBody[ManyChangesWithReason]) -> BulkReport:
    """Cancel all selected runs that have not ended, as `/runs/{run_id}/cancel` does. At most 10,000 runs can be
    selected.

    If the server dies during the request, only some of the runs are cancelled. Then send the request again.
    """
    selection = await _selected(client, data.selection, sorted(ACTIVE))
    actor = caller_of(request).name
    return await client.runs.cancel(selection, reason=data.reason, dry_run=data.dry_run, actor=actor)


@post("/runs:pause", guards=[operates], status_code=200, responses=no(Misuse, changes=True))
async def pause_runs(request: Asked, client: TheClient, data: JSONBody[ManyChangesWithReason]) -> BulkReport:
    """Hold all selected runs that have not ended and are not held. The limit, `dry_run` and crashes work as for
    `/runs:cancel`.
    """
    selection = await _selected(client, data.selection, sorted(ACTIVE))
    actor = caller_of(request).name
    return await client.runs.pause(selection, reason=data.reason, dry_run=data.dry_run, actor=actor)


@post("/runs:resume", guards=[operates], status_code=200, responses=no(Misuse, changes=True))
async def resume_runs(request: Asked, client: TheClient, data: JSONBody[ManyChanges]) -> BulkReport:
    """Lift the holds of all selected runs. The limit, `dry_run` and crashes work as for `/runs:cancel`."""
    selection = await _selected(client, data.selection, sorted(ACTIVE))
    return await client.runs.resume(selection, dry_run=data.dry_run, actor=caller_of(request).name)


@post("/runs:retry", guards=[operates], status_code=200, responses=no(Misuse, changes=True))
async def retry_runs(request: Asked, client: TheClient, data: JSONBody[ManyChanges]) -> BulkReport:
    """Retry all selected runs that have failed. The limit, `dry_run` and crashes work as for `/runs:cancel`."""
    selection = await _selected(client, data.selection, [Status.FAILED])
    return await client.runs.retry(selection, dry_run=data.dry_run, actor=caller_of(request).name)


async def _selected(client: AnyClient, wanted: Selection, statuses: Sequence[str]) -> RunSelection:
    """Return a selection of runs. If the selection names no statuses, it is limited to these statuses. Raises Refused
    if it selects too many runs.
    """
    selection = RunSelection(
        workflow=wanted.workflow,
        status=[str(status) for status in wanted.status] or list(statuses),
        hold=wanted.hold,
        parent=wanted.parent,
        tags=wanted.tags,
        created_from=None if wanted.created_from is None else moment(wanted.created_from),
        created_before=None if wanted.created_before is None else moment(wanted.created_before),
    )
    if await client.runs.count(selection, limit=_CHANGED_MAX + 1) > _CHANGED_MAX:
        raise Refused("invalid_request", f"more than {_CHANGED_MAX} runs are selected; select fewer at a time")
    return selection


router = Router(
    "/",
    route_handlers=[
        start_run,
        start_runs,
        list_runs,
        get_runs,
        count_runs,
        cancel_runs,
        pause_runs,
        resume_runs,
        retry_runs,
    ],
    tags=["runs"],
)

__all__ = ["router"]
