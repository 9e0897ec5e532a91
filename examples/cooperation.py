"""Three services that cooperate by messages: an order takes from stock, which a durable function does, and charges a
card. One order fails, and all that was done for it is undone, what the function did too. Run it:
python examples/cooperation.py"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from msgspec import Struct

from perdure import Engine, compensate, step, workflow
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import ScopeFailed


class Order(Struct):
    sku: str
    price: int


class Take(Struct):
    sku: str


class Charge(Struct):
    amount: int


orders, stock, payments = Topic("orders", Order), Topic("stock", Take), Topic("payments", Charge)

place = Operation("place-order", orders)


@place.step
async def ask_for_all(scope: Scope, order: Order) -> None:
    print(f"order for {order.sku}")
    await scope.emit(stock, Take(sku=order.sku))
    await scope.emit(payments, Charge(amount=order.price))


@ask_for_all.rollback
async def apologise(scope: Scope, order: Order, cause: Failure) -> None:
    print(f"sorry, no {order.sku}")


@place.step
async def confirm(scope: Scope, order: Order) -> None:
    (receipt,) = scope.returned("receipt", str)
    print(f"{order.sku} is yours: {receipt}")


@step
def reserve(sku: str) -> None:
    print(f"{sku} reserved")


@step
def put_back(sku: str) -> None:
    print(f"{sku} put back")


@workflow(name="pick")
async def pick(sku: str) -> None:
    await reserve(sku)
    await compensate(put_back(sku))


take = Operation("take-from-stock", stock)


@take.step
async def have_it_picked(scope: Scope, wanted: Take) -> None:
    await scope.start(pick(wanted.sku))  # a child like any other: it is undone with the rest


charge = Operation("charge", payments)


@charge.step
async def authorise(scope: Scope, wanted: Charge) -> None:
    if wanted.amount > 1_000:
        raise ValueError(f"{wanted.amount} is more than the card allows")
    scope.return_value("receipt", f"{wanted.amount} paid")


async def main(url: str) -> None:
    async with Engine(url, workflows=[place, take, charge, pick]) as engine:
        root = await engine.emit(orders, Order(sku="lamp", price=40))
        await root.finished()
        root = await engine.emit(orders, Order(sku="piano", price=9_000))
        try:
            await root.finished()
        except ScopeFailed as error:
            print(error.failure)
        print((await engine.handle(root.id).tree()).text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{Path(folder) / 'shop.db'}"))
