"""The decisions that the machine of a graph's run makes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.models.graphs.tokens import Token

TimerKey = tuple[int, str]  # the id of a fork, and the node behind its join


class Decisions(Struct):
    """The actions for the runner, in this order: stop the nodes of these tokens, drop timers, set timers (seconds from
    now), and run the nodes of these tokens. If the run ends, no other action follows.
    """

    cancel: list[int]
    timers_dropped: list[TimerKey]
    timers: list[tuple[TimerKey, float]]
    run: list[Token]
    output: Any = None
    failure: BaseException | None = None
    ended: bool = False


__all__ = ["Decisions", "TimerKey"]
