"""One run: read, change, cancel, pause, resume and retry it. run_details.py has the other aspects of a run, and
run_watch.py follows its changes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from litestar import Response, Router, get, patch, post
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from perdure.engine import AnyClient
from perdure.errors import (
    ConcurrentModification,
    InvalidArguments,
    Misuse,
    PerdureError,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
)
from perdure.http.access import caller_of
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Tags, moment
from perdure.http.preconditions import ETAG, IfMatch, etag, expected_version
from perdure.http.problems import no
from perdure.http.visible_runs import operates_run, reach_of, reads_run
from perdure.views import RunView

_CHANGE = (RunNotFound, RunFinished, ConcurrentModification, InvalidArguments, "precondition_required")


class RunChange(Body, frozen=True, kw_only=True):
    """The new tags and the new deadline. The tags replace all tags of the run. A deadline of null removes the
    deadline.
    """

    tags: Tags | UnsetType = UNSET
    deadline: datetime | UnsetType | None = UNSET


class Reason(Body, frozen=True, kw_only=True):
    """The reason for the change. The audit trail keeps it."""

    reason: Annotated[str, Meta(max_length=10_000)] = ""


class Nothing(Body, frozen=True, kw_only=True):
    """An empty object."""


def _change(verb: str, *refusals: type[PerdureError]) -> post:
    """Return the decorator for a route that makes a change, named by a verb. The path of the route is below the run's
    path. The response is the changed run.
    """
    return post(
        f"/{{run_id:str}}/{verb}",
        guards=[operates_run],
        status_code=200,
        response_headers=ETAG,
        responses=no(*_CHANGE, *refusals, changes=True),
    )


@get("/{run_id:str}", guards=[reads_run], response_headers=ETAG, responses=no(RunNotFound))
async def get_run(client: TheClient, run_id: Id) -> Response[RunView]:
    """Return a run with its input, and its output or failure."""
    return tagged(await found(client, run_id))


@patch(
    "/{run_id:str}", guards=[operates_run], response_headers=ETAG, responses=no(*_CHANGE, Misuse, changes=True)
)  # fmt: skip
async def update_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[RunChange], if_match: IfMatch = None
) -> Response[RunView]:
    """Replace a run's tags, its deadline, or both. A token that is only for some runs cannot change the tags of a run
    so that the run is no longer one of them.
    """
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


@_change("cancel")
async def cancel_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Reason], if_match: IfMatch = None
) -> Response[RunView]:
    """Cancel a run and its children. Compensations that the run has registered are executed."""
    version = expected_version(if_match)
    actor = caller_of(request).name
    done = await client.handle(run_id).cancel(expected_version=version, reason=data.reason, actor=actor)
    view = await found(client, run_id)
    if not done:
        raise RunFinished(f"run {run_id!r} is {view.status}: nothing to cancel", run_id=run_id, status=view.status)
    return tagged(view)


@_change("pause")
async def pause_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Reason], if_match: IfMatch = None
) -> Response[RunView]:
    """Hold a run until it is resumed. A run that is already held stays unchanged."""
    version = expected_version(if_match)
    await client.handle(run_id).pause(expected_version=version, reason=data.reason, actor=caller_of(request).name)
    return tagged(await found(client, run_id))


@_change("resume")
async def resume_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing], if_match: IfMatch = None
) -> Response[RunView]:
    """Lift the hold of a run, whatever its kind. A run that is not held stays unchanged."""
    del data
    await client.handle(run_id).resume(expected_version=expected_version(if_match), actor=caller_of(request).name)
    return tagged(await found(client, run_id))


@_change("retry", RunNotRetryable)
async def retry_run(
    request: Asked, client: TheClient, run_id: Id, data: JSONBody[Nothing], if_match: IfMatch = None
) -> Response[RunView]:
    """Run a failed run again, from the step whose failure ended it."""
    del data
    await client.handle(run_id).retry(expected_version=expected_version(if_match), actor=caller_of(request).name)
    return tagged(await found(client, run_id))


async def found(client: AnyClient, run_id: str) -> RunView:
    """Return the run with this id. Raises RunNotFound."""
    view = await client.runs.get(run_id)
    if view is None:
        raise RunNotFound(run_id)
    return view


def tagged(view: RunView) -> Response[RunView]:
    """Return a response with a run. Its ETag is the run's version."""
    return Response(view, headers={"ETag": etag(view.version)})


router = Router(
    "/runs", route_handlers=[get_run, update_run, cancel_run, pause_run, resume_run, retry_run], tags=["runs"]
)

__all__ = ["Nothing", "Reason", "found", "router", "tagged"]
