"""Two ops that race, made to meet in a chosen order: in one batch, or in two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Literal

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
        if any(point == wanted and racer.run in (None, run) for point, run in islice(points.seen, seen, None)):
            return
        turns += 1
        # What else goes on may wait for a commit, which does not come while a batch is stopped.
        if await _turn(env) or (not held.is_reached and env.engine.runtime.functions.busy):
            turns = 0


async def calm(env: Environment) -> None:
    """Wait until all that goes on is steps, which wait at their gate."""
    turns = 0
    while turns < _CALM_TURNS:
        turns += 1
        if await _turn(env) or not env.engine.runtime.is_between_steps:
            turns = 0


async def _turn(env: Environment) -> bool:
    """Let the others go on for a turn of the loop; True if the store was at work, which is waited for."""
    store = env._store
    assert store is not None
    await asyncio.sleep(0)
    if not store.in_flight:
        return False
    # A loop that turns and turns meanwhile takes the interpreter from the store's threads.
    await store.idle()
    return True
