"""What the machine of a run of a graph says is to be done."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.models.graphs.tokens import Token

TimerKey = tuple[int, str]  # the id of a fork, and the node that its join leads to


class Decisions(Struct):
    """What is to be done, in this order: stop what runs for these tokens, drop timers, set timers (seconds from now),
    run the nodes at which these tokens stand. With an end there is nothing else."""

    cancel: list[int]
    timers_dropped: list[TimerKey]
    timers: list[tuple[TimerKey, float]]
    run: list[Token]
    output: Any = None
    failure: BaseException | None = None
    ended: bool = False


__all__ = ["Decisions", "TimerKey"]
