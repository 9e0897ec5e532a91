"""Tasks: work that people, or programs elsewhere, do for a workflow while it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar, overload

import msgspec
from msgspec import Raw, Struct

from perdure.errors import InvalidArguments, TaskFailed, UnstorableValue
from perdure.kernel.rows import Wait
from perdure.kernel.tasks import TASK_EVENT, Task, task_event
from perdure.models.functions.artifacts import artifact_output, draft_of
from perdure.models.functions.commands import Ask
from perdure.models.functions.context import require_loop, timed_out
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.functions.publications import add_output_nowait
from perdure.models.functions.timers import TimeReached
from perdure.models.functions.waits import Choice, EventChoice, TimerChoice, Waits, Won, read_won
from perdure.ports import Codec
from perdure.values.arguments import Duration, check_fields, checked
from perdure.values.checks import checked_text
from perdure.values.failures import mark
from perdure.values.json import Reader, to_text
from perdure.values.schemas import schema_of
from perdure.values.times import seconds_of

T = TypeVar("T")

TaskKind = Literal["human", "remote"]

_TITLE_MAX_CHARS: Final = 2_000
_ANSWER: Final = EventChoice[Any](
    "", None, (), "after_wait"
)  # The event's name contains the task's id, and the id is created later.


class NewArtifact(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An artifact in an answer. Its content is text or a JSON value."""

    name: str
    value: Any
    type: str = ""
    media_type: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class Given(Struct, frozen=True, omit_defaults=True):
    """The content of an answer. It is a value with artifacts that the run stages, or the error with which the worker
    gave up.
    """

    task: str
    by: str
    value: Raw = Raw(b"null")
    error: str | None = None
    artifacts: tuple[NewArtifact, ...] = ()


class Answered(Struct, frozen=True):
    """An answer with artifacts, in the form in which the workflow reads it."""

    value: Any
    by: str
    artifacts: tuple[NewArtifact, ...]


class TaskCall(Struct, frozen=True, kw_only=True):
    """The task that a request is about. Its wait has the answer as an option. If there is a timeout, a timer is another
    option.
    """

    queue: str
    kind: str
    title: str
    schema: str
    payload: str
    reader: Reader
    due_at: dict[int, int]

    @property
    def options(self) -> tuple[Choice[Any], ...]:
        return (_ANSWER, TimerChoice(at=self.due_at[1])) if self.due_at else (_ANSWER,)

    def opened(self, run_id: str, ask: Ask, task_id: str, at: int, codec: Codec) -> Task:
        return Task(
            id=task_id,
            run_id=run_id,
            position=ask.position,
            queue=self.queue,
            kind=self.kind,
            title=self.title,
            schema=self.schema,
            payload=codec.encode(self.payload),
            due_at=self.due_at.get(1),
            created_at=at,
        )

    def rows(self, run_id: str, ask: Ask, task_id: str) -> tuple[Wait, ...]:
        name = task_event(task_id)
        common: dict[str, Any] = {"run_id": run_id, "position": ask.position, "since": ask.since}
        waits = [Wait(kind="event", name=name, mode="after_wait", option=0, details=f"queue {self.queue!r}", **common)]
        if self.due_at:
            waits.append(Wait(kind="timer", name="timer", due_at=self.due_at[1], option=1, **common))
        return tuple(waits)

    def read(self, won: Won, seq: int) -> Any:
        """Return the outcome of the task: the answer's value, Answered if the answer has artifacts, TimeReached, or
        TaskFailed. Raises UnstorableValue.
        """
        if won.option != 0:
            return read_won(Waits(self.options, self.due_at), won)
        try:
            given = msgspec.json.decode(won.value, type=Given)
        except msgspec.DecodeError as error:
            raise UnstorableValue(f"the answer to a task of queue {self.queue!r} cannot be read: {error}") from error
        if given.error is None:
            text = bytes(given.value).decode()
            value = self.reader.read(text, f"the answer to a task of queue {self.queue!r}")
            return Answered(value, given.by, given.artifacts) if given.artifacts else value
        failed = TaskFailed(
            f"worker {given.by!r} gave up task {given.task!r} of queue {self.queue!r}: {given.error}",
            task_id=given.task,
            worker=given.by,
        )
        mark(failed, seq)
        return failed


@overload
async def task(
    *,
    queue: str,
    schema: type[T],
    payload: Any = None,
    title: str = "",
    timeout: Duration | None = None,
    kind: TaskKind = "human",
) -> T: ...


@overload
async def task(
    *,
    queue: str,
    schema: Any = None,
    payload: Any = None,
    title: str = "",
    timeout: Duration | None = None,
    kind: TaskKind = "human",
) -> Any: ...


@checked
async def task(
    *,
    queue: str,
    schema: Any = None,
    payload: Any = None,
    title: str = "",
    timeout: Duration | None = None,
    kind: TaskKind = "human",
) -> Any:
    """Open a task for somebody outside, and wait durably for the answer.

    The task is for a person (`kind` "human"), or for a worker that claims tasks of the queue (`kind` "remote"). The
    commit in which the run begins to wait opens the task. The commit in which the run stops waiting withdraws it. An
    answer must fit `schema`: a JSON Schema, or a type. With a type, the answer is read as a value of that type.

    Raises TimeoutError if no answer comes within `timeout`, and TaskFailed if a worker gives up. Raises
    UnstorableValue, InvalidArguments, NotInWorkflow.
    """
    loop = require_loop("task")
    is_type = schema is not None and not isinstance(schema, Mapping)
    what = f"a task of queue {queue!r:.80}"
    asked = ask_task(
        loop,
        name=queue,
        queue=queue,
        kind=kind,
        title=title,
        schema=schema_of(schema),
        payload=payload,
        reader=Reader(schema if is_type else Any, what),
        timeout=timeout,
    )
    got = taken(loop, await asked)
    if isinstance(got, TimeReached):
        raise timed_out(TimeoutError(f"no answer to {what} came within {timeout}"))
    if isinstance(got, TaskFailed):
        raise got
    return got


def ask_task(
    loop: WorkflowLoop,
    *,
    name: str,
    queue: str,
    kind: str,
    title: str,
    schema: dict[str, Any],
    payload: Any,
    reader: Reader,
    timeout: Duration | None,
) -> asyncio.Future[Any]:
    """Request a task, and return a future for its outcome. The outcome is the answer as `reader` reads it, TimeReached,
    or TaskFailed.

    Pass the outcome to `taken`. `name` is the name of the journal entry. Raises UnstorableValue, InvalidArguments.
    """
    checked_text(queue, "a queue's name")
    if title:
        checked_text(title, "a title", _TITLE_MAX_CHARS)
    if kind not in ("human", "remote"):
        raise InvalidArguments(f"a task is 'human' or 'remote', not {kind!r:.40}")
    due_at: dict[int, int] = {}
    if timeout is not None:
        due_at[1] = loop.now() + round(seconds_of(timeout, "task") * 1_000_000)
    what = f"a task of queue {queue!r}"
    call = TaskCall(
        queue=queue,
        kind=kind,
        title=title,
        schema=to_text(schema, f"the schema of {what}", loop.payload_max),
        payload=to_text(payload, f"the payload of {what}", loop.payload_max),
        reader=reader,
        due_at=due_at,
    )
    return loop.ask("task", name, call)


def taken(loop: WorkflowLoop, got: Any) -> Any:
    """Stage the artifacts of an answer, and return the outcome of the task."""
    if not isinstance(got, Answered):
        return got
    for one in got.artifacts:
        draft = draft_of(one.name, one.value, one.type, one.media_type, loop.payload_max)
        add_output_nowait(loop, artifact_output(draft, got.by))
    return got.value


def is_reserved(event_name: str) -> bool:
    """Return whether events of this name are answers to tasks. Callers cannot send these events."""
    return event_name.startswith(TASK_EVENT)


__all__ = ["Given", "NewArtifact", "TaskCall", "TaskKind", "ask_task", "is_reserved", "taken", "task"]
