"""The commands of several activations in a row, taken together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from perdure.models.functions.commands import Ask
from perdure.models.functions.loop import Commands, StepRequest, TimerRequest, WorkflowLoop


class Replayed:
    """What several activations in a row ask for, taken together."""

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
        """All that is outstanding: these steps and requests, and the timers that a loop still waits for."""
        total = Commands()
        total.steps = list(steps)
        total.asks = list(asks)
        total.timers = [timer for position, timer in self._timers.items() if loop.pending(position) is not None]
        total.posts = last.posts
        total.end = last.end
        return total


class Merged:
    """The commands of several activations that are committed together: what one asks for and a later one withdraws
    never was."""

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
        total.posts = [*total.posts, *commands.posts]
        total.end = commands.end

    def next_at_once(self) -> Ask | None:
        """The next request that needs nobody's answer: for a child that has no id of its own, for a compensation."""
        if self._total.end is None:
            for ask in self._asks.values():
                if ask.kind == "compensate" or (ask.kind == "start" and ask.what.id is None):
                    return self._asks.pop(ask.position)
        return None

    def commands(self) -> Commands:
        total = self._total
        if total.end is None:
            total.steps, total.timers = list(self._steps.values()), list(self._timers.values())
            total.asks = list(self._asks.values())
        return total


def _withdrawn(asked: dict[str, Any], positions: Sequence[str]) -> list[str]:
    return [position for position in positions if asked.pop(position, None) is None]
