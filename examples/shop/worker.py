"""The process that gets killed: takes orders and completes them. `python worker.py shop.db witness.log 1`"""

from __future__ import annotations

import asyncio
import sys

from shop import Order, checkout
from witness import Witness

from perdure import Engine

GOODS = ["lamp", "kettle", "atlas", "radio", "teapot", "ladder", "mirror"]
ORDERS = [Order(f"order-{n:02}", GOODS[n % 5 : n % 5 + 1 + n % 3], 1000 + 50 * n) for n in range(1, 25)]


async def work(store: str, log: str, process: int) -> None:
    async with Engine(f"sqlite:///{store}", resources={Witness: lambda: Witness(log, process)}) as engine:
        runs = []
        for order in ORDERS:
            # The id makes this idempotent: after a restart it finds the orders that are there, and takes the others.
            runs.append(await engine.start(checkout(order), id=order.id))
            await asyncio.sleep(0.06)
        await asyncio.gather(*[run.result() for run in runs])


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
