"""Nodes that call a language model, as a step."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from perdure.errors import InvalidDefinition, LlmOutputInvalid, Misuse, UnstorableValue
from perdure.models.functions.context import CurrentStep, current_step
from perdure.models.functions.define import Step, StepCall
from perdure.models.graphs.chat import Endpoint, added, wrong_with_url
from perdure.models.graphs.kinds.base import Kind, Preparing, Task, kind
from perdure.models.graphs.kinds.recorded import Kept, reading
from perdure.models.graphs.records import Example, Found, ModelProfile, PromptSpec, Reading, as_profile, as_prompt
from perdure.models.graphs.schemas import schema_of, type_of
from perdure.models.graphs.spec import Count, Name, Seconds
from perdure.models.graphs.templates import Template
from perdure.values.checks import checked_text
from perdure.values.json import Reader, Signature
from perdure.values.retry import Retry

# The servers of models are busy more often, and for longer, than other servers.
_RETRY: Final = Retry(attempts=5, initial=timedelta(seconds=1), maximum=timedelta(seconds=60))
_STALL_S: Final = 120.0
_ATTEMPT_S: Final = 600.0
_FLUSH_CHARS: Final = 256 * 1024
_SHOWN_CHARS: Final = 1000
_OWN_OPTIONS: Final = frozenset({
    "model", "messages", "temperature", "max_tokens", "response_format", "stream", "stream_options", "n", "tools",
    "functions",
})  # fmt: skip


@kind
class Llm(Kind, frozen=True, kw_only=True, tag="llm"):
    """Calls a model at a server that speaks OpenAI's chat completions. Its result is {output, usage, model, repairs}.

    `prompt` and `system` are templates (Jinja's language). They can use the names in `input`, the fields of the run's
    input, and the roots of the context, for example `{{ nodes.plan.output }}`. A missing value is an error, never an
    empty text.

    With a `schema` (a JSON Schema, or a reference to a type), the answer must be JSON that fits the schema. An answer
    that does not fit is sent back to the model together with the error, up to `repairs` times. `strict` asks the server
    to enforce the schema too.

    The default of `base_url` is the environment variable OPENAI_BASE_URL of the engine, or else OpenAI. `secret` is the
    name of a secret, never the key itself. `options` are further fields of the request. With `stream`, the pieces of
    the answer are appended to the run's stream of this name while they arrive, as items {node, repair, index, text}. An
    item with index 0 begins a new answer.

    An attempt fails if the server sends nothing for `stall_timeout` seconds, or if the attempt takes longer than
    `attempt_timeout`. `timeout` bounds all attempts together. If the server's Retry-After is longer than the pause of
    the retry policy, the Retry-After counts.

    `profile` names a record of kind "model" (`fast`, or `fast@2` for a certain version). `prompt_spec` names a record
    of kind "prompt". These records supply the fields that the node leaves out. `examples` come before the prompt, as if
    the model had already answered them.
    """

    model: Annotated[str, Meta(min_length=1)] | None = None
    prompt: str | None = None
    system: str | None = None
    profile: str | None = None
    prompt_spec: str | None = None
    examples: list[Example] = field(default_factory=list)
    base_url: str | None = None
    secret: Name | None = None
    schema: dict[str, Any] | str | None = None
    strict: bool = False
    repairs: Annotated[int, Meta(ge=0, le=10)] = 2
    temperature: Annotated[float, Meta(ge=0)] | None = None
    max_tokens: Count | None = None
    options: dict[str, Any] = field(default_factory=dict)
    stream: Annotated[str, Meta(min_length=1)] | None = None
    stall_timeout: Seconds = _STALL_S
    attempt_timeout: Seconds = _ATTEMPT_S

    def prepare(self, about: Preparing) -> LlmWork | RecordedLlm:
        if (self.model is None) and (self.profile is None):
            raise about.wrong("model", "it has neither a model nor a profile")
        if (self.prompt is None) == (self.prompt_spec is None):
            raise about.wrong("prompt", "it has either a prompt or a prompt_spec")
        self.check(about)
        if self.profile is None and self.prompt_spec is None:
            return LlmWork(self, about)
        return RecordedLlm(self, about)

    def check(self, about: Preparing) -> None:
        """Check everything except the templates. Raises InvalidDefinition, Misuse."""
        if importlib.util.find_spec("httpx") is None:
            raise Misuse(f"{about.place}: llm nodes need httpx; install perdure[graphs]")
        if self.base_url is not None and (wrong := wrong_with_url(self.base_url)) is not None:
            raise about.wrong("base_url", wrong)
        if taken := sorted(_OWN_OPTIONS & set(self.options)):
            raise about.wrong("options", f"{taken[0]!r} has a field of its own, or is nothing that a node could use")
        if self.stream is not None:
            try:
                checked_text(self.stream, "a stream's name")
            except Misuse as error:
                raise about.wrong("stream", str(error)) from error

    def filled_in(self, profile: ModelProfile | None, prompt: PromptSpec | None, about: Preparing) -> Llm:
        """Return the node. Fields that the node leaves out get their values from the records. Raises
        InvalidDefinition.
        """
        more: dict[str, Any] = {}
        if profile is not None:
            more["options"] = {**profile.options, **self.options}
            for name in ("model", "base_url", "secret", "temperature", "max_tokens"):
                if getattr(self, name) is None:
                    more[name] = getattr(profile, name)
            for name, usual in (("stall_timeout", _STALL_S), ("attempt_timeout", _ATTEMPT_S)):
                if getattr(self, name) == usual and getattr(profile, name) is not None:
                    more[name] = getattr(profile, name)
        if prompt is not None:
            more |= {"prompt": prompt.template, "examples": [*prompt.examples, *self.examples]}
            more["system"] = prompt.system if self.system is None else self.system
            if self.schema is None:
                more |= {"schema": prompt.schema, "strict": self.strict or prompt.strict}
            if missing := sorted(set(prompt.requires) - set(self.input or {})):
                raise InvalidDefinition(f"{about.place}: it requires {missing[0]!r}, and the node's input maps no such")
        return msgspec.structs.replace(self, profile=None, prompt_spec=None, **more)


class RecordedLlm:
    """Calls a model with the fields of records. All runs that found the same versions of the records share one
    preparation.
    """

    __slots__ = ("_about", "_made", "_profile", "_prompt", "_spec")

    def __init__(self, spec: Llm, about: Preparing) -> None:
        self._spec = spec
        self._about = about
        self._profile = (
            None if spec.profile is None else reading("model", spec.profile, about, "profile", check_profile)
        )
        self._prompt = (
            None
            if spec.prompt_spec is None
            else reading("prompt", spec.prompt_spec, about, "prompt_spec", check_prompt)
        )
        self._made: Kept[LlmWork] = Kept()
        # Find all problems that do not depend on the records.
        LlmWork(msgspec.structs.replace(spec, model=spec.model or "model", prompt=spec.prompt or ""), about)

    async def _ask(self, task: Task) -> Any:
        readings = [one for one in (self._profile, self._prompt) if one is not None]
        asked = [(one, task.pins.get(one)) for one in readings]
        found: dict[str, tuple[Found, Reading]] = {one.reference.kind: (await future, one) for one, future in asked}
        work = self._made.get([one for one, _ in found.values()], lambda: self._work(found))
        return await work.begin(task)

    def _work(self, found: Mapping[str, tuple[Found, Reading]]) -> LlmWork:
        place = ", ".join(f"{kind} {one.reference.name!r} version {got.version}" for kind, (got, one) in found.items())
        about = self._about.anew(f"{self._about.place}, {place}")
        profile = as_profile(found["model"][0].body, about.place) if "model" in found else None
        prompt = as_prompt(found["prompt"][0].body, about.place) if "prompt" in found else None
        spec = self._spec.filled_in(profile, prompt, about)
        spec.check(about)
        return LlmWork(spec, about)

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        return self._ask(task)


def check_profile(body: Any, about: Preparing) -> None:
    profile = as_profile(body, about.place)
    Llm(model=profile.model, prompt="", base_url=profile.base_url, options=profile.options).prepare(about)


def check_prompt(body: Any, about: Preparing) -> None:
    prompt = as_prompt(body, about.place)
    Llm(model="model", prompt=prompt.template, system=prompt.system, schema=prompt.schema).prepare(about)


class LlmWork:
    __slots__ = ("_examples", "_mapped", "_step", "_templates")

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
        pairs = [(("user", one.prompt), ("assistant", one.answer)) for one in spec.examples]
        self._examples = [{"role": role, "content": text} for pair in pairs for role, text in pair]
        answering = Answering(spec, about)
        self._step: Step[Any, Any] = Step(
            answering.answer,
            name=about.node,
            retry=spec.policy(_RETRY, about),
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
        messages[-1:-1] = self._examples
        return task.loop.request_step(self._step.name, StepCall(self._step, (messages,), {}, is_awaited=True))


class Answering:
    """The body of the step. It calls the model, checks the answer, and calls the model again if the answer does not
    fit.
    """

    def __init__(self, spec: Llm, about: Preparing) -> None:
        self._place = about.place
        self._node = about.node
        self._stream = spec.stream
        self._repairs_max = spec.repairs
        assert spec.model is not None
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
        """Call the model, and return the answer. After a crash, the whole conversation is repeated. Raises LlmFailed
        and its subclasses, SecretNotFound, Misuse.
        """
        step = current_step()
        usage: dict[str, Any] | None = None
        repairs = 0
        while True:
            on_piece = None if self._stream is None else AnswerStream(step, self._stream, self._node, repairs)
            answer = await self._endpoint.ask({**self._fields, "messages": messages}, on_piece)
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
        """Return the output, and its error or None."""
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


class AnswerStream:
    """Appends the pieces of one answer to a stream of the run. It waits if the store is slower than the server."""

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
