"""What the fleet does: functions with steps, events, timers and children, graphs, operations with rollback, and in each
of them transactional steps that write to a table of the user's own.

Every body first says that it begins. What must come of a run follows from its number alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from msgspec import Struct

from perdure import (
    Event,
    Retry,
    compensate,
    current_step,
    first,
    receive,
    resource,
    sleep,
    start,
    step,
    timer,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.graph import Graph, all_of, append
from tests.chaos import ledger
from tests.chaos.record import BEGAN, LATE, UNSEEN, Record
from tests.chaos.witness import EFFECTS, FAULTS, PostgresWitness, SqliteWitness

LOOK_WITHIN_S = 1.0  # after which the process may have been stopped in between
NEVER = Retry.never()  # One failure of a step that is none of its own would fail the run.
KINDS = ("settles", "is_paid", "has_children", "gives_up", "graph", "order", "doomed_order", ledger.WORKFLOW)
NOTES = 3  # at once, in one run
UNDO = "undo "  # before the name of a step whose rollback it is
DOOMED = 1_000_000  # Numbers from here on are those of orders that cannot be packed.


class Paid(Event):
    amount: int


class Order(Struct):
    number: int


ORDERS, PARCELS, BILLS = Topic("orders", Order), Topic("parcels", Order), Topic("bills", Order)


class Surroundings:
    """What bodies need of their process."""

    def __init__(self, record: Record, witness: SqliteWitness | PostgresWitness) -> None:
        self.record = record
        self.witness = witness


class Body:
    """A body that begins: says so, and looks whether it should have."""

    def __init__(self, *, operation_step: str = "", undoes: bool = False) -> None:
        me = current_step()
        name = f"{UNDO}{me.name}" if undoes else me.name
        self._at = time.monotonic()
        self._step = operation_step
        self._where: dict[str, Any] = {"name": name, "position": me.position, "attempt": me.attempt}
        self._run_id = me.run_id
        self._around = resource(Surroundings)
        self._around.record.write(BEGAN, me.run_id, at=self._at, **self._where)

    def look(self) -> None:
        try:
            is_done: Any = self._around.witness.is_done(self._run_id, self._where["position"], self._step)
        except FAULTS:
            is_done = None
        self._tell(is_done)

    async def look_async(self) -> None:
        try:
            is_done: Any = self._around.witness.is_done(self._run_id, self._where["position"], self._step)
            if not isinstance(is_done, bool):
                is_done = await is_done
        except FAULTS:
            is_done = None
        self._tell(is_done)

    def _tell(self, is_done: bool | None) -> None:
        if is_done is None or time.monotonic() - self._at > LOOK_WITHIN_S:
            self._around.record.write(UNSEEN, self._run_id, **self._where)
        elif is_done:
            self._around.record.write(LATE, self._run_id, **self._where)


def values(undoes: bool) -> tuple[Any, ...]:
    me = current_step()
    return (me.run_id, f"{UNDO}{me.name}" if undoes else me.name, me.position, me.attempt, os.getpid())


INSERT = f"insert into {EFFECTS} (run_id, name, position, attempt, pid) values "


async def write_async(*, undoes: bool = False) -> None:
    await current_step().connection.execute(f"{INSERT} ($1, $2, $3, $4, $5)", *values(undoes))


def write_plain(*, undoes: bool = False) -> None:
    current_step().connection.execute(f"{INSERT} (?, ?, ?, ?, ?)", values(undoes))


@step(retry=NEVER)
async def add(number: int) -> int:
    await Body().look_async()
    await asyncio.sleep(number * 37 % 100 / 1000)  # long enough to be caught in it
    return number + 1


@step(retry=NEVER)
def add_in_thread(number: int) -> int:
    body = Body()
    if isinstance(resource(Surroundings).witness, SqliteWitness):
        body.look()
    time.sleep(number * 13 % 30 / 1000)
    return number + 1


@step(retry=NEVER)
async def refuse() -> None:
    await Body().look_async()
    raise LookupError("as it is to be")


class Work:
    """All workflows, as the store's kind of transactional step wants them."""

    def __init__(self, *, is_plain: bool) -> None:
        def note_plain(number: int) -> int:
            Body().look()
            write_plain()
            return number + 1

        async def note_async(number: int) -> int:
            await Body().look_async()
            await write_async()
            await asyncio.sleep(number * 31 % 300 / 1000)
            return number + 1

        def undo_plain(number: int) -> None:
            Body().look()
            write_plain()

        async def undo_async(number: int) -> None:
            await Body().look_async()
            await write_async()

        note: Any = step(transactional=True, name="note", retry=NEVER)(note_plain if is_plain else note_async)
        undo: Any = step(transactional=True, name="undo", retry=NEVER)(undo_plain if is_plain else undo_async)
        self.note, self.undo = note, undo
        entering = ledger.enter_plain if is_plain else ledger.enter_async
        self.enter: Any = step(transactional=True, name=ledger.STEP, retry=NEVER)(entering)
        self.functions = self._functions()
        self.graph = self._graph()
        self.operations = _operations(is_plain=is_plain)

    @property
    def workflows(self) -> list[Any]:
        return [*self.functions.values(), self.graph, *self.operations]

    def _functions(self) -> dict[str, Any]:
        note, undo, enter = self.note, self.undo, self.enter

        @workflow(name="settles")
        async def settles(number: int) -> int:
            number = await add(number)
            await sleep(0.2)
            number = await note(number)
            many = [note(number) for _ in range(NOTES)]  # more than there are connections for
            return sum(await asyncio.gather(add_in_thread(number), *many))

        @workflow(name="is_paid")
        async def is_paid(number: int) -> int:
            number = await note(number)
            paid = await receive(Paid)
            found = await first(Paid, timer(seconds=0.3))
            assert not isinstance(found, Paid)
            return await add(number + paid.amount)

        @workflow(name="helps")
        async def helps(number: int) -> int:
            return int(await note(await add(number)))

        @workflow(name="has_children")
        async def has_children(number: int) -> int:
            await start(helps(number), detached=True)
            one, other = await asyncio.gather(helps(number), helps(number))
            return await add(one + other)

        @workflow(name="gives_up")
        async def gives_up(number: int) -> int:
            await note(number)
            await compensate(undo(number))
            await refuse()
            return number

        @workflow(name=ledger.WORKFLOW)
        async def keeps_ledger(number: int) -> int:
            for _ in range(ledger.ENTRIES):
                await enter(number)
            return number

        return {one.name: one for one in (settles, is_paid, helps, has_children, gives_up, keeps_ledger)}

    def _graph(self) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("graph", input=dict[str, Any])
        begin = graph.node("begin", add, input={"number": "input.number"})
        each = graph.node("each", self.note, input={"number": "branch.item"})
        last = graph.node("last", self.note, input={"number": "input.number"})
        graph.edge(begin, each, foreach="input.items")
        graph.edge(each, last, join=all_of(), merge=append("state.noted"))
        graph.output({"noted": "state.noted", "last": "nodes.last"})
        return graph


def _operations(*, is_plain: bool) -> list[Any]:
    """An order is placed, and then a parcel and a bill are made. The parcel of a doomed order cannot be."""

    def plain(scope: Scope, order: Order) -> None:
        Body(operation_step=current_step().name).look()
        write_plain()

    async def awaited(scope: Scope, order: Order) -> None:
        await Body(operation_step=current_step().name).look_async()
        await write_async()

    def undo_plain(scope: Scope, order: Order, cause: Failure) -> None:
        Body(undoes=True)
        write_plain(undoes=True)

    async def undo_async(scope: Scope, order: Order, cause: Failure) -> None:
        Body(undoes=True)
        await write_async(undoes=True)

    def add_noted(operation: Operation[Order], name: str) -> None:
        made: Any = operation.step(transactional=True, name=name)(plain if is_plain else awaited)
        made.rollback(undo_plain if is_plain else undo_async)

    place, pack, bill = Operation("place", ORDERS), Operation("pack", PARCELS), Operation("bill", BILLS)
    add_noted(place, "reserve")

    @place.step(name="hand out")
    async def hand_out(scope: Scope, order: Order) -> None:
        await Body(operation_step="hand out").look_async()
        scope.emit(PARCELS, order)
        scope.emit(BILLS, order)

    add_noted(place, "close")
    add_noted(bill, "write")
    add_noted(pack, "take")

    @pack.step(name="wrap")
    async def wrap(scope: Scope, order: Order) -> None:
        await Body(operation_step="wrap").look_async()
        if order.number >= DOOMED:
            raise LookupError("it cannot be packed, as it is to be")

    return [place, pack, bill]
