"""Types of topics, operations and their steps."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from msgspec import Struct

from perdure import Retry
from perdure.cooperation import Context, Failure, Key, NextStep, Operation, OperationStep, Scope, Topic, repeat


class Order(Struct):
    sku: str


class Take(Struct):
    sku: str


orders, stock = Topic("orders", Order), Topic("stock", Take)
place = Operation("place-order", orders)
assert_type(place, Operation[Order])


@place.step
async def take_stock(scope: Scope, order: Order) -> None:
    assert_type(await scope.emit(stock, Take(order.sku), delay=timedelta(hours=1)), str)
    assert_type(scope.returned("price", int, handler="stock", topic=stock), list[int])
    scope.emit(stock, Take(order.sku), delay=5)
    scope.emit(stock, Take(order.sku), delay="5")  # E: Argument "delay"
    scope.emit(stock, Take(order.sku), deadline="soon")  # E: Argument "deadline"
    scope.emit(stock, order)  # E: Cannot infer value of type parameter "M" of "emit"


assert_type(take_stock, OperationStep[Order])


@take_stock.rollback
async def put_back(scope: Scope, order: Order, cause: Failure) -> None: ...


@take_stock.on_child_failure
def try_elsewhere(scope: Scope, order: Order, failure: Failure, attempt: int) -> NextStep:
    return repeat()


@take_stock.finally_
def tidy(scope: Scope, order: Order) -> None: ...


@take_stock.rollback(retry=3)  # E: No overload variant of "rollback"
async def undo(scope: Scope, order: Order, cause: Failure) -> None: ...


place.step(timeout="5")  # E: No overload variant of "step"


@place.step(name="pay", retry=Retry(attempts=5), timeout=timedelta(seconds=5), heartbeat_timeout=2.5)
def pay(scope: Scope, order: Order) -> NextStep | None:
    return None


def of_another(scope: Scope, take: Take) -> None: ...
def short(scope: Scope, order: Order) -> None: ...
def number(scope: Scope, order: Order) -> int:
    return 1


place.step(of_another)  # E: Argument 1 to "step"
place.step(number)  # E: Argument 1 to "step"
take_stock.rollback(short)  # E: Argument 1 to "rollback"
take_stock.on_child_failure(short)  # E: Argument 1 to "on_child_failure"
Operation("x", orders, policy="stop")  # E: Argument "policy"

tenant = Key("tenant", str)
assert_type(Context().get(tenant), str | None)
Context().put(tenant, 1)  # E: Cannot infer value of type parameter "V" of "put"
