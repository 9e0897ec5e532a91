"""Nodes that append a metric to a stream of the run. The metric is committed once, together with the run's next
requests.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from msgspec import Meta, field

from perdure.errors import ExpressionFailed, InvalidArguments
from perdure.models.functions.commands import Output
from perdure.models.functions.publications import add_output_nowait
from perdure.models.graphs.kinds.base import Done, Kind, Preparing, Task, kind
from perdure.values.checks import checked_text
from perdure.values.json import to_text


@kind
class Metric(Kind, frozen=True, kw_only=True, tag="metric"):
    """Appends a metric to the run's `stream` as {name, value, unit, attributes, node}. It is appended exactly once, in
    the commit of the run's next requests. `value` is an expression for a number. `attributes` are expressions by name.
    The node needs no commit of its own. Its result is the metric.
    """

    name: Annotated[str, Meta(min_length=1)]
    value: str | int | float = 1
    unit: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    stream: str = "metrics"

    def prepare(self, about: Preparing) -> MetricWork:
        self.refuse(about, "input", "retry", "timeout")
        for name in ("name", "stream"):
            try:
                checked_text(getattr(self, name), f"a metric's {name}")
            except InvalidArguments as error:
                raise about.wrong(name, str(error)) from error
        return MetricWork(self, about)


class MetricWork:
    __slots__ = ("_attributes", "_name", "_node", "_place", "_stream", "_unit", "_value")

    def __init__(self, spec: Metric, about: Preparing) -> None:
        self._name = spec.name
        self._unit = spec.unit
        self._stream = spec.stream
        self._node = about.node
        self._place = f"{about.place}, value"
        self._value = about.values(spec.value, "value")
        self._attributes = about.values(spec.attributes, "attributes")

    def begin(self, task: Task) -> Done:
        value = self._value.evaluate(task.view)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ExpressionFailed(f"{self._place}: a metric is a number, not {value!r:.80}", place=self._place)
        item = {
            "name": self._name,
            "value": value,
            "unit": self._unit,
            "attributes": self._attributes.evaluate(task.view),
            "node": self._node,
        }
        text = to_text(item, f"the metric of {task.place}", task.loop.payload_max)
        add_output_nowait(task.loop, Output(self._stream, text, True))
        return Done(item)
