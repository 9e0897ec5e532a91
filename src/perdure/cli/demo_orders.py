"""The process that `perdure demo` kills. It handles orders of four steps each.

Each step writes to a file outside the store when it begins. So the demo can check the store against the file.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

from perdure import Engine, current_step, step, workflow

ORDERS: Final = 12
STEPS: Final = ("reserve", "charge", "pack", "ship")

_TAKES_S: Final = 0.08


async def _work() -> str:
    me = current_step()
    # The whole line is one write, so a kill cannot cut it in two.
    with open(os.environ["PERDURE_DEMO_NOTES"], "ab", buffering=0) as notes:  # noqa: ASYNC230, PTH123 - a single line
        notes.write(f"{os.getpid()} {me.run_id} {me.name}\n".encode())
    await asyncio.sleep(_TAKES_S)
    return "done"


@step
async def reserve() -> str:
    return await _work()


@step
async def charge() -> str:
    return await _work()


@step
async def pack() -> str:
    return await _work()


@step
async def ship() -> str:
    return await _work()


@workflow(name="perdure.demo.order")
async def order(number: int) -> str:
    await asyncio.sleep(number * _TAKES_S / 2)  # a durable sleep: orders begin one after the other
    for one in (reserve, charge, pack, ship):
        await one()
    return f"order {number} is on its way"


async def main(store: str) -> None:
    async with Engine(store, workflows=[order]) as engine:
        runs = [await engine.start(order(number), id=f"order-{number:02}") for number in range(1, ORDERS + 1)]
        await asyncio.gather(*[run.result() for run in runs])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
