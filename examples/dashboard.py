"""A lively little shop to look at: functions, graphs and operations, some of which fail, wait, or ask somebody.

python examples/dashboard.py [port]        then open the address that it prints; Ctrl-C ends it
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure import (
    Engine,
    Event,
    Limits,
    Retry,
    TimeReached,
    current_step,
    first,
    publish,
    sleep,
    start,
    step,
    stream,
    timer,
)
from perdure import workflow as durable
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.dashboard import dashboard
from perdure.graph import Graph, all_of, append, artifact, assign, human
from perdure.http import serving

# ---------------------------------------------------------------------------------------------------------------------
# Functions: an order is reserved, charged and packed; some cards are declined, some customers never pay.


class Paid(Event, on_target_terminated="dead_letter"):
    amount: int


class CardDeclined(Exception):
    pass


@step
async def reserve(order: str) -> str:
    await asyncio.sleep(random.uniform(0.05, 0.4))
    return f"shelf {random.randint(1, 40)}"


@step(retry=Retry(attempts=3, initial=timedelta(milliseconds=300)))
async def charge(order: str, cents: int) -> str:
    await asyncio.sleep(random.uniform(0.1, 0.6))
    if cents % 4 == 0:
        raise CardDeclined(f"the bank declined {cents / 100:.2f} for {order}")
    return f"payment {current_step().idempotency_key}"


@step
async def pack(order: str) -> None:
    for number in range(1, 4):
        await asyncio.sleep(random.uniform(0.1, 0.3))
        current_step().append("log", f"parcel {number} of {order} is packed")
    current_step().stage(f"{order}.txt", f"Delivery note for {order}\n")


@durable
async def send_receipt(order: str) -> str:
    await sleep(random.choice([1, 2, 5]))
    return f"receipt for {order}"


@durable
async def checkout(order: str, cents: int) -> str:
    await publish("state", "reserving")
    shelf = await reserve(order)
    await publish("state", "charging")
    payment = await charge(order, cents)
    await publish("state", "packing")
    await pack(order)
    await start(send_receipt(order), detached=True)
    return f"{order} from {shelf}, {payment}"


@durable
async def invoice(order: str) -> str:
    await stream("log").append(f"{order} was sent an invoice")
    match await first(Paid, timer(seconds=45)):
        case Paid(amount=amount):
            return f"paid {amount}"
        case TimeReached():
            return "reminded"


# ---------------------------------------------------------------------------------------------------------------------
# A graph: branches for each question, a person who decides, an artifact.


class Verdict(Struct):
    publish: bool
    remark: str = ""


@step
async def make_plan(topic: str) -> dict[str, list[str]]:
    return {"queries": [f"what are {topic}", f"who studies {topic}", f"when do {topic} turn"]}


@step
async def look_up(query: str) -> str:
    await asyncio.sleep(random.uniform(0.5, 2.5))
    return f"a note on {query}"


research = Graph("research")
research.node("plan", make_plan)
research.node("search", look_up, input={"query": "branch.item"})
research.node("review", human("reviews", title="Publish the report on {{ input.topic }}?", schema=Verdict))
research.node(
    "report", artifact("report on {{ input.topic }}", template="{% for n in state.notes %}{{ n }}\n{% endfor %}")
)
research.node("shelve", assign({"output.said": "'kept: ' + nodes.review.remark"}))
research.edge("plan", "search", foreach="nodes.plan.queries")
research.edge("search", "review", join=all_of(), merge=append("state.notes"))
research.edge("review", "report", when="nodes.review.publish")
research.edge("review", "shelve", priority=1)

# ---------------------------------------------------------------------------------------------------------------------
# Operations: three services that undo together what one of them could not do.


class Trip(Struct):
    city: str
    price: int


class Seat(Struct):
    city: str


class Bill(Struct):
    amount: int


trips, flights, bills = Topic("trips", Trip), Topic("flights", Seat), Topic("bills", Bill)
book = Operation("book-trip", trips)
fly = Operation("reserve-seat", flights)
bill = Operation("bill-customer", bills)


@book.step
async def ask_for_all(scope: Scope, trip: Trip) -> None:
    await scope.emit(flights, Seat(city=trip.city))
    await scope.emit(bills, Bill(amount=trip.price))


@ask_for_all.rollback
async def apologise(scope: Scope, trip: Trip, cause: Failure) -> None:
    await asyncio.sleep(0.3)


@book.step
async def confirm(scope: Scope, trip: Trip) -> None:
    await asyncio.sleep(0.2)


@fly.step
async def hold_seat(scope: Scope, seat: Seat) -> None:
    await asyncio.sleep(random.uniform(0.2, 0.8))


@hold_seat.rollback
async def free_seat(scope: Scope, seat: Seat, cause: Failure) -> None:
    await asyncio.sleep(1)


@bill.step
async def authorise(scope: Scope, wanted: Bill) -> None:
    await asyncio.sleep(random.uniform(0.2, 0.8))
    if wanted.amount > 900:
        raise CardDeclined(f"{wanted.amount} is more than the card allows")


# ---------------------------------------------------------------------------------------------------------------------
# Customers.


async def be_a_customer(engine: Engine, number: int) -> None:
    match number % 7:
        case 0:
            await engine.emit(
                trips, Trip(city=random.choice(["Lisbon", "Oslo", "Kyoto"]), price=random.randint(100, 1_200))
            )
        case 1 if len(await engine.tasks.list(status="open", limit=10)) < 4:
            topic = random.choice(["tides", "storms", "comets"])
            await engine.start("research", {"input": {"topic": topic}}, tags={"topic": topic})
        case 2:
            run = await engine.start(invoice(f"o-{number}"), id=f"invoice-{number}", tags={"tenant": "acme"})
            if random.random() < 0.7:
                await asyncio.sleep(random.uniform(1, 10))
                with suppress(Exception):  # It may have been cancelled meanwhile, by whoever looks at it.
                    await engine.send(Paid(amount=random.randint(5, 50)), to=run.id)
        case _:
            tags = {"tenant": random.choice(["acme", "umbrella"])}
            await engine.start(checkout(f"o-{number}", random.randint(100, 9_999)), id=f"o-{number}", tags=tags)


async def be_busy(engine: Engine) -> None:
    visits: set[asyncio.Task[Any]] = set()
    number = 0
    while True:
        number += 1
        visit = asyncio.create_task(be_a_customer(engine, number))
        visits.add(visit)
        visit.add_done_callback(visits.discard)
        await asyncio.sleep(0.05 if number < 20 else random.expovariate(1.2))


async def leave_a_dead_letter(engine: Engine) -> None:
    await engine.start(send_receipt("o-0"), id="o-0")
    await engine.send(Paid(amount=7), to="o-0")
    await engine.handle("o-0").cancel(reason="the customer changed their mind", actor="ann")


async def main(port: int) -> None:
    store = Path(tempfile.mkdtemp(prefix="perdure-ui-")) / "shop.db"
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Engine(f"sqlite:///{store}", limits=Limits(grace_s=1)) as engine:
        serve = serving(engine, port=port, pages=dashboard([research]))
        try:
            url = await serve.__aenter__()
        except OSError:  # The port is taken: any other will do.
            serve = serving(engine, port=0, pages=dashboard([research]))
            url = await serve.__aenter__()
        await leave_a_dead_letter(engine)
        busy = asyncio.create_task(be_busy(engine))
        print(f"the dashboard is at {url}/ui   (Ctrl-C ends it; the store is {store})", flush=True)
        await stop.wait()
        busy.cancel()
        await serve.__aexit__(None, None, None)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8080))
