"""The workflows whose runs are in the stored stores: one of each kind that can be under way when a process dies.

Runs of these workflows are in files that never change, so neither do their names, their steps and their order. To cover
something new, add a workflow and record a new store beside the old ones.

A step writes a line to the file that PAST_LOG names. While PAST_RECORDING is set, steps that call `hang` never end.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure import (
    Event,
    Retry,
    Workflow,
    compensate,
    continue_as,
    current_step,
    first,
    publish,
    receive,
    sleep,
    start,
    step,
    stream,
    task,
    timer,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic, emit
from perdure.graph import Graph, all_of, append, human

LONG = timedelta(minutes=10)  # longer than the recording takes; over when the store is opened again


def note(line: str) -> None:
    """Write down an effect on the world."""
    with Path(os.environ["PAST_LOG"]).open("a") as log:
        log.write(f"{line}\n")


def is_recording() -> bool:
    return bool(os.environ.get("PAST_RECORDING"))


async def hang() -> None:
    """Never return while the store is being recorded: the process dies in the middle of this step."""
    if is_recording():
        await asyncio.Event().wait()


class Paid(Event, event_name="past.paid"):
    amount: int


class Opened(Event, event_name="past.opened"):
    door: str


class Tick(Event, event_name="past.tick"):
    number: int


@step
async def do(what: str) -> str:
    note(what)
    return what.upper()


@step
async def do_and_hang(what: str) -> str:
    note(what)
    await hang()
    return f"{what} with key {current_step().idempotency_key}"


@step(retry=Retry(attempts=3, initial=LONG, maximum=LONG, jitter=0))
async def fail_while_recorded(what: str) -> str:
    note(f"{what} attempt {current_step().attempt}")
    if is_recording():
        raise ConnectionError("not reachable yet")
    return what


@step(retry=Retry.never())
async def fail_at_first(what: str) -> str:
    note(what)
    if is_recording():
        raise ValueError("fails until the code is mended")
    return what


@workflow(name="past-event")
async def waits_for_an_event(order: str) -> str:
    taken = await do(f"{order}: take")
    paid = await receive(Paid, where={"amount": 5})
    return f"{taken} {paid.amount} {await do(f'{order}: ship')}"


@workflow(name="past-choice")
async def waits_for_either(order: str) -> str:
    match await first(Paid, Opened, timer(days=36500)):
        case Paid(amount=amount):
            return f"{order} paid {amount}"
        case Opened(door=door):
            return f"{order} opened {door}"
        case _:
            return "late"


@workflow(name="past-sleep")
async def sleeps(order: str) -> str:
    await do(f"{order}: before")
    await sleep(LONG)
    return await do(f"{order}: after")


@workflow(name="past-step")
async def dies_in_a_step(order: str) -> str:
    await do(f"{order}: first")
    return await do_and_hang(f"{order}: second")


@workflow(name="past-retry")
async def waits_for_an_attempt(order: str) -> str:
    return await fail_while_recorded(order)


@workflow(name="past-failed")
async def fails(order: str) -> str:
    await do(f"{order}: kept")
    return await fail_at_first(f"{order}: again")


@workflow(name="past-parent")
async def has_children(order: str) -> list[str]:
    await start(sleeps(f"{order}/apart"), detached=True, id=f"{order}/apart")
    async with asyncio.TaskGroup() as group:
        steps = [group.create_task(_of(do(f"{order}: part {number}"))) for number in range(3)]
        child = group.create_task(_of(waits_for_an_event(f"{order}/child")))
        door = group.create_task(_of(receive(Opened, where={"door": order})))
    return [*(one.result() for one in steps), child.result(), door.result().door]


async def _of(call: Any) -> Any:
    return await call


@workflow(name="past-loop")
async def continues(order: str, life: int) -> str:
    await do(f"{order}: life {life}")
    tick = await receive(Tick)
    if tick.number < 3:
        await continue_as(continues(order, life + 1))
    return f"{order} ended in life {life}"


@workflow(name="past-undo")
async def has_compensations(order: str) -> str:
    await compensate(do(f"{order}: undo first"))
    await do(f"{order}: first")
    await compensate(do(f"{order}: undo second"))
    await do(f"{order}: second")
    await receive(Paid)
    return "kept"


@workflow(name="past-shown")
async def shows_itself(order: str) -> str:
    await publish("progress", {"done": 1})
    await stream("lines").append("one")
    await receive(Paid)
    await stream("lines").append("two")
    await publish("progress", {"done": 2})
    return order


@workflow(name="past-task")
async def asks_somebody(order: str) -> str:
    answer = await task(queue="past", title=order, payload={"order": order}, schema=dict[str, bool])
    return f"{order} {answer['ok']}"


class Order(Struct):
    sku: str
    fails: bool = False


orders, stock, bills = Topic("past.orders", Order), Topic("past.stock", Order), Topic("past.bills", Order)

place = Operation("past-place", orders)
pick = Operation("past-pick", stock)
bill = Operation("past-bill", bills)


@place.step
async def ask_for_stock(scope: Scope, order: Order) -> None:
    note(f"{order.sku}: ask")
    await scope.emit(stock, order)


@ask_for_stock.rollback
async def apologise(scope: Scope, order: Order, cause: Failure) -> None:
    note(f"{order.sku}: apologise")


@place.step
async def confirm(scope: Scope, order: Order) -> None:
    note(f"{order.sku}: confirm {scope.returned('parcel', str)}")
    if order.fails:
        raise ValueError("nobody is at home")


@pick.step
async def take(scope: Scope, order: Order) -> None:
    note(f"{order.sku}: take")
    await scope.start(packs(order.sku))
    scope.return_value("parcel", f"parcel of {order.sku}")


@take.rollback
async def put_back(scope: Scope, order: Order, cause: Failure) -> None:
    note(f"{order.sku}: put back")
    await hang()


@pick.step
async def look_again(scope: Scope, order: Order) -> None:
    note(f"{order.sku}: look again")
    if not order.fails:
        scope.sleep(LONG)


@bill.step
async def write_bill(scope: Scope, order: Order) -> None:
    note(f"{order.sku}: bill")
    scope.sleep(LONG)


@workflow(name="past-packs")
async def packs(sku: str) -> str:
    await compensate(do(f"{sku}: unpack"))
    return await do(f"{sku}: pack")


@workflow(name="past-emits")
async def emits(sku: str) -> str:
    await emit(bills, Order(sku=sku))
    return await do(f"{sku}: billed")


class Pages(Struct):
    titles: list[str]


@step
async def outline(titles: list[str]) -> list[str]:
    note(f"outline {len(titles)}")
    return titles


@step
async def write(title: str) -> str:
    note(f"write {title}")
    return f"{title}."


book = Graph("past-book", input=Pages, version="1")
book.node("outline", outline)
book.node("write", write, input={"title": "branch.item"})
book.node("approve", human("past-pages", title="{{ branch.item }}", schema=dict[str, bool]))
book.node("print", do, input={"what": "'print ' + string(size(state.pages))"})
book.edge("outline", "write", foreach="nodes.outline")
book.edge("write", "approve")
book.edge("approve", "print", join=all_of(), merge=append("state.pages"))
book.output({"pages": "state.pages", "printed": "nodes.print"})

ALL: list[Workflow[Any, Any] | Operation[Any]] = [
    waits_for_an_event,
    waits_for_either,
    sleeps,
    dies_in_a_step,
    waits_for_an_attempt,
    fails,
    has_children,
    continues,
    has_compensations,
    shows_itself,
    asks_somebody,
    packs,
    emits,
    place,
    pick,
    bill,
    book,
]
