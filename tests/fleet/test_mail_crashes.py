"""What one engine asks of another's run is done once, and answered, wherever one of them dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Engine, Event, receive, sleep, workflow
from perdure.errors import RunCancelled, RunNotWaiting
from perdure.kernel.batch import Batch
from perdure.kernel.rules.delivery import Delivered
from perdure.kernel.status import Status
from perdure.ports import Store
from perdure.testing.control import kill
from perdure.testing.faults import CRASH_POINTS, Fault, FaultyStore, Point
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import Fleet, Sailing, until


class Paid(Event):
    amount: int


class Shipped(Event):
    order: str


@workflow
async def counts() -> list[int]:
    """Whatever comes twice is counted twice."""
    amounts: list[int] = []
    while (paid := await receive(Paid)).amount:
        amounts.append(paid.amount)
    return amounts


@workflow
async def sleeps() -> None:
    await sleep(3600)


def answers_mail(batch: Batch) -> bool:
    return bool(batch.mail_done)


class Mortal:
    """What is killed once it is there."""

    engine: Engine

    def kill(self) -> None:
        kill(self.engine)


async def doomed(ships: Fleet, make: Callable[[], Store], fault: Fault) -> Engine:
    """An engine that its fault kills."""
    mortal = Mortal()
    mortal.engine = await ships.engine([counts, sleeps], store=FaultyStore(make(), fault, mortal.kill))
    return mortal.engine


async def suspended(engine: Engine, run_id: str) -> None:
    async def is_asleep() -> bool:
        return await engine.handle(run_id).status() == Status.SUSPENDED

    await until(is_asleep)


async def sends(engine: Engine) -> None:
    assert await engine.send(Paid(amount=7), to="r") == Delivered(("r",))
    await engine.send(Paid(amount=0), to="r")
    assert await engine.handle("r").result() == [7]


async def cancels(engine: Engine) -> None:
    assert await engine.handle("r").cancel(reason="from elsewhere")
    with pytest.raises(RunCancelled, match="from elsewhere"):
        await engine.handle("r").result()


async def updates(engine: Engine) -> None:
    after = await engine.handle("r").update(tags={"by": "another"})
    assert after.tags == {"by": "another"}
    await engine.send(Paid(amount=0), to="r")
    assert await engine.handle("r").result() == []


async def is_refused(engine: Engine) -> None:
    with pytest.raises(RunNotWaiting):
        await engine.send(Shipped(order="o"), to="r", strict=True)
    await engine.send(Paid(amount=0), to="r")
    assert await engine.handle("r").result() == []


@pytest.mark.parametrize("ask", [sends, cancels, updates, is_refused])
@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_the_owner_dies_around_the_commit_that_answers(
    fleet: Sailing, make_store: Callable[[], Store], point: Point, ask: Callable[[Engine], Awaitable[None]]
) -> None:
    fault = Fault(point, when=answers_mail)
    async with fleet() as ships:
        owner = await doomed(ships, make_store, fault)
        other = await ships.engine([counts, sleeps])
        await owner.start(counts(), id="r")
        await suspended(other, "r")
        await ask(other)
    assert fault.struck == 1


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_who_tells_another_that_its_run_has_won_dies_around_that_commit(
    fleet: Sailing, make_store: Callable[[], Store], point: Point
) -> None:
    # What tells of it is found inside the transaction, so it is the commit that brings the event.
    fault = Fault(point, when=lambda batch: bool(batch.keys))
    async with fleet() as ships:
        owner = await ships.engine([counts])
        await owner.start(counts(), id="r")
        await suspended(owner, "r")
        other = await doomed(ships, make_store, fault)
        sending = asyncio.ensure_future(other.send(Paid(amount=7), key="once"))
        await asyncio.wait([sending])
        # Whoever does not know whether it was sent sends it again.
        await owner.send(Paid(amount=7), key="once")
        await owner.send(Paid(amount=0))
        assert await owner.handle("r").result() == [7]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    assert fault.struck == 1


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_who_is_told_that_its_run_has_won_dies_around_the_commit_that_takes_note(
    fleet: Sailing, make_store: Callable[[], Store], point: Point
) -> None:
    fault = Fault(point, when=answers_mail)
    async with fleet() as ships:
        owner = await doomed(ships, make_store, fault)
        other = await ships.engine([counts])
        await owner.start(counts(), id="r")
        await suspended(other, "r")
        assert await other.send(Paid(amount=7)) == Delivered(("r",))
        await other.send(Paid(amount=0))
        assert await other.handle("r").result() == [7]
    assert fault.struck == 1


class DiesCollecting(StoreProxy):
    """Its process dies when an answer is there: before it is taken out, or after."""

    def __init__(self, inner: Store, died: Callable[[], object], *, taken: bool) -> None:
        super().__init__(inner)
        self._died = died
        self._taken = taken

    async def collect(self, slots: Any) -> dict[str, str]:
        if self._taken:
            found = await super().collect(slots)
            if not found:
                return found
        self._died()
        never: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        return await never


@pytest.mark.parametrize("taken", [False, True])
async def test_who_asks_dies_around_taking_the_answer(
    fleet: Sailing, make_store: Callable[[], Store], *, taken: bool
) -> None:
    async with fleet() as ships:
        owner = await ships.engine([counts])
        await owner.start(counts(), id="r")
        await suspended(owner, "r")
        mortal = Mortal()
        mortal.engine = await ships.engine([], store=DiesCollecting(make_store(), mortal.kill, taken=taken))
        asking = asyncio.ensure_future(mortal.engine.send(Paid(amount=7), to="r", key="once"))
        await asyncio.wait([asking])
        await owner.send(Paid(amount=7), to="r", key="once")
        await owner.send(Paid(amount=0), to="r")
        assert await owner.handle("r").result() == [7]
        await asyncio.gather(asking, return_exceptions=True)
