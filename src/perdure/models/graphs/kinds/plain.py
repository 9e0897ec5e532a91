"""Nodes without side effects. They set values, end the run, or only mark a place."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from perdure.errors import Terminated
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.kinds.base import Done, Ended, Kind, Preparing, Task, kind
from perdure.models.graphs.spec import Target


@kind
class Set(Kind, frozen=True, kw_only=True, tag="set"):
    """Writes values into the context: `values={"state.count": "state.count + 1"}`. All expressions see the context as
    it was before the node. The result is an object with the values, by the last part of each place. Without values, the
    node only marks a place.
    """

    values: dict[Target, Any] = field(default_factory=dict)

    def prepare(self, about: Preparing) -> SetWork:
        self.refuse(about, "input", "retry", "timeout")
        return SetWork({target: about.values(value, f"values.{target}") for target, value in self.values.items()})


class SetWork:
    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    @property
    def targets(self) -> list[str]:
        """Return the places that the node writes to."""
        return list(self._values)

    def begin(self, task: Task) -> Done:
        found = {target: value.evaluate(task.view) for target, value in self._values.items()}
        for target, value in found.items():
            task.view.scope.write(target, value)
        return Done({target.rpartition(".")[2]: value for target, value in found.items()})


@kind
class Terminate(Kind, frozen=True, kw_only=True, tag="terminate"):
    """Ends the whole run at once, even if other nodes are running. The run ends with its output, or as a failure with a
    message.
    """

    status: Literal["succeeded", "failed"] = "succeeded"
    message: str | None = None

    def prepare(self, about: Preparing) -> TerminateWork:
        self.refuse(about, "input", "retry", "timeout")
        if self.status == "succeeded" and self.message is not None:
            raise about.wrong("message", 'only a failure has one: status="failed"')
        message = None if self.message is None else about.expression(self.message, "message")
        return TerminateWork(self.status == "failed", message)


class TerminateWork:
    __slots__ = ("_fails", "_message")

    def __init__(self, fails: bool, message: Expression | None) -> None:
        self._fails = fails
        self._message = message

    def begin(self, task: Task) -> Ended:
        if not self._fails:
            return Ended()
        why = "it ended the run" if self._message is None else str(self._message.evaluate(task.view))
        return Ended(Terminated(f"{task.place}: {why}", place=task.place))
