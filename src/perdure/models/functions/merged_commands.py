"""Merged commands: the commands of several activations in a row, as one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, field

from perdure.kernel.ops import Start
from perdure.kernel.rows import Entry
from perdure.models.functions.commands import Ask, Completed, Continued, Raised
from perdure.models.functions.loop import Commands, StepRequest, TimerRequest, WorkflowLoop


class Replayed:
    """The requests that are outstanding after the activations of a replay."""

    def __init__(self) -> None:
        self._timers: dict[str, TimerRequest] = {}

    def add(self, commands: Commands) -> Commands:
        for timer in commands.timers:
            self._timers[timer.position] = timer
        for position in commands.timers_dropped:
            self._timers.pop(position, None)
        return commands

    def commands(
        self, steps: Iterable[StepRequest], asks: Iterable[Ask], loop: WorkflowLoop, last: Commands
    ) -> Commands:
        """Return all outstanding requests: the given steps and asks, and the timers that a loop still waits for."""
        total = Commands()
        total.steps = list(steps)
        total.asks = list(asks)
        total.timers = [timer for position, timer in self._timers.items() if loop.pending(position) is not None]
        total.outputs = last.outputs
        total.end = last.end
        return total


class Merged:
    """The commands of several activations that are committed together. A request that one activation makes and a later
    activation withdraws is left out."""

    def __init__(self) -> None:
        self._steps: dict[str, StepRequest] = {}
        self._timers: dict[str, TimerRequest] = {}
        self._asks: dict[str, Ask] = {}
        self._total = Commands(steps_cancelled=[], timers_dropped=[], asks_withdrawn=[])

    def add(self, commands: Commands) -> None:
        self._steps |= {request.position: request for request in commands.steps}
        self._timers |= {request.position: request for request in commands.timers}
        self._asks |= {request.position: request for request in commands.asks}
        total = self._total
        total.steps_cancelled = [*total.steps_cancelled, *_withdrawn(self._steps, commands.steps_cancelled)]
        total.timers_dropped = [*total.timers_dropped, *_withdrawn(self._timers, commands.timers_dropped)]
        total.asks_withdrawn = [*total.asks_withdrawn, *_withdrawn(self._asks, commands.asks_withdrawn)]
        total.outputs = [*total.outputs, *commands.outputs]
        total.end = commands.end

    @property
    def end(self) -> Completed | Raised | Continued | None:
        return self._total.end

    def has(self, ask: Ask) -> bool:
        """Return whether this request is still among the commands."""
        return self._asks.get(ask.position) is ask

    def answered(self, ask: Ask) -> None:
        """Remove a request that was answered."""
        del self._asks[ask.position]

    def commands(self) -> Commands:
        total = self._total
        if total.end is None:
            total.steps, total.timers = list(self._steps.values()), list(self._timers.values())
            total.asks = list(self._asks.values())
        return total


class AnsweredAtOnce(Struct):
    """The requests of a run that were answered before they were committed, and the commands that remain."""

    commands: Commands
    entries: list[Entry]
    starts: list[Start] = field(default_factory=list)
    undo: int = 0
    read_ahead: tuple[str, ...] = ()


NOTHING_AT_ONCE: Final = AnsweredAtOnce(Commands(), [])


def _withdrawn(asked: dict[str, Any], positions: Sequence[str]) -> list[str]:
    return [position for position in positions if asked.pop(position, None) is None]
