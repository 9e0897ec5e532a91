"""Tasks: what runs wait for people to do."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Router, get, post
from litestar.params import FromQuery, JSONBody
from msgspec import Struct

from perdure.api.tasks import TaskStatus, TaskView
from perdure.errors import InvalidAnswer, Misuse, TaskClosed, TaskNotFound, UnstorableValue
from perdure.http.access import caller_of
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import After, Body, Id, Limit, Text, cursor_of
from perdure.http.problems import no
from perdure.http.reach import operates_task, reach_of, reads_some, reads_task


class Tasks(Struct, frozen=True, kw_only=True):
    """A page of them; `cursor` is `after` of the next one, null if there is none."""

    tasks: list[TaskView]
    cursor: str | None


class Answer(Body, frozen=True, kw_only=True):
    """An answer, which must fit the task's schema."""

    value: Any


@get("/", guards=[reads_some], responses=no(Misuse))
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
    """Tasks, the oldest first."""
    within = reach_of(request).within
    found = await client.tasks.list(
        queue=queue, kind=kind, status=status, run=run, within=within, after=after, limit=limit
    )
    return Tasks(tasks=found, cursor=cursor_of(found, limit))


@get("/{task_id:str}", guards=[reads_task], responses=no(TaskNotFound))
async def get_task(client: TheClient, task_id: Id) -> TaskView:
    """One task."""
    return await client.tasks.get(task_id)


@post(
    "/{task_id:str}/answer",
    guards=[operates_task],
    status_code=200,
    responses=no(TaskNotFound, TaskClosed, InvalidAnswer, UnstorableValue, changes=True),
)
async def answer_task(request: Asked, client: TheClient, task_id: Id, data: JSONBody[Answer]) -> TaskView:
    """Answer a task. One answer counts: sending it again is refused as `task_closed`, and changes nothing."""
    await client.tasks.answer(task_id, data.value, actor=caller_of(request).name)
    return await client.tasks.get(task_id)


router = Router("/tasks", route_handlers=[list_tasks, get_task, answer_task], tags=["tasks"])

__all__ = ["router"]
