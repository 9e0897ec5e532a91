"""W11: root operations of three steps, whose first emits two messages; their handlers have three steps each."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.figures import Figures
from perdure import Engine
from perdure.cooperation import Operation, Scope, Topic

ROOT, LEFT, RIGHT = (Topic(name, dict[str, int]) for name in ("root", "left", "right"))


def operation(name: str, topic: Topic[dict[str, int]], emits: tuple[Topic[dict[str, int]], ...] = ()) -> Operation[Any]:
    made = Operation(name, topic)

    @made.step
    async def first(scope: Scope, message: dict[str, int]) -> None:
        for one in emits:
            await scope.emit(one, message)

    @made.step
    async def second(scope: Scope, message: dict[str, int]) -> None: ...

    @made.step
    async def third(scope: Scope, message: dict[str, int]) -> None: ...

    return made


OPERATIONS = [operation("root", ROOT, (LEFT, RIGHT)), operation("left", LEFT), operation("right", RIGHT)]


async def measure(folder: Path, *, hierarchies: int, in_flight: int) -> Figures:
    async with Engine(f"sqlite:///{folder / 'hierarchies.db'}", workflows=OPERATIONS) as engine:
        numbers = iter(range(hierarchies))

        async def client() -> None:
            for number in numbers:
                await (await engine.emit(ROOT, {"n": number})).finished()

        began = time.perf_counter()
        await asyncio.gather(*[client() for _ in range(in_flight)])
        took = time.perf_counter() - began
    return {"hierarchies_per_s": hierarchies / took}
