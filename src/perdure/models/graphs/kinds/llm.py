"""Nodes that ask a language model, as a step."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from perdure.errors import LlmOutputInvalid, Misuse, UnstorableValue
from perdure.kernel.retry import Retry
from perdure.models.functions.checks import checked_text
from perdure.models.functions.context import CurrentStep, current_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.functions.values import Reader, Signature
from perdure.models.graphs.chat import Endpoint, added, wrong_with_url
from perdure.models.graphs.kinds.base import Kind, Preparing, Task, kind
from perdure.models.graphs.schemas import schema_of, type_of
from perdure.models.graphs.spec import Count, Name, Seconds
from perdure.models.graphs.templates import Template

# Servers for models are busy more often than others, and for longer.
_RETRY: Final = Retry(attempts=5, initial=timedelta(seconds=1), maximum=timedelta(seconds=60))
_FLUSH_CHARS: Final = 256 * 1024
_SHOWN_CHARS: Final = 1000
_OWN_OPTIONS: Final = frozenset({
    "model", "messages", "temperature", "max_tokens", "response_format", "stream", "stream_options", "n", "tools",
    "functions",
})  # fmt: skip


@kind
class Llm(Kind, frozen=True, kw_only=True, tag="llm"):
    """Asks a model, at an endpoint for chat completions as OpenAI's; its result is {output, usage, model, repairs}.

    `prompt` and `system` are templates (Jinja's language) that name what `input` maps, fields of the run's input, or
    the roots of the context, as `{{ nodes.plan.output }}`. What is missing is an error, never an empty text.

    With a `schema` (a JSON Schema, or a reference to a type) the answer is JSON that fits it. One that does not fit is
    sent back with what is wrong, up to `repairs` times. `strict` has the server see to it too, where it can.

    `base_url` is OpenAI's unless given, or what OPENAI_BASE_URL is in the engine's environment. `secret` is the name of
    the key, never the key. `options` are further fields of the request. With `stream` the answer goes to the run's
    stream of this name while it comes, as items {node, repair, index, text}: one with index 0 begins an answer anew.

    An attempt fails if nothing is sent for `stall_timeout` seconds, or if it takes longer than `attempt_timeout`.
    `timeout` is for all attempts together. A pause that the server asks for (Retry-After) is made before the next one,
    if it is longer than that of the retry policy.
    """

    model: Annotated[str, Meta(min_length=1)]
    prompt: str
    system: str | None = None
    base_url: str | None = None
    secret: Name | None = None
    schema: dict[str, Any] | str | None = None
    strict: bool = False
    repairs: Annotated[int, Meta(ge=0, le=10)] = 2
    temperature: Annotated[float, Meta(ge=0)] | None = None
    max_tokens: Count | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stream: Annotated[str, Meta(min_length=1)] | None = None
    stall_timeout: Seconds = 120.0
    attempt_timeout: Seconds = 600.0

    def prepare(self, about: Preparing) -> LlmWork:
        for needed in ("httpx", "minijinja"):
            if importlib.util.find_spec(needed) is None:
                raise Misuse(f"{about.place}: llm nodes need {needed}; install perdure[graphs]")
        if self.base_url is not None and (wrong := wrong_with_url(self.base_url)) is not None:
            raise about.wrong("base_url", wrong)
        if taken := sorted(_OWN_OPTIONS & set(self.options)):
            raise about.wrong("options", f"{taken[0]!r} has a field of its own, or is nothing that a node could use")
        if self.stream is not None:
            try:
                checked_text(self.stream, "a stream's name")
            except Misuse as error:
                raise about.wrong("stream", str(error)) from error
        return LlmWork(self, about)


class LlmWork:
    __slots__ = ("_answering", "_mapped", "_step", "_templates")

    def __init__(self, spec: Llm, about: Preparing) -> None:
        if spec.input is not None and not isinstance(spec.input, Mapping):
            raise about.wrong("input", "it maps the names that the templates use to expressions")
        names = frozenset(spec.input or {})
        self._mapped = about.values(spec.input or {}, "input")
        templates = {"system": spec.system, "user": spec.prompt}
        self._templates = [
            (role, Template(source, about, "prompt" if role == "user" else role, names))
            for role, source in templates.items()
            if source is not None
        ]
        answering = Answering(spec, about)
        self._step: Step[Any, Any] = Step(
            answering.answer,
            name=about.node,
            retry=spec.policy(_RETRY),
            timeout=spec.attempt_timeout,
            total_timeout=spec.timeout,
            heartbeat_timeout=None,
            process=False,
            signature=Signature(answering.answer, f"step {about.node!r}", {}),
        )

    def begin(self, task: Task) -> asyncio.Future[Any]:
        mapped = self._mapped.evaluate(task.view)
        messages = [
            {"role": role, "content": template.render(mapped, task.input, task.view)}
            for role, template in self._templates
        ]
        return task.loop.request_step(self._step.name, StepCall(self._step, (messages,), {}))


class Answering:
    """The body of the step: asks, checks the answer, and asks again."""

    def __init__(self, spec: Llm, about: Preparing) -> None:
        self._place = about.place
        self._node = about.node
        self._stream = spec.stream
        self._repairs_max = spec.repairs
        self._endpoint = Endpoint(
            base_url=spec.base_url,
            model=spec.model,
            secret=spec.secret,
            stall_s=spec.stall_timeout,
            place=about.place,
        )
        self._reader: Reader | None = None
        self._schema: dict[str, Any] = {}
        self._fields: dict[str, Any] = {"model": spec.model, **spec.options}
        for name in ("temperature", "max_tokens"):
            if (value := getattr(spec, name)) is not None:
                self._fields[name] = value
        if spec.stream is not None:
            self._fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if spec.schema is not None:
            self._set_schema(spec.schema, spec.strict, about)

    def _set_schema(self, given: dict[str, Any] | str, strict: bool, about: Preparing) -> None:
        place = f"{about.place}, schema"
        if isinstance(given, str):
            wanted = about.resolve(given, "schema")
            self._schema = schema_of(wanted, place)
        else:
            wanted = type_of(given, place)
            self._schema = given
        self._reader = Reader(wanted, place)
        asked = {"name": about.node[:64], "schema": self._schema, "strict": strict}
        self._fields["response_format"] = {"type": "json_schema", "json_schema": asked}

    async def answer(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Raises LlmFailed and its subclasses, SecretNotFound, Misuse. A crash has the whole asked again."""
        step = current_step()
        usage: dict[str, Any] | None = None
        repairs = 0
        while True:
            heard = None if self._stream is None else Telling(step, self._stream, self._node, repairs)
            answer = await self._endpoint.ask({**self._fields, "messages": messages}, heard)
            usage = added(usage, answer.usage)
            output, problem = self._checked(answer.text)
            if problem is None:
                return {"output": output, "usage": usage, "model": answer.model, "repairs": repairs}
            if repairs == self._repairs_max:
                shown = answer.text[:_SHOWN_CHARS]
                raise LlmOutputInvalid(
                    f"{self._place}: the answer of {answer.model!r} does not fit the schema after {repairs} repairs: "
                    f"{problem}; make the schema or the prompt plainer, or take another model. It was: {shown}",
                    status=200,
                    output=shown,
                    problem=problem,
                    repairs=repairs,
                    usage=usage,
                )
            repairs += 1
            messages = [
                *messages,
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": self._correction(problem)},
            ]

    def _checked(self, text: str) -> tuple[Any, str | None]:
        """The output, and what is wrong with it."""
        if self._reader is None:
            return text, None
        try:
            self._reader.read(text, "the answer")
        except UnstorableValue as error:
            return None, str(error.__cause__ or error)
        return msgspec.json.decode(text), None

    def _correction(self, problem: str) -> str:
        schema = json.dumps(self._schema, ensure_ascii=False)
        return (
            f"This answer does not fit: {problem}\n"
            f"Answer again, with nothing but JSON that fits this JSON Schema:\n{schema}"
        )


class Telling:
    """Appends the pieces of one answer to a stream of the run, no faster than the store takes them."""

    __slots__ = ("_index", "_node", "_repair", "_step", "_stream", "_unflushed")

    def __init__(self, step: CurrentStep, stream: str, node: str, repair: int) -> None:
        self._step = step
        self._stream = stream
        self._node = node
        self._repair = repair
        self._index = 0
        self._unflushed = 0

    async def __call__(self, text: str) -> None:
        item = {"node": self._node, "repair": self._repair, "index": self._index, "text": text}
        self._step.append(self._stream, item)
        self._index += 1
        self._unflushed += len(text) + 200
        if self._unflushed > _FLUSH_CHARS:
            self._unflushed = 0
            await self._step.flush()
