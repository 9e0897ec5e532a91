"""Types of events, waits and children."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

from perdure import (
    ChildHandle,
    Delivered,
    Engine,
    Event,
    NamedEvent,
    Queued,
    RunEnded,
    TimeReached,
    compensate,
    continue_as,
    event,
    first,
    receive,
    start,
    step,
    timer,
    workflow,
)


class Paid(Event, event_name="payments.paid", expire_after=timedelta(days=7)):
    amount: int


class Shipped(Event, consume_on_read=False, delivery="all", on_target_terminated="dead_letter"):
    parcel: str


@step
async def pack(item: str) -> float:
    return 1.5


@workflow
async def child(item: str) -> float:
    return await pack(item)


@workflow
async def parent() -> str:
    assert_type(await receive(Paid), Paid)
    assert_type(await receive("named"), Any)
    assert_type(await first(Paid), Paid)
    assert_type(await first(Paid, timer(hours=1)), Paid | TimeReached)
    assert_type(await first(event(Paid, where={"amount": 3}), Shipped, timer(5)), Paid | Shipped | TimeReached)
    assert_type(await first(event("named"), timer(5)), NamedEvent | TimeReached)
    assert_type(await child("x"), float)
    handle = await start(child("x"), detached=True)
    assert_type(handle, ChildHandle[float])
    assert_type(await handle.result(), float)
    assert_type(await first(handle, timer(5)), RunEnded[float] | TimeReached)
    await start(pack("x"))  # E: Argument 1 to "start"
    await compensate(pack("x"))
    await compensate(child("x"))
    await compensate("pack")  # E: Argument 1 to "compensate"
    await receive(int)  # E: Value of type variable "E"
    await continue_as(child("x"))


async def outside(engine: Engine) -> None:
    assert_type(await engine.send(Paid(amount=1), to="r"), Delivered | Queued)
    await engine.send(Paid(amount="much"))  # E: Argument "amount"
    await engine.send("paid")  # E: Argument 1 has incompatible type "str"; expected "Event | NamedEvent"
