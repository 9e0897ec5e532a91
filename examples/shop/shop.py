"""A small shop. Every order is a run of `checkout`; kill its process whenever you like, the order is completed.

Workflow code between steps is replayed after a crash. Steps touch the world, and one whose result was committed is not
run again.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from msgspec import Struct
from witness import seen

from perdure import Retry, sleep, step, workflow


class Order(Struct):
    id: str
    items: list[str]
    cents: int


class CardReaderBusy(Exception):
    """Try again in a moment."""


@step
async def reserve(item: str) -> str:
    """Take one piece out of stock."""
    seen()
    await asyncio.sleep(0.2)
    return f"shelf {len(item)}"


@step(retry=Retry(attempts=4, initial=timedelta(milliseconds=150)), timeout=timedelta(seconds=5))
async def charge(order: Order) -> str:
    """Charge the card. The bank knows payments by the idempotency key, the same in every attempt and after a crash."""
    me = seen()
    await asyncio.sleep(0.3)
    if order.cents % 3 == 0 and me.attempt < 3:
        raise CardReaderBusy(f"order {order.id}, attempt {me.attempt}")
    return f"payment {me.idempotency_key}"


@step
def pack(order: Order, shelves: list[str]) -> float:
    """Not async: runs in a thread. The weight in kilograms."""
    seen()
    return round(0.4 * len(order.items) + 0.1 * len(set(shelves)), 1)


@step
async def ship(order: Order, kilograms: float) -> str:
    """Hand the parcel to the carrier."""
    seen()
    await asyncio.sleep(0.2)
    return f"{order.id}: {len(order.items)} items, {kilograms} kg"


@workflow
async def checkout(order: Order) -> str:
    shelves = await asyncio.gather(*[reserve(item) for item in order.items])
    await charge(order)
    await sleep(timedelta(seconds=1))  # time to change one's mind; durable, so it goes on while no process runs
    kilograms = await pack(order, list(shelves))
    return await ship(order, kilograms)
