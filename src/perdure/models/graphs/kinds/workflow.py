"""Nodes that run another workflow, of any model, as a child."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal

from msgspec import Struct

from perdure.errors import ChildFailed, InvalidArguments, UnstorableValue
from perdure.models.functions.commands import ChildCall
from perdure.models.functions.define import Workflow
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.functions.values import Reader, to_text
from perdure.models.graphs.expressions import ValueMap
from perdure.models.graphs.kinds.base import Kind, PlainReader, Preparing, Task, kind, within
from perdure.models.graphs.kinds.function import Arguments


@kind
class Child(Kind, frozen=True, kw_only=True, tag="workflow"):
    """Runs a workflow as a child, with a context of its own; its result is the node's.

    `workflow` refers to it (`package.module:name`, or one that was handed in), or is just its name: then `input` has
    its arguments as they are, since nobody here knows what it takes. A graph's input is an object of the mapped names.
    If the child fails, so does the node, unless failures are to be caught: then the result is {"error": …}. With a
    `timeout` the child is cancelled when it has passed.
    """

    workflow: str
    version: str = ""
    on_failure: Literal["propagate", "catch"] = "propagate"

    def prepare(self, about: Preparing) -> ChildWork:
        self.refuse(about, "retry")
        if ":" not in self.workflow and not about.knows(self.workflow):
            return ChildWork(self, Called(self.workflow, self.version, "function", AnyResult(_ANY)), None, about)
        found = about.resolve(self.workflow, "workflow")
        if not isinstance(found, Workflow):
            raise about.wrong("workflow", f"{self.workflow!r} is no workflow but {found!r:.80}")
        result = AnyResult(PlainReader(found.signature.result))
        return ChildWork(self, Called(found.name, found.version, found.model, result), found, about)


class AnyResult(Struct, frozen=True):
    """As much of a signature as a child's end needs."""

    result: Reader


class Called(Struct, frozen=True):
    """As much of a workflow as a child's start and end need."""

    name: str
    version: str
    model: str
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
        call = ChildCall(self._called, text, "awaited")
        return self._wait(task.loop, call, task.place)

    def _text(self, task: Task) -> str:
        if self._arguments is not None:
            return self._arguments.text(task)
        assert self._values is not None
        given = self._values.evaluate(task.view)
        return to_text({"input": given} if self._is_graph else given, f"the input of {task.place}")

    async def _wait(self, loop: WorkflowLoop, call: ChildCall, place: str) -> Any:
        try:
            return await within(self._timeout, place, loop.ask("child", self._called.name, call))
        except ChildFailed as failed:
            if not self._catches:
                raise
            about: dict[str, Any] = {"type": "ChildFailed", "message": str(failed), "status": failed.status}
            if failed.__cause__ is not None:
                about |= {"type": type(failed.__cause__).__qualname__, "message": str(failed.__cause__)}
            return {"error": about}
