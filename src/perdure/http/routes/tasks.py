"""Tasks: work that runs wait for. People answer tasks. Programs elsewhere, in any language, claim and complete
tasks.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Router, get, post
from litestar.params import FromQuery, JSONBody
from msgspec import UNSET, Meta, Struct, UnsetType, field

from perdure import NewArtifact
from perdure.api.tasks import TaskStatus, TaskView
from perdure.errors import InvalidAnswer, InvalidArguments, Misuse, TaskClosed, TaskLost, TaskNotFound, UnstorableValue
from perdure.http.access import caller_of, operates
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import After, Body, Id, Limit, Name, Text, cursor_of
from perdure.http.problems import Refused, no
from perdure.http.visible_runs import operates_task, reach_of, reads_some, reads_task

_CLAIMED = (TaskNotFound, TaskClosed, TaskLost, InvalidArguments)
_LEASE_S_MAX = 24 * 3600
_ERROR_MAX_CHARS = 10_000


class Tasks(Struct, frozen=True, kw_only=True):
    """A page of tasks. Pass `cursor` as `after` to get the next page. It is null on the last page."""

    tasks: list[TaskView]
    cursor: str | None


class Answer(Body, frozen=True, kw_only=True):
    """An answer. It must fit the task's schema."""

    value: Any


class Claim(Body, frozen=True, kw_only=True):
    """The queue, the worker, the maximum number of tasks, and the lease. The lease is how long the tasks stay with the
    worker without a heartbeat.
    """

    queue: Name
    worker: Name
    limit: Annotated[int, Meta(ge=1, le=100)] = 1
    lease_s: Annotated[float, Meta(ge=0.001, le=_LEASE_S_MAX)] = 60


class Heartbeat(Body, frozen=True, kw_only=True):
    """A sign of life of a worker. `details` tell the next worker that claims the task how far this worker got."""

    worker: Name
    details: Any = None


class StagedArtifact(Body, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact: text or a JSON value. The run publishes the artifact when the run succeeds."""

    name: Name
    value: Any
    type: Annotated[str, Meta(max_length=500)] = ""
    media_type: Name | None = None


class Result(Body, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a task. A task of a graph's remote node takes a `result`, `context_updates` for the run's context,
    and artifacts. Every other task takes artifacts and one answer. The answer is in `result` or in `context_updates`.
    The answer must fit the task's schema.
    """

    worker: Name
    result: Any | UnsetType = UNSET
    context_updates: Any | UnsetType = UNSET
    staged_artifacts: Annotated[list[StagedArtifact], Meta(max_length=1_000)] = field(default_factory=list)


class Failed(Body, frozen=True, kw_only=True):
    """The reason why the worker could not do the task. With `retry`, the task is open again. Otherwise the run gets
    TaskFailed.
    """

    worker: Name
    error: Annotated[str, Meta(min_length=1, max_length=_ERROR_MAX_CHARS)]
    retry: bool = False


class Release(Body, frozen=True, kw_only=True):
    """The worker that gives a task back."""

    worker: Name


@get("/tasks", guards=[reads_some], responses=no(Misuse))
async def list_tasks(
    request: Asked,
    client: TheClient,
    queue: Text = None,
    kind: FromQuery[Literal["human", "remote"] | None] = None,
    status: FromQuery[TaskStatus | None] = None,
    run: Text = None,
    after: After = None,
    limit: Limit = 100,
) -> Tasks:
    """List tasks, oldest first."""
    within = reach_of(request).within
    found = await client.tasks.list(
        queue=queue, kind=kind, status=status, run=run, within=within, after=after, limit=limit
    )
    return Tasks(tasks=found, cursor=cursor_of(found, limit))


@get("/tasks/{task_id:str}", guards=[reads_task], responses=no(TaskNotFound))
async def get_task(client: TheClient, task_id: Id) -> TaskView:
    """Return a task."""
    return await client.tasks.get(task_id)


@post(
    "/tasks/{task_id:str}/answer",
    guards=[operates_task],
    status_code=200,
    responses=no(TaskNotFound, TaskClosed, InvalidAnswer, UnstorableValue, changes=True),
)
async def answer_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Answer]) -> TaskView:
    """Answer a task. Only the first answer counts. A second answer is refused as `task_closed` and changes nothing."""
    await client.tasks.answer(task_id, data.value, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


@post("/tasks:claim", guards=[operates], status_code=200, responses=no(InvalidArguments, changes=True))
async def claim_tasks(request: Asked, client: TheClient, data: JSONBody[Claim]) -> list[TaskView]:
    """Claim open tasks of a queue for a worker, oldest first. No other worker gets them until the lease has expired."""
    actor = caller_of(request).name
    return await client.tasks.claim(data.queue, data.worker, limit=data.limit, lease=data.lease_s, actor=actor)


@post(
    "/tasks/{task_id:str}/heartbeat",
    guards=[operates_task],
    status_code=200,
    responses=no(*_CLAIMED, UnstorableValue, changes=True),
)
async def beat_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Heartbeat]) -> TaskView:
    """Report that the worker is alive, and renew its lease."""
    await client.tasks.heartbeat(task_id, data.worker, data.details, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


@post(
    "/tasks/{task_id:str}/complete",
    guards=[operates_task],
    status_code=200,
    responses=no(*_CLAIMED, InvalidAnswer, UnstorableValue, changes=True),
)
async def complete_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Result]) -> TaskView:
    """Answer a task as its worker, with artifacts for the run. The worker must have the task, or must have had it
    last.
    """
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
    """Return whether a task belongs to a remote node of a graph. The answer to such a task has all three parts."""
    return set(task.schema.get("properties", ())) == {"result", "context_updates", "staged_artifacts"}


@post("/tasks/{task_id:str}/fail", guards=[operates_task], status_code=200, responses=no(*_CLAIMED, changes=True))
async def fail_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Failed]) -> TaskView:
    """Report that the worker could not do a task. With `retry`, the task is open again. Otherwise the run gets
    TaskFailed.
    """
    actor = caller_of(request).name
    await client.tasks.fail(task_id, data.worker, data.error, retry=data.retry, actor=actor)
    return await client.tasks.get(task_id)


@post("/tasks/{task_id:str}/release", guards=[operates_task], status_code=200, responses=no(*_CLAIMED, changes=True))
async def release_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Release]) -> TaskView:
    """Give a task back: it is open again at once."""
    await client.tasks.release(task_id, data.worker, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


router = Router(
    "/",
    route_handlers=[
        list_tasks,
        get_task,
        answer_task,
        claim_tasks,
        beat_task,
        complete_task,
        fail_task,
        release_task,
    ],
    tags=["tasks"],
)

__all__ = ["router"]
