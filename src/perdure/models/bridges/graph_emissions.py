"""Messages that graphs emit. A node emits a message, and waits until the hierarchy that the message begins has
ended.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Literal

from perdure.errors import InvalidDefinition, ScopeFailed
from perdure.models.bridges.function_emissions import emit as emit_and_wait
from perdure.models.cooperation.topics import Topic
from perdure.models.graphs.kinds.base import Kind, Preparing, Task, kind
from perdure.models.graphs.mappings import ValueMap
from perdure.values.arguments import checked


@kind
class Emit(Kind, frozen=True, kw_only=True, tag="emit"):
    """Emits the value of `input` as a message on a topic. It waits for the handlers of this message, and of all
    messages below it.

    If a handler fails, the whole hierarchy is undone and the node fails. If `on_failure` is "catch", the node succeeds
    instead. Its result is {"error": …}. If the graph fails later, or is cancelled, the hierarchy is rolled back.
    """

    topic: str
    on_failure: Literal["propagate", "catch"] = "propagate"

    def prepare(self, about: Preparing) -> EmitWork:
        self.refuse(about, "retry", "timeout")
        if not self.topic:
            raise about.wrong("topic", "a topic has a name")
        message = about.values({} if self.input is None else self.input, "input")
        return EmitWork(self.topic, message, catches=self.on_failure == "catch")


class EmitWork:
    __slots__ = ("_catches", "_message", "_topic")

    def __init__(self, topic: str, message: ValueMap, *, catches: bool) -> None:
        self._topic = topic
        self._message = message
        self._catches = catches

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        return self._emit(self._message.evaluate(task.view))

    async def _emit(self, message: Any) -> Any:
        try:
            await emit_and_wait(Topic(self._topic, object), message)
        except ScopeFailed as failed:
            if not self._catches:
                raise
            return {"error": {"type": failed.failure.type, "message": failed.failure.message}}
        return None


@checked(error=InvalidDefinition)
def emit(topic: Topic[Any] | str, *, on_failure: Literal["propagate", "catch"] = "propagate") -> Kind:
    """Return a node that emits its `input` as a message on a topic, and waits until the hierarchy has ended."""
    return Emit(topic=topic if isinstance(topic, str) else topic.name, on_failure=on_failure)


__all__ = ["Emit", "emit"]
