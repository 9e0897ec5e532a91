"""Nodes that wait for a point in time or for an event."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from msgspec import field

from perdure.errors import ExpressionFailed, GraphTimedOut, InvalidDefinition, Misuse
from perdure.models.functions.context import timed_out
from perdure.models.functions.events import NamedEvent, checked_name
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.functions.timers import TimeReached
from perdure.models.functions.waits import event, first, timer
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.kinds.base import Kind, Preparing, Task, kind
from perdure.models.graphs.mappings import ValueMap
from perdure.models.graphs.spec import Seconds
from perdure.values.times import from_datetime, seconds_of


@kind
class Timer(Kind, frozen=True, kw_only=True, tag="timer"):
    """Waits for a duration or until a time. `seconds` is a number, or an expression for a number. `until` is an
    expression for a text such as "2030-01-31T08:00:00Z".
    """

    seconds: Seconds | str | None = None
    until: str | None = None

    def prepare(self, about: Preparing) -> TimerWork:
        self.refuse(about, "input", "retry", "timeout")
        if (self.seconds is None) == (self.until is None):
            raise about.wrong("seconds", "a timer has either seconds or until")
        if self.until is not None:
            return TimerWork(None, about.expression(self.until, "until"))
        if isinstance(self.seconds, str):
            return TimerWork(None, about.expression(self.seconds, "seconds"), is_duration=True)
        return TimerWork(self.seconds, None)


class TimerWork:
    __slots__ = ("_is_duration", "_seconds", "_source")

    def __init__(self, seconds: float | None, source: Expression | None, *, is_duration: bool = False) -> None:
        self._seconds = seconds
        self._source = source
        self._is_duration = is_duration

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        return self._wait(task.loop, self._due_at(task))

    @staticmethod
    async def _wait(loop: WorkflowLoop, due_at: int) -> dict[str, str]:
        scheduled_at, fired_at = await loop.request_timer(due_at, "timer")
        return {"scheduled_at": _text(scheduled_at), "fired_at": _text(fired_at)}

    def _due_at(self, task: Task) -> int:
        if self._source is None:
            return task.loop.now() + round((self._seconds or 0) * 1_000_000)
        value, source = self._source.evaluate(task.view), self._source
        try:
            if self._is_duration:
                return task.loop.now() + max(0, round(seconds_of(float(value), "timer") * 1_000_000))
            when = datetime.fromisoformat(value)
            return from_datetime(when if when.tzinfo is not None else when.replace(tzinfo=UTC))
        except (TypeError, ValueError, Misuse) as error:
            message = f"{source.place}: {source.source!r} is no time to wait for: {value!r:.80}"
            raise ExpressionFailed(message, expression=source.source, place=source.place) from error


def _text(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).isoformat()


@kind
class Wait(Kind, frozen=True, kw_only=True, tag="wait"):
    """Waits for an event of this name that is sent to the run or broadcast. The event's value is the node's result.
    `where` maps fields of the event to expressions. If no event comes within the `timeout`, the node fails with
    GraphTimedOut.
    """

    event: str
    where: dict[str, Any] = field(default_factory=dict)

    def prepare(self, about: Preparing) -> WaitWork:
        self.refuse(about, "input", "retry")
        try:
            checked_name(self.event)
        except InvalidDefinition as error:
            raise about.wrong("event", str(error)) from error
        return WaitWork(self.event, about.values(self.where, "where"), self.timeout)


class WaitWork:
    __slots__ = ("_name", "_timeout", "_where")

    def __init__(self, name: str, where: ValueMap, timeout: float | None) -> None:
        self._name = name
        self._where = where
        self._timeout = timeout

    def begin(self, task: Task) -> Coroutine[Any, Any, Any]:
        return self._wait(self._where.evaluate(task.view), task.place)

    async def _wait(self, where: dict[str, Any], place: str) -> Any:
        chosen = event(self._name, where=where)
        got: NamedEvent | TimeReached
        got = await (first(chosen) if self._timeout is None else first(chosen, timer(self._timeout)))
        if isinstance(got, TimeReached):
            late = GraphTimedOut(f"{place}: no event {self._name!r} came within {self._timeout:g} s", place=place)
            raise timed_out(late)
        return got.value
