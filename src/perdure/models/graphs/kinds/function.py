"""Nodes that call a function as a step. Kinds of node that users add call a fixed function."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from perdure.errors import ExpressionFailed, InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.models.functions.define import Step, StepCall
from perdure.models.graphs.kinds.base import KINDS, Kind, PlainResult, Preparing, Task, kind
from perdure.models.graphs.mappings import ValueMap
from perdure.values.arguments import checked, shown
from perdure.values.json import PAYLOAD_MAX_BYTES, Signature, local_names, to_text
from perdure.values.retry import Retry

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@kind
class Function(Kind, frozen=True, kw_only=True, tag="function"):
    """Calls a step, or any function as a step. `function` is a reference to it (`package.module:name`).

    The arguments are the values that `input` maps, and the fields of the run's input whose names are parameters. A
    parameter called `input` gets the whole input. If `input` is a single expression, its value is the only argument. If
    the value is an object, it can also have all arguments by name.
    """

    function: str

    def prepare(self, about: Preparing) -> StepWork:
        return StepWork(self, about, as_step(about.resolve(self.function, "function"), about.place))


class Custom(Kind, frozen=True, kw_only=True):
    """A kind of node that a user has added. It calls the user's function."""

    executor: ClassVar[Step[Any, Any]]

    def prepare(self, about: Preparing) -> StepWork:
        return StepWork(self, about, self.executor)


@checked(error=InvalidDefinition)
def add_kind(name: str, executor: Callable[..., Any]) -> type[Kind]:
    """Register a kind of node under this name. Its nodes run `executor`, which is a step or a function. `input` of a
    node maps the parameters of `executor`. Returns the class of the kind. Pass its instances to `Graph.node`:
    `graph.node("find", sql(input={…}))`.

    Raises InvalidDefinition if a kind of this name exists already.
    """
    if name in KINDS:
        raise InvalidDefinition(f"there is a kind of node {name!r} already")
    step = as_step(executor, f"kind {name!r}", 2)
    added: Any = msgspec.defstruct(
        name.title(), [], bases=(Custom,), tag=name, namespace={"executor": step}, frozen=True, kw_only=True
    )
    made: type[Kind] = kind(added)
    return made


def as_step(found: Any, place: str, depth: int = 1) -> Step[Any, Any]:
    """Return a step, or a function as a step. Raises InvalidDefinition."""
    if isinstance(found, Step):
        return found
    if not inspect.isfunction(found) or inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise InvalidDefinition(f"{place}: a node runs a step, a function, a workflow or a kind, not {shown(found)}")
    name = found.__qualname__
    return Step(
        found,
        name=name,
        retry=Retry(),
        timeout=None,
        total_timeout=None,
        heartbeat_timeout=None,
        process=False,
        signature=Signature(found, f"step {name!r}", local_names(found, depth + 1)),
    )


class StepWork:
    """The work of a node that calls a step with mapped arguments."""

    __slots__ = ("_arguments", "_step")

    def __init__(self, spec: Kind, about: Preparing, step: Step[Any, Any]) -> None:
        self._step: Step[Any, Any] = Step(
            step.function,
            name=about.node,
            retry=spec.policy(step.retry, about),
            timeout=step.timeout_s,
            total_timeout=step.total_timeout_s if spec.timeout is None else spec.timeout,
            heartbeat_timeout=step.heartbeat_timeout_s,
            process=step.process,
            transactional=step.transactional,
            signature=PlainResult(step.signature),
        )
        self._arguments = Arguments(spec.input, about, step.signature)

    def begin(self, task: Task) -> asyncio.Future[Any]:
        step = self._step
        # The arguments are not stored, so a limit below the default is ignored.
        text = self._arguments.text(task, max(PAYLOAD_MAX_BYTES, task.loop.payload_max))
        try:
            args, kwargs = step.signature.read(text)
        except UnstorableValue as error:
            raise InvalidArguments(f"{task.place}: {error}") from error
        return task.loop.request_step(step.name, StepCall(step, args, kwargs, is_awaited=True))


class Arguments:
    """A function's arguments by name. They come from a mapping and from the run's input."""

    __slots__ = ("_by_name", "_collector", "_mapped", "_names", "_only", "_place")

    def __init__(self, parts: Any, about: Preparing, signature: Signature) -> None:
        """Raises InvalidDefinition if a mapped name is not a parameter, or if a parameter has no value."""
        parameters = signature.parameters
        self._place = f"{about.place}, input"
        self._names = [p.name for p in parameters if p.kind not in _COLLECTING]
        self._collector = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self._mapped: ValueMap | None = None if parts is None else about.values(parts, "input")
        self._only = self._names[0] if isinstance(parts, str) and len(self._names) == 1 else None
        mapped = set(parts) if isinstance(parts, dict) else set()
        if self._collector is None and (unknown := sorted(mapped - set(self._names))):
            has = ", ".join(self._names) or "none"
            raise about.wrong("input", f"the function has no parameter {unknown[0]!r}; it has {has}")
        self._by_name = [] if isinstance(parts, str) else [name for name in self._names if name not in mapped]
        needed = {p.name for p in parameters if p.default is p.empty and p.kind not in _COLLECTING}
        if about.input_fields is not None:
            for name in self._by_name:
                if name in needed and name != "input" and name not in about.input_fields:
                    has = ", ".join(sorted(about.input_fields)) or "no fields"
                    raise about.wrong("input", f"nothing is mapped to {name!r}, and the graph's input has {has}")

    def text(self, task: Task, payload_max: int) -> str:
        """Return the arguments as JSON of at most `payload_max` bytes. Raises ExpressionFailed, UnstorableValue."""
        return to_text(self.values(task), f"the input of {task.place}", payload_max)

    def values(self, task: Task) -> dict[str, Any]:
        given = None if self._mapped is None else self._mapped.evaluate(task.view)
        if self._only is not None:
            return {self._only: given}
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise ExpressionFailed(
                f"{self._place}: the arguments must be an object, by name, not {given!r:.100}", place=self._place
            )
        if self._by_name:
            given = {**self._from_input(task.input), **given}
        if self._collector is not None:
            more = {name: value for name, value in given.items() if name not in self._names}
            given = {name: value for name, value in given.items() if name in self._names}
            given[self._collector] = more
        return given

    def _from_input(self, input: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self._by_name:
            if isinstance(input, dict) and name in input:
                found[name] = input[name]
            elif name == "input":
                found[name] = input
        return found
