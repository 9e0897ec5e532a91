"""Remote executors: programs elsewhere that do tasks of a queue, in whatever language they are written."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Router, post
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType, field

from perdure import NewArtifact
from perdure.api.tasks import TaskView
from perdure.errors import InvalidAnswer, InvalidArguments, TaskClosed, TaskLost, TaskNotFound, UnstorableValue
from perdure.http.access import caller_of, operates
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Body, Id, Name
from perdure.http.problems import Refused, no
from perdure.http.reach import operates_task

_HOLDING = (TaskNotFound, TaskClosed, TaskLost, InvalidArguments)
_LEASE_S_MAX = 24 * 3600
_ERROR_MAX_CHARS = 10_000


class Claim(Body, frozen=True, kw_only=True):
    """Who wants tasks, how many, and how long they are to be kept for it without a heartbeat."""

    worker: Name
    limit: Annotated[int, Meta(ge=1, le=100)] = 1
    lease_s: Annotated[float, Meta(ge=0.001, le=_LEASE_S_MAX)] = 60


class Heartbeat(Body, frozen=True, kw_only=True):
    """How far the worker got, in `details`, for whoever claims the task next."""

    worker: Name
    details: Any = None


class StagedArtifact(Body, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact: text or a JSON value, which the run publishes when it succeeds."""

    name: Name
    value: Any
    type: Annotated[str, Meta(max_length=500)] = ""
    media_type: Name | None = None


class Result(Body, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a task. A graph's node takes all three: its result, what is to be written to the run's context, and
    artifacts. A workflow's task takes one answer, as `result` or as `context_updates`, and artifacts. Either way the
    answer must fit the task's schema."""

    worker: Name
    result: Any | UnsetType = UNSET
    context_updates: Any | UnsetType = UNSET
    staged_artifacts: Annotated[list[StagedArtifact], Meta(max_length=1_000)] = field(default_factory=list)


class Failed(Body, frozen=True, kw_only=True):
    """Why the worker could not do it. With `retry` somebody else may; without, the run gets TaskFailed."""

    worker: Name
    error: Annotated[str, Meta(min_length=1, max_length=_ERROR_MAX_CHARS)]
    retry: bool = False


class Release(Body, frozen=True, kw_only=True):
    worker: Name


@post("/queues/{queue:str}/claim", guards=[operates], status_code=200, responses=no(InvalidArguments, changes=True))
async def claim_tasks(request: Asked, client: TheClient, queue: Id, data: JSONBody[Claim]) -> list[TaskView]:
    """Take open tasks of a queue, the oldest first. Nobody else gets them while the lease lasts."""
    actor = caller_of(request).name
    return await client.tasks.claim(queue, data.worker, limit=data.limit, lease=data.lease_s, actor=actor)


@post(
    "/tasks/{task_id:str}/heartbeat",
    guards=[operates_task],
    status_code=200,
    responses=no(*_HOLDING, UnstorableValue, changes=True),
)
async def beat_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Heartbeat]) -> TaskView:
    """Say that the worker is alive: its lease begins anew."""
    await client.tasks.heartbeat(task_id, data.worker, data.details, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


@post(
    "/tasks/{task_id:str}/complete",
    guards=[operates_task],
    status_code=200,
    responses=no(*_HOLDING, InvalidAnswer, UnstorableValue, changes=True),
)
async def complete_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Result]) -> TaskView:
    """Answer a task as the worker that has it, or had it last, with artifacts for its run."""
    task = await client.tasks.get(task_id)
    artifacts: list[NewArtifact] = []
    if _takes_all(task):
        answer = msgspec.to_builtins(data)
        del answer["worker"]
    else:
        if (data.result is UNSET) == (data.context_updates is UNSET):
            raise Refused("invalid_request", "this task takes one answer: as result, or as context_updates")
        answer = data.context_updates if data.result is UNSET else data.result
        artifacts = [
            NewArtifact(name=one.name, value=one.value, type=one.type, media_type=one.media_type)
            for one in data.staged_artifacts
        ]
    await client.tasks.answer(task_id, answer, artifacts=artifacts, actor=caller_of(request).name, worker=data.worker)
    return await client.tasks.get(task_id)


def _takes_all(task: TaskView) -> bool:
    """Whether a task's schema is that of a graph's remote node, whose answer has the three parts itself."""
    return set(task.schema.get("properties", ())) == {"result", "context_updates", "staged_artifacts"}


@post("/tasks/{task_id:str}/fail", guards=[operates_task], status_code=200, responses=no(*_HOLDING, changes=True))
async def fail_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Failed]) -> TaskView:
    """Say that the worker could not do a task."""
    actor = caller_of(request).name
    await client.tasks.fail(task_id, data.worker, data.error, retry=data.retry, actor=actor)
    return await client.tasks.get(task_id)


@post("/tasks/{task_id:str}/release", guards=[operates_task], status_code=200, responses=no(*_HOLDING, changes=True))
async def release_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Release]) -> TaskView:
    """Give a task back: it is open at once."""
    await client.tasks.release(task_id, data.worker, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


router = Router(
    "/executors",
    route_handlers=[claim_tasks, beat_task, complete_task, fail_task, release_task],
    tags=["remote executors"],
)

__all__ = ["router"]
