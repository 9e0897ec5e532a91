"""Nodes that run another workflow, of any model, as a child."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

from msgspec import Struct

from perdure.errors import ChildFailed, ExpressionFailed, InvalidArguments, UnknownWorkflow, UnstorableValue
from perdure.models.functions.catalogue import Catalogue
from perdure.models.functions.commands import ChildCall
from perdure.models.functions.context import current_step
from perdure.models.functions.define import Step, StepCall, Workflow
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.kinds.base import Kind, PlainReader, Preparing, Task, kind
from perdure.models.graphs.kinds.function import Arguments
from perdure.models.graphs.mappings import ValueMap
from perdure.models.graphs.records import LOOKUP_RETRY
from perdure.models.graphs.timeouts import within
from perdure.values.checks import checked_text
from perdure.values.json import Reader, Signature, to_text


@kind
class Child(Kind, frozen=True, kw_only=True, tag="workflow"):
    """Runs a workflow as a child. The child has its own context. The child's result is the node's result.

    `workflow` is a reference (`package.module:name`, or an object that was passed in), or only the workflow's name. If
    only the name is known, `input` has the arguments by name. They are not checked here. If the child is a graph, its
    input is an object with the mapped names. If the child fails, the node fails. If `on_failure` is "catch", the result
    is {"error": …} instead. If the `timeout` passes, the child is cancelled.

    `name_from` is an expression for the workflow's name, and `version_from` is an expression for its version. Without a
    version, the node uses the version of the living engine that registered last. The look-up is a step, so the run
    keeps its result. If no living engine has the workflow, the node fails with UnknownWorkflow.
    """

    workflow: str = ""
    name_from: str | None = None
    version: str = ""
    version_from: str | None = None
    on_failure: Literal["propagate", "catch"] = "propagate"

    def prepare(self, about: Preparing) -> ChildWork:
        self.refuse(about, "retry")
        if bool(self.workflow) == (self.name_from is not None):
            raise about.wrong("workflow", "a child has either workflow, or name_from with an expression for its name")
        if self.version_from is not None and self.version:
            raise about.wrong("version_from", "it has a version too; it can have one of them")
        if self.name_from is not None:
            return ChosenWork(self, about, about.expression(self.name_from, "name_from"))
        if ":" not in self.workflow and not about.knows(self.workflow):
            if self.version_from is not None:
                return ChosenWork(self, about, None)
            return ChildWork(self, Called(self.workflow, self.version, "", AnyResult(_ANY)), None, about)
        if self.version_from is not None:
            raise about.wrong("version_from", f"{self.workflow!r} is a workflow in code, which has its own version")
        found = about.resolve(self.workflow, "workflow")
        if not isinstance(found, Workflow):
            raise about.wrong("workflow", f"{self.workflow!r} is no workflow but {found!r:.80}")
        result = AnyResult(PlainReader(found.signature.result))
        return ChildWork(self, Called(found.name, found.version, found.model, result), found, about)


class AnyResult(Struct, frozen=True):
    """The parts of a signature that are needed when a child ends."""

    result: Reader


class Called(Struct, frozen=True):
    """The parts of a workflow that are needed when a child starts and ends."""

    name: str
    version: str
    model: str  # "" if only an engine with the code knows it
    signature: AnyResult


_ANY = Reader(Any, "a child")


class ChildWork:
    __slots__ = ("_arguments", "_called", "_catches", "_is_graph", "_known", "_timeout", "_values")

    def __init__(self, spec: Child, called: Called, known: Workflow[Any, Any] | None, about: Preparing) -> None:
        self._called = called
        self._catches = spec.on_failure == "catch"
        self._timeout = spec.timeout
        self._is_graph = called.model == "graph"
        self._known = known
        self._arguments: Arguments | None = None
        self._values: ValueMap | None = None
        if known is not None and not self._is_graph:
            self._arguments = Arguments(spec.input, about, known.signature)
        else:
            self._values = about.values({} if spec.input is None else spec.input, "input")

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        text = self._text(task)
        if self._known is not None:
            try:
                self._known.signature.read(text)
            except UnstorableValue as error:
                raise InvalidArguments(f"{task.place}: {error}") from error
        return self._wait(task.loop, self._called, text, task.place)

    def _text(self, task: Task) -> str:
        if self._arguments is not None:
            return self._arguments.text(task, task.loop.payload_max)
        assert self._values is not None
        given = self._values.evaluate(task.view)
        return to_text(
            {"input": given} if self._is_graph else given, f"the input of {task.place}", task.loop.payload_max
        )

    async def _wait(self, loop: WorkflowLoop, called: Called, text: str, place: str) -> Any:
        call = ChildCall(called, text, "awaited")
        try:
            return await within(self._timeout, place, loop.ask("child", called.name, call))
        except ChildFailed as failed:
            if not self._catches:
                raise
            about: dict[str, Any] = {"type": "ChildFailed", "message": str(failed), "status": failed.status}
            if failed.__cause__ is not None:
                about |= {"type": type(failed.__cause__).__qualname__, "message": str(failed.__cause__)}
            return {"error": about}


# ---------------------------------------------------------------------------------------------------------------------
# Children whose name or version is an expression


class ChosenWork(ChildWork):
    """A child whose workflow is known only when the node begins."""

    __slots__ = ("_name", "_version")

    def __init__(self, spec: Child, about: Preparing, name: Expression | None) -> None:
        super().__init__(spec, Called(spec.workflow, spec.version, "", AnyResult(_ANY)), None, about)
        self._name = name
        self._version = None if spec.version_from is None else about.expression(spec.version_from, "version_from")

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        name = self._called.name if self._name is None else _text(self._name, task)
        version: str | None = self._called.version or None
        if self._version is not None:
            version = _text(self._version, task, empty=True)
        return self._choose(task, Choice(name, version, task.place), self._text(task))

    async def _choose(self, task: Task, choice: Choice, text: str) -> Any:
        found: Chosen = await task.pins.get(choice)
        called = Called(choice.name, found.version, found.model, AnyResult(_ANY))
        return await self._wait(task.loop, called, text, task.place)


class Chosen(Struct, frozen=True):
    """The result of looking up a workflow."""

    version: str
    model: str  # "" if only an engine with the code knows it


class Choice:
    """Looks up a workflow as a step. The result is its version and model, if a living engine has it."""

    __slots__ = ("_place", "name", "reference", "version")

    def __init__(self, name: str, version: str | None, place: str) -> None:
        self.name = name
        self.version = version
        self.reference = ("workflow", name, version)
        self._place = place

    def request(self, loop: WorkflowLoop) -> asyncio.Future[Any]:
        call: StepCall[Any] = StepCall(_LOOKING_UP, (self.name, self.version, self._place), {}, is_awaited=True)
        return loop.request_step(f"workflow {self.name}", call)


async def _look_up(name: str, version: str | None, place: str) -> Chosen:
    """Look up the version and the model of a workflow. Raises UnknownWorkflow, InvalidArguments."""
    catalogue = current_step().resource(Catalogue)
    try:
        if version is None:
            version = await catalogue.version(name)
        else:
            await catalogue.check(name, version)
    except UnknownWorkflow as error:
        raise UnknownWorkflow(f"{place}: {error}") from None
    except InvalidArguments as error:
        raise InvalidArguments(f"{place}: {error}") from None
    return Chosen(version, catalogue.model(name, version))


_LOOKING_UP: Step[Any, Any] = Step(
    _look_up,
    name="workflow",
    retry=LOOKUP_RETRY,
    timeout=None,
    total_timeout=None,
    heartbeat_timeout=None,
    process=False,
    signature=Signature(_look_up, "the lookup of a workflow", {}),
)


def _text(source: Expression, task: Task, *, empty: bool = False) -> str:
    """Return the value of an expression for a name or a version. Raises ExpressionFailed."""
    value = source.evaluate(task.view)
    try:
        return value if empty and value == "" else checked_text(value, "a workflow's name or version")
    except InvalidArguments as error:
        message = f"{source.place}: {source.source!r} is no name: {error}"
        raise ExpressionFailed(message, expression=source.source, place=source.place) from error
