"""Nodes that execute an action. An action is a record that many graphs share. It can change without a change of these
graphs.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from perdure.errors import InvalidDefinition
from perdure.models.functions.define import Step, Workflow
from perdure.models.graphs.context import View
from perdure.models.graphs.kinds.base import KINDS, Done, Ended, Kind, Preparing, Task, Work, kind
from perdure.models.graphs.kinds.mcp import Mcp
from perdure.models.graphs.kinds.recorded import Kept, reading
from perdure.models.graphs.records import Found

# The kinds that an action cannot be, because they act on the graph around the node.
_NO_ACTIONS: Final = frozenset({"action", "set", "terminate"})


@kind
class Action(Kind, frozen=True, kw_only=True, tag="action"):
    """Executes a record of kind "action". `action` is the record's name. A name alone means the newest version at the
    run's first use, and `notify@2` means a certain version.

    The record is a node, for example `{"kind": "http", "url": "input.url"}`. It has no `output` and no error handling,
    because this node has them. The record's expressions see only `input`, with the values that this node's `input`
    maps. `timeout` and `retry` of this node override the fields of the record. The record can call only steps and
    workflows that are imported or were passed in. So the author of a record cannot run arbitrary code.
    """

    action: Annotated[str, Meta(min_length=1)]

    def prepare(self, about: Preparing) -> ActionWork:
        return ActionWork(self, about)


class ActionWork:
    __slots__ = ("_about", "_made", "_mapped", "_reading", "_spec")

    def __init__(self, spec: Action, about: Preparing) -> None:
        self._spec = spec
        self._about = about
        self._mapped = about.values({} if spec.input is None else spec.input, "input")
        self._reading = reading("action", spec.action, about, "action", self._prepared)
        self._made: Kept[Work] = Kept()

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        return self._do(task, self._mapped.evaluate(task.view))

    async def _do(self, task: Task, given: Any) -> Any:
        found = await task.pins.get(self._reading)
        work = self._made.get([found], lambda: self._work(found))
        view = View(given, task.view.scope, task.view.root("branch"), None)
        begun = work.begin(Task(task.loop, given, view, task.place, task.pins))
        if isinstance(begun, Done):
            return begun.value
        assert not isinstance(begun, Ended)
        return await begun

    def _work(self, found: Found) -> Work:
        return self._prepared(found.body, self._about.anew(self._reading.place_of(found.version)))

    def _prepared(self, body: Any, about: Preparing) -> Work:
        """Return the work of a record. Raises InvalidDefinition."""
        known: Any = reduce(or_, [found for name, found in KINDS.items() if name not in _NO_ACTIONS])
        try:
            spec: Kind = msgspec.convert(body, known)
        except msgspec.ValidationError as error:
            raise InvalidDefinition(f"{about.place}: {error}") from error
        if isinstance(spec, Mcp) and spec.command:
            raise about.wrong("command", "an action starts no program; name the server's url")
        plain = type(self._spec)(action=self._spec.action)
        for field in ("output", "on_error", "otherwise"):
            if getattr(spec, field) != getattr(plain, field):
                raise about.wrong(field, "that is for the node to say, not for an action")
        own = {name: value for name in ("timeout", "retry") if (value := getattr(self._spec, name)) is not None}
        return msgspec.structs.replace(spec, **own).prepare(
            Preparing(
                about.graph,
                about.node,
                resolve=lambda reference, place: _known(reference, place, about),
                knows=about.knows,
                input_fields=None,
                place=about.place,
                roots=("input",),
            )
        )


def _known(reference: str, place: str, about: Preparing) -> Any:
    """Return an imported step, workflow or exception class, or an object that was passed in. Raises
    InvalidDefinition."""
    found = about.look_up(reference, place)
    is_exception = isinstance(found, type) and issubclass(found, BaseException)
    if isinstance(found, Step | Workflow) or is_exception or about.knows(reference):
        return found
    raise InvalidDefinition(f"{place}: {reference!r} is no step or workflow, and an action calls nothing else")
