"""Two ops that race, made to meet in a chosen order: in one batch, or in two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from perdure.testing import Environment, YieldPoints
from perdure.testing.yield_points import Held

Order = Literal["a, b", "b, a", "a and b in one batch", "b and a in one batch"]
ORDERS: tuple[Order, ...] = ("a, b", "b, a", "a and b in one batch", "b and a in one batch")

# So many turns of the loop in which nothing else is asked of the engine mean that an op is not going to come.
_CALM_TURNS = 40


class Racer(Struct, frozen=True):
    """An op, and what makes it come. `run` None: of whichever run."""

    op: str
    run: str | None
    begin: Callable[[], object]


async def meet(env: Environment, points: YieldPoints, order: Order, a: Racer, b: Racer) -> None:
    """Let both come. In another life of a program that died, one of them may have come before, and does not again."""
    first, second = (a, b) if order.startswith("a") else (b, a)
    point = "batch.take" if "batch" in order else f"{first.op}.before_commit"
    with points.hold(point, run="" if "batch" in order else first.run) as held:
        await _come(env, points, held, first, None if "batch" in order else point)
        await _come(env, points, held, second, None)


async def _come(env: Environment, points: YieldPoints, held: Held, racer: Racer, until: str | None) -> None:
    seen = len(points.seen)
    wanted = until or f"{racer.op}.submit"
    racer.begin()
    turns = 0
    while turns < _CALM_TURNS:
        if any(point == wanted and racer.run in (None, run) for point, run in points.seen[seen:]):
            return
        await asyncio.sleep(0)
        # What else goes on may wait for a commit, which does not come while a batch is stopped.
        is_going_on = _in_flight(env) if held.is_reached else _is_loading(env)
        turns = 0 if is_going_on else turns + 1


async def calm(env: Environment) -> None:
    """Wait until all that goes on is steps, which wait at their gate."""
    turns = 0
    while turns < _CALM_TURNS:
        await asyncio.sleep(0)
        turns = 0 if _is_loading(env) or not env.engine.is_between_steps else turns + 1


def _is_loading(env: Environment) -> bool:
    return _in_flight(env) or env.engine._functions.busy


def _in_flight(env: Environment) -> bool:
    store: Any = env._store
    return bool(store.in_flight)
