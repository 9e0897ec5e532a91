"""Nodes for people and remote workers. A person fills in a form, or a worker claims a task of a queue."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from perdure.errors import GraphTimedOut, InvalidArguments, TaskFailed, UnstorableValue
from perdure.models.functions.artifacts import draft_of
from perdure.models.functions.context import timed_out
from perdure.models.functions.tasks import ask_task, taken
from perdure.models.functions.timers import TimeReached
from perdure.models.graphs.kinds.artifact import stage_in
from perdure.models.graphs.kinds.base import Kind, PlainReader, Preparing, Task, kind
from perdure.models.graphs.spec import TARGET_PATTERN, Target
from perdure.models.graphs.templates import Text, text_of
from perdure.values.checks import checked_text
from perdure.values.json import Reader
from perdure.values.schemas import schema_of

_ANY: Final = Reader(Any, "an answer")
_TITLE_CHARS: Final = 200
_ARTIFACT: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "value": {},
        "type": {"type": "string"},
        "media_type": {"type": "string", "minLength": 1},
    },
    "required": ["name", "value"],
    "additionalProperties": False,
}


@kind
class Human(Kind, frozen=True, kw_only=True, tag="human"):
    """A form for a person. The node opens a task in this queue, and `engine.tasks.answer` answers it. The answer is the
    node's result. The answer must fit `schema`, which is a JSON Schema or a reference to a type.

    The person sees the values of `input`. `queue` and `title` are templates. If nobody has answered within the
    `timeout`, the node fails with GraphTimedOut. With `on_timeout`, a mapping of expressions, the values of these
    expressions are the result instead.
    """

    queue: str = "human"
    title: str = ""
    schema: dict[str, Any] | str | None = None
    on_timeout: Any = None

    def prepare(self, about: Preparing) -> TaskWork:
        schema, reader = _schema(self.schema, about)
        return TaskWork(self, about, schema, reader)


@kind
class Remote(Kind, frozen=True, kw_only=True, tag="remote"):
    """A task for remote workers. A worker claims a task by its queue, with a lease that heartbeats renew. It answers
    `{"result": …, "context_updates": {"state.x": …}, "staged_artifacts": [{"name": …, "value": …}]}`. Each field of the
    answer is optional.

    `result` is the node's result. It must fit `schema`. The updates are written to the context. In a branch, they
    belong to the branch until its join. The artifacts are staged for the run. The worker gets the values of `input`.
    `queue` and `title` are templates. If a worker gives up for good, the node fails with TaskFailed. `timeout` and
    `on_timeout` work as for a human node.
    """

    queue: str
    title: str = ""
    schema: dict[str, Any] | str | None = None
    on_timeout: Any = None

    def prepare(self, about: Preparing) -> TaskWork:
        schema, reader = _schema(self.schema, about)
        return TaskWork(self, about, _answer_schema(schema), AnswerReader(reader))


class Staging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An artifact in a worker's answer. A text stays as it is, and any other value becomes JSON."""

    name: str
    value: Any
    type: str = ""
    media_type: str | None = None


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of a worker."""

    result: Any = None
    context_updates: dict[Target, Any] = field(default_factory=dict)
    staged_artifacts: Sequence[Staging] = ()


class _Result(Struct, frozen=True):
    result: Raw = Raw(b"null")


class AnswerReader(Reader):
    """Reads a worker's answer. The result must fit the node's own schema."""

    __slots__ = ("_result",)

    def __init__(self, result: Reader) -> None:
        super().__init__(Answer, "an answer", "form")
        self._result = result

    def read(self, text: str, what: str) -> Any:
        answer = super().read(text, what)
        self._result.read(bytes(msgspec.json.decode(text, type=_Result).result).decode(), f"the result in {what}")
        return answer


def _schema(given: dict[str, Any] | str | None, about: Preparing) -> tuple[dict[str, Any], Reader]:
    """Return the schema of an answer, and its reader. Raises InvalidDefinition."""
    wanted = about.resolve(given, "schema") if isinstance(given, str) else given
    try:
        schema = schema_of(wanted)
    except InvalidArguments as error:
        raise about.wrong("schema", str(error)) from error
    if isinstance(given, str):
        return schema, PlainReader(Reader(wanted, f"{about.place}, schema"))
    return schema, _ANY


def _answer_schema(result: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a whole answer. It contains the schema of the result."""
    shared: dict[str, Any] = {word: result[word] for word in ("$defs", "definitions") if word in result}
    inner = {word: value for word, value in result.items() if word not in shared}
    return {
        "type": "object",
        "properties": {
            "result": inner,
            "context_updates": {"type": "object", "propertyNames": {"pattern": TARGET_PATTERN}},
            "staged_artifacts": {"type": "array", "items": dict(_ARTIFACT)},
        },
        "required": ["result"] if inner else [],
        "additionalProperties": False,
        **shared,
    }


class TaskWork:
    """Opens a task, and handles its answer."""

    __slots__ = ("_kind", "_name", "_otherwise", "_payload", "_queue", "_reader", "_schema", "_timeout", "_title")

    def __init__(self, spec: Human | Remote, about: Preparing, schema: dict[str, Any], reader: Reader) -> None:
        spec.refuse(about, "retry")
        if spec.on_timeout is not None and spec.timeout is None:
            raise about.wrong("on_timeout", "it has no timeout")
        names = frozenset(spec.input) if isinstance(spec.input, Mapping) else frozenset[str]()
        self._kind = "human" if isinstance(spec, Human) else "remote"
        self._name = about.node
        self._queue = text_of(spec.queue, about, "queue", names)
        if self._queue.is_plain:
            try:
                checked_text(spec.queue, "a queue's name")
            except InvalidArguments as error:
                raise about.wrong("queue", str(error)) from error
        plain = Text((spec.description or about.node)[:_TITLE_CHARS])
        self._title = text_of(spec.title, about, "title", names) if spec.title else plain
        self._payload = about.values(spec.input, "input")
        self._timeout = spec.timeout
        self._otherwise = None if spec.on_timeout is None else about.values(spec.on_timeout, "on_timeout")
        self._schema = schema
        self._reader = reader

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        payload = self._payload.evaluate(task.view)
        mapped = payload if isinstance(payload, dict) else {}
        queue = self._queue.render(mapped, task.input, task.view)
        title = self._title.render(mapped, task.input, task.view)
        return self._wait(task, queue, title, payload)

    async def _wait(self, task: Task, queue: str, title: str, payload: Any) -> Any:
        try:
            asked = ask_task(
                task.loop,
                name=self._name,
                queue=queue,
                kind=self._kind,
                title=title,
                schema=self._schema,
                payload=payload,
                reader=self._reader,
                timeout=self._timeout,
            )
        except (InvalidArguments, UnstorableValue) as error:
            raise InvalidArguments(f"{task.place}: {error}") from error
        got = taken(task.loop, await asked)
        if isinstance(got, TimeReached):
            if self._otherwise is not None:
                return self._otherwise.evaluate(task.view)
            message = f"{task.place}: no answer to its task in queue {queue!r} came within {self._timeout:g} s"
            raise timed_out(GraphTimedOut(message, place=task.place))
        if isinstance(got, TaskFailed):
            raise got
        return got if not isinstance(got, Answer) else self._taken(task, got)

    def _taken(self, task: Task, answer: Answer) -> Any:
        """Stage the artifacts and write the updates of a worker's answer. If a part of the answer is wrong, stage and
        write nothing.
        """
        try:
            drafts = [
                draft_of(one.name, one.value, one.type, one.media_type, task.loop.payload_max)
                for one in answer.staged_artifacts
            ]
        except (InvalidArguments, UnstorableValue) as error:
            raise InvalidArguments(f"{task.place}, staged_artifacts: {error}") from error
        for draft in drafts:
            stage_in(task, draft, self._name)
        for target, value in answer.context_updates.items():
            task.view.scope.write(target, value)
        return answer.result
