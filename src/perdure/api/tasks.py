"""`engine.tasks`: tasks that people answer and workers claim."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.api.within import checked_within
from perdure.coordinator.call_spans import whole_calls
from perdure.errors import InvalidAnswer, InvalidArguments, Misuse, RowDamaged, TaskNotFound, UnstorableValue
from perdure.kernel import ops
from perdure.kernel.events import Event
from perdure.kernel.rules.tasks import closed, lost
from perdure.kernel.tasks import Task, task_event
from perdure.models.functions.artifacts import draft_of
from perdure.models.functions.tasks import Given, NewArtifact
from perdure.ports import PlainCodec, TaskFilter, Within
from perdure.session import Session
from perdure.values.arguments import Duration, checked
from perdure.values.checks import checked_limit, checked_option, checked_remark, checked_text
from perdure.values.json import bytes_of, to_text
from perdure.values.schemas import TooManySteps, misfit
from perdure.values.times import seconds_of
from perdure.views import plain_value, shown_time, shown_value

TaskStatus = Literal["open", "claimed", "answered", "withdrawn"]

_NEVER: Final = 2**62
_STATUSES: Final = ("open", "claimed", "answered", "withdrawn")
_ERROR_MAX_CHARS: Final = 10_000
_CLAIMED_MAX: Final = 1_000
_STEPS_AT_ONCE_MAX: Final = 10_000  # steps of a schema check on the event loop: about 20 ms


class TaskView(Struct, frozen=True, kw_only=True):
    """A task.

    The task is `claimed` while a worker's lease lasts, and `open` again once the lease has expired. `details` are the
    details of the last heartbeat. `error` is the error of the last worker that gave the task back. `claims` is how
    often workers have claimed the task. `actor` requested the last claim, heartbeat or release.
    """

    id: str
    run_id: str
    position: str
    queue: str
    kind: str
    title: str
    schema: Any
    payload: Any
    status: str
    worker: str | None
    lease_until: datetime | None
    beat_at: datetime | None
    details: Any
    error: str | None
    claims: int
    due_at: datetime | None
    created_at: datetime
    closed_at: datetime | None
    answered_by: str | None
    actor: str | None = None


TaskViews = list[TaskView]  # inside the class, the name `list` means the method


@whole_calls()
@checked(constructor=False)
class Tasks:
    """All tasks in the store. An answer goes to the engine that has the task's run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        status: TaskStatus | None = None,
        run: str | None = None,
        within: Within | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> TaskViews:
        """Return tasks, oldest first.

        `after` is the id of the last task that you have. With `within`, the list has only tasks of the runs that
        `within` covers. Raises Misuse.
        """
        self._session.check_open()
        checked_limit(limit)
        for argument, text in (("queue", queue), ("kind", kind), ("run", run), ("after", after)):
            checked_option(text, argument)
        if checked_option(status, "status") is not None and status not in _STATUSES:
            raise Misuse(f"there is no status {status!r:.40} of tasks; use one of {', '.join(_STATUSES)}")
        now = self._session.clock.now()
        wanted = TaskFilter(
            queue=queue,
            kind=kind,
            status=status,
            run_id=run,
            at=now,
            within=checked_within(within),
            after=after,
            limit=limit,
        )
        return [self._task_view(one) for one in await self._session.caller_store.tasks(wanted)]

    async def get(self, id: str) -> TaskView:
        """Return a task. Raises TaskNotFound."""
        return self._task_view(await self._task(id))

    async def answer(
        self,
        id: str,
        value: Any,
        *,
        artifacts: Iterable[NewArtifact] = (),
        actor: str = "api",
        worker: str | None = None,
    ) -> None:
        """Answer a task. Returns once the answer is durable and the run has it.

        Only the first answer counts. Raises InvalidAnswer if the answer does not fit the task's schema. The error has
        the path of the wrong part, and the task stays open. Raises TaskClosed if the task was answered before, or if
        its run no longer waits for it. Raises TaskNotFound. If you pass a `worker`, this worker must have the task, or
        must have had it last. Otherwise raises TaskLost.

        The run stages the `artifacts` when it continues with the answer, and publishes them when it succeeds. Raises
        InvalidArguments, UnstorableValue.
        """
        brought = tuple(self._plain(one) for one in artifacts)
        task = await self._task(id)
        text = to_text(value, f"the answer to task {id!r}", self._session.limits.payload_bytes_max)
        if task.status == "damaged":
            raise RowDamaged(task.error or "")
        if task.status != "open":
            raise closed(task)
        schema = plain_value(task.schema, PlainCodec(), f"tasks.schema of task {id!r}")
        answer = msgspec.json.decode(text)
        try:
            found = misfit(answer, schema, _STEPS_AT_ONCE_MAX)
        except TooManySteps:  # The check would block the event loop for too long, so it runs in a thread.
            found = await asyncio.to_thread(misfit, answer, schema)
        if found is not None:
            raise InvalidAnswer(
                f"the answer does not fit task {id!r}: at {found[0]} {found[1]}; it stays open",
                task_id=id,
                path=found[0],
            )
        await self._give(task, actor, worker, value=msgspec.Raw(text.encode()), artifacts=brought)

    # Workers.

    async def claim(
        self, queue: str, worker: str, *, limit: int = 1, lease: Duration = 60, actor: str | None = None
    ) -> TaskViews:
        """Claim open tasks of a queue, oldest first.

        No other worker gets them until the lease has expired; `heartbeat` renews the lease. If the worker dies, its
        lease expires, and the tasks are open again. A number as `lease` means seconds. The tasks show the `actor`; the
        default is the worker's name. Raises InvalidArguments.
        """
        self._session.check_open()
        checked_text(queue, "a queue's name")
        checked_text(worker, "a worker's name")
        if not 1 <= limit <= _CLAIMED_MAX:
            raise Misuse(f"limit must be between 1 and {_CLAIMED_MAX}, not {limit}")
        lease_us = round(seconds_of(lease, "claim") * 1_000_000)
        if lease_us <= 0:
            raise InvalidArguments(f"a lease must be longer than 0, not {lease!r}")
        now = self._session.clock.now()
        by = _checked_actor(actor, worker)
        found = await self._session.caller_store.claim_tasks(
            queue=queue, worker=worker, lease_us=lease_us, at=now, limit=limit, actor=by
        )
        return [self._task_view(one) for one in found]

    async def heartbeat(self, id: str, worker: str, details: Any = None, *, actor: str | None = None) -> None:
        """Renew a worker's lease of a task.

        `details` tell how far the worker got. Raises TaskLost if another worker has the task, and TaskClosed if the
        task's run no longer waits for it.
        """
        text = None
        if details is not None:
            text = self._session.codec.encode(
                to_text(details, "the details of a heartbeat", self._session.limits.payload_bytes_max)
            )
        self._session.check_open()
        checked_text(id, "a task's id")
        checked_text(worker, "a worker's name")
        by, now = _checked_actor(actor, worker), self._session.clock.now()
        store = self._session.caller_store
        if not await store.renew_lease(task_id=id, worker=worker, at=now, details=text, actor=by):
            task = await self._task(id)
            raise closed(task) if task.status != "open" else lost(task, worker)

    async def release(self, id: str, worker: str, *, actor: str | None = None) -> None:
        """Give a task back: it is open again at once. Raises the same errors as `heartbeat`."""
        await self._release(id, worker, actor)

    async def fail(self, id: str, worker: str, error: str, *, retry: bool, actor: str | None = None) -> None:
        """Report that a worker could not do a task.

        With `retry` the task is open again, for another worker. Otherwise the task is closed, and the waiting code gets
        TaskFailed. The default `actor` is the worker. Raises TaskLost, TaskClosed, TaskNotFound.
        """
        checked_text(error, "an error", _ERROR_MAX_CHARS)
        if retry:
            await self._release(id, worker, actor, error)
            return
        checked_text(worker, "a worker's name")
        await self._give(await self._task(id), worker if actor is None else actor, worker, error=error)

    async def _release(self, id: str, worker: str, actor: str | None, error: str | None = None) -> None:
        self._session.check_open()
        checked_text(id, "a task's id")
        checked_text(worker, "a worker's name")
        by, now = _checked_actor(actor, worker), self._session.clock.now()
        op = ops.ReleaseTask(run_id="", at=now, actor=by, task_id=id, worker=worker, error=error)
        await self._session.coordinator.submit(op)

    async def _give(
        self,
        task: Task,
        actor: str,
        worker: str | None,
        *,
        value: msgspec.Raw = msgspec.Raw(b"null"),  # noqa: B008 - it is immutable
        error: str | None = None,
        artifacts: tuple[NewArtifact, ...] = (),
    ) -> None:
        checked_remark("", actor)
        if worker is not None:
            checked_text(worker, "a worker's name")
        now = self._session.clock.now()
        by = actor if worker is None else worker
        given = Given(task=task.id, by=by, value=value, error=error, artifacts=artifacts)
        text = msgspec.json.encode(given).decode()
        if artifacts and (size := bytes_of(text)) > self._session.limits.payload_bytes_max:
            raise UnstorableValue(
                f"the answer to task {task.id!r} takes {size:,} bytes with its artifacts, more than the "
                f"limit of {self._session.limits.payload_bytes_max:,}; store them elsewhere, or raise payload_bytes_max"
            )
        event = Event(
            id=self._session.ids(now),
            name=task_event(task.id),
            value=self._session.codec.encode(text),
            run_id=task.run_id,
            expires_at=_NEVER,
            actor=actor,
            at=now,
        )
        await self._session.coordinator.submit(
            ops.Answer(run_id=task.run_id, at=now, actor=actor, task_id=task.id, event=event, worker=worker)
        )

    def _plain(self, artifact: NewArtifact) -> NewArtifact:
        """Return an artifact with its value as plain JSON values. Raises InvalidArguments, UnstorableValue."""
        draft = draft_of(
            artifact.name, artifact.value, artifact.type, artifact.media_type, self._session.limits.payload_bytes_max
        )  # fmt: skip
        if draft.form == "bytes":
            raise InvalidArguments(f"an answer brings text and JSON values, not the bytes of {artifact.name!r}")
        if draft.form == "text" or isinstance(artifact.value, str):
            return artifact
        return replace(artifact, value=msgspec.json.decode(draft.data))

    async def _task(self, id: str) -> Task:
        self._session.check_open()
        found = (await self._session.caller_store.load_tasks([checked_text(id, "a task's id")])).get(id)
        if found is None:
            raise TaskNotFound(f"there is no task {id!r}; list those there are with tasks.list()", task_id=id)
        return found

    def _task_view(self, task: Task) -> TaskView:
        is_claimed = task.is_claimed(self._session.clock.now())
        return TaskView(
            id=task.id,
            run_id=task.run_id,
            position=task.position,
            queue=task.queue,
            kind=task.kind,
            title=task.title,
            schema=shown_value(task.schema, PlainCodec(), f"tasks.schema of task {task.id!r}"),
            payload=shown_value(task.payload, self._session.codec, f"tasks.payload of task {task.id!r}"),
            status="claimed" if is_claimed else task.status,
            worker=task.worker,
            lease_until=_at(task.lease_until),
            beat_at=_at(task.beat_at),
            details=shown_value(task.details, self._session.codec, f"tasks.details of task {task.id!r}"),
            error=task.error,
            claims=task.claims,
            due_at=_at(task.due_at),
            created_at=shown_time(task.created_at),
            closed_at=_at(task.closed_at),
            answered_by=task.answered_by,
            actor=task.actor or None,
        )


def _checked_actor(actor: str | None, worker: str) -> str:
    return worker if actor is None else checked_text(actor, "an actor")


def _at(at: int | None) -> datetime | None:
    return None if at is None else shown_time(at)


__all__ = ["TaskStatus", "TaskView", "Tasks"]
