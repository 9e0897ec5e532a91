"""What a run waits for when its code changes: nothing that is outstanding is handed to something else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from perdure import (
    Event,
    NamedEvent,
    Retry,
    Workflow,
    current_step,
    event,
    first,
    receive,
    run_of,
    sleep,
    start,
    step,
    task,
    timer,
    workflow,
)
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)


class Paid(Event):
    order: str


class Refunded(Event):
    order: str


@workflow
async def packs() -> str:
    return f"packed {await receive('box')}"


@workflow
async def ships() -> str:
    return f"shipped {await receive('box')}"


@step(retry=Retry(attempts=3, initial=HOUR))
async def charge() -> str:
    if current_step().attempt == 1:
        raise ConnectionError("try again")
    return "charged"


@step(retry=Retry(attempts=3, initial=HOUR))
async def refund() -> str:
    return "refunded"


Body = Callable[[], Awaitable[Any]]


async def paid_or_refunded() -> str:
    return type(await first(Paid, Refunded)).__name__


async def refunded_or_paid() -> str:
    return type(await first(Refunded, Paid)).__name__


async def paid() -> str:
    return type(await receive(Paid)).__name__


async def paid_within_an_hour() -> str:
    return type(await first(Paid, timer(HOUR))).__name__


async def paid_within_two_hours() -> str:
    return type(await first(Paid, timer(2 * HOUR))).__name__


async def refunded() -> str:
    return type(await receive(Refunded)).__name__


async def paid_for_one() -> str:
    return (await receive(Paid, where={"order": "1"})).order


async def paid_for_two() -> str:
    return (await receive(Paid, where={"order": "2"})).order


async def sleeps() -> str:
    await sleep(HOUR)
    return "slept"


async def sleeps_like_asyncio() -> str:
    await asyncio.sleep(3600)
    return "slept"


async def child_packs() -> str:
    return await packs()


async def child_ships() -> str:
    return await ships()


async def end_of_x() -> str:
    ended = await first(run_of("x"))
    return str(ended.run_id)


async def end_of_y() -> str:
    ended = await first(run_of("y"))
    return str(ended.run_id)


async def asks_the_desk() -> str:
    return await task(queue="desk", schema=str)


async def asks_the_bank() -> str:
    return await task(queue="bank", schema=str)


async def charges() -> str:
    return await charge()


async def refunds() -> str:
    return await refund()


async def both() -> str:
    paid, refunded = await asyncio.gather(receive(Paid), receive(Refunded))
    return f"{paid.order} {refunded.order}"


async def one_of_both() -> str:
    (paid,) = await asyncio.gather(receive(Paid))
    return paid.order


async def nothing() -> str:
    return "at once"


CHANGES: list[tuple[Body, Body, str, str]] = [
    (paid_or_refunded, refunded_or_paid, "event 'Paid' or event 'Refunded'", "event 'Refunded' or event 'Paid'"),
    (paid, refunded, "event 'Paid'", "event 'Refunded'"),
    (paid, paid_within_an_hour, "event 'Paid'", "event 'Paid' or timer 'timer'"),
    (paid_within_an_hour, paid, "event 'Paid' or timer 'timer'", "event 'Paid'"),
    (paid_for_one, paid_for_two, "event 'Paid' where order=\"1\"", "event 'Paid' where order=\"2\""),
    (paid, asks_the_desk, "event 'Paid'", "a task of queue 'desk'"),
    (paid, charges, "event 'Paid'", "step 'charge'"),
    (paid, sleeps, "event 'Paid'", "timer 'sleep'"),
    (paid, nothing, "event 'Paid'", "nothing: it ends"),
    (sleeps, paid, "timer 'sleep'", "event 'Paid'"),
    (sleeps, sleeps_like_asyncio, "timer 'sleep'", "timer 'timer'"),
    (child_packs, child_ships, "child 'packs'", "child 'ships'"),
    (child_packs, paid, "child 'packs'", "event 'Paid'"),
    (end_of_x, end_of_y, "run 'x'", "run 'y'"),
    (asks_the_desk, asks_the_bank, "a task of queue 'desk'", "a task of queue 'bank'"),
    (asks_the_desk, paid, "a task of queue 'desk'", "event 'Paid'"),
    (charges, refunds, "step 'charge'", "step 'refund'"),
    (charges, paid, "step 'charge'", "event 'Paid'"),
    (both, one_of_both, "event 'Refunded'", "nothing"),
]


@cache
def of(body: Body) -> Workflow[Any, Any]:
    """A workflow that does this; all of them have one name."""
    return workflow(name="changing")(body)  # type: ignore[arg-type]


OTHERS = [packs, ships]


async def bring_about(env: Environment, body: Body) -> None:
    """Have happen what the run waits for."""
    await env.quiet()
    if body is asks_the_desk:
        (one,) = await env.engine.tasks.list(status="open")
        await env.engine.tasks.answer(one.id, "yes")
    elif body is child_packs:
        (child,) = (await env.engine.runs.list(parent="r")).runs
        await env.engine.send(NamedEvent("box", "it"), to=child.id)
    elif body is end_of_x:
        await env.engine.send(NamedEvent("box", "it"), to="x")
    elif body in (sleeps, charges):
        await env.advance(2 * HOUR)
    else:
        await env.engine.send(Paid(order="1"), to="r")
        await env.engine.send(Refunded(order="1"), to="r")


RESULTS = {
    "paid_or_refunded": "Paid", "paid": "Paid", "paid_within_an_hour": "Paid", "paid_for_one": "1", "sleeps": "slept",
    "child_packs": "packed it", "end_of_x": "x", "asks_the_desk": "yes", "charges": "charged", "both": "1 1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "was", "now"), CHANGES, ids=[f"{old.__name__}-{new.__name__}" for old, new, _, _ in CHANGES]
)
async def test_a_wait_that_has_changed_blocks_and_goes_on_with_the_code_that_it_fits(
    source: StoreSource, old: Body, new: Body, was: str, now: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Environment([of(old), *OTHERS], source, autojump_s=None) as env:
        for other in ("x", "y"):
            await env.engine.start(packs(), id=other)
        await env.engine.start(of(old)(), id="r")
        await env.quiet()
        clock = env.clock
    caplog.set_level(logging.WARNING, "perdure")
    async with Environment([of(new), *OTHERS], source, clock=clock, autojump_s=None) as env:
        await env.engine.handle("r").pause()
        await env.engine.handle("r").resume()
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is not None
        assert view.hold.kind == "blocked"
        assert f"waits for {was}, the code asks for {now}" in view.hold.reason
        assert [line[0] for line in view.hold.details.splitlines()] == ["-", "+"]
        assert any("run r of" in line.getMessage() and was in line.getMessage() for line in caplog.records)
        await env.check()
    async with Environment([of(old), *OTHERS], source, clock=clock, autojump_s=None) as env:
        await bring_about(env, old)
        assert await env.engine.handle("r").result() == RESULTS[old.__name__]
        await env.check()


async def end_of_x_and_paid() -> str:
    ended = await first(run_of("x"))
    return f"{ended.run_id} {(await receive(Paid)).order}"


async def end_of_y_and_paid() -> str:
    ended = await first(run_of("y"))
    return f"{ended.run_id} {(await receive(Paid)).order}"


async def refunded_one_and_paid() -> str:
    refunded = await first(event(Refunded, where={"order": "1"}), timer(1))
    return f"{refunded.order} {(await receive(Paid)).order}" if isinstance(refunded, Refunded) else "late"


async def refunded_two_and_paid() -> str:
    refunded = await first(event(Refunded, where={"order": "2"}), timer(1))
    return f"{refunded.order} {(await receive(Paid)).order}" if isinstance(refunded, Refunded) else "late"


async def starts_p_and_paid() -> str:
    return f"{(await start(packs(), id='p')).id} {(await receive(Paid)).order}"


async def starts_q_and_paid() -> str:
    return f"{(await start(packs(), id='q')).id} {(await receive(Paid)).order}"


@pytest.mark.parametrize(
    ("old", "new", "was", "result"),
    [
        (end_of_x_and_paid, end_of_y_and_paid, "was that of run 'x', not of 'y'", "x 1"),
        (refunded_one_and_paid, refunded_two_and_paid, 'has order="1", not order="2"', "1 1"),
        (starts_p_and_paid, starts_q_and_paid, "with the id 'p', not 'q'", "p 1"),
    ],
)
async def test_what_the_journal_has_is_handed_to_nothing_else(
    source: StoreSource, old: Body, new: Body, was: str, result: str
) -> None:
    """Another run that was waited for, another filter of an event, another id of a child that was started."""
    async with Environment([of(old), *OTHERS], source, autojump_s=None) as env:
        await env.engine.start(packs(), id="x")
        await env.engine.send(NamedEvent("box", "it"), to="x")
        await env.engine.start(of(old)(), id="r")
        await env.engine.send(Refunded(order="1"), to="r")
        await env.quiet()
        clock = env.clock
    async with Environment([of(new), *OTHERS], source, clock=clock, autojump_s=None) as env:
        await env.engine.send(Paid(order="1"), to="r")
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is not None
        assert was in view.hold.reason
        await env.check()
    async with Environment([of(old), *OTHERS], source, clock=clock, autojump_s=None) as env:
        assert await env.engine.handle("r").result() == result
        await env.check()


@pytest.mark.parametrize(
    ("old", "new"),
    [(paid_or_refunded, refunded_or_paid), (paid, refunded), (child_packs, child_ships), (asks_the_desk, paid)],
)
async def test_what_wins_while_other_code_is_there_is_kept_for_the_code_that_it_fits(
    source: StoreSource, old: Body, new: Body
) -> None:
    async with Environment([of(old), *OTHERS], source, autojump_s=None) as env:
        await env.engine.start(of(old)(), id="r")
        await env.quiet()
        clock = env.clock
    async with Environment([of(new), *OTHERS], source, clock=clock, autojump_s=None) as env:
        await bring_about(env, old)
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, view.status) == ("blocked", "suspended")
        await env.check()
    async with Environment([of(old), *OTHERS], source, clock=clock) as env:
        assert await env.engine.handle("r").result() == RESULTS[old.__name__]
        await env.check()


async def test_another_duration_counts_for_the_next_wait_and_not_for_the_one_that_has_begun(
    source: StoreSource,
) -> None:
    async with Environment([of(paid_within_an_hour)], source, autojump_s=None) as env:
        await env.engine.start(of(paid_within_an_hour)(), id="r")
        await env.quiet()
        clock = env.clock
    async with Environment([of(paid_within_two_hours)], source, clock=clock, autojump_s=None) as env:
        await env.engine.handle("r").pause()
        await env.engine.handle("r").resume()
        await env.advance(timedelta(minutes=61))
        assert await env.engine.handle("r").result() == "TimeReached"


@workflow(name="compares")
async def compares() -> str:
    """The same code, of which every kind of wait is outstanding at once."""

    async def late() -> str:
        async with asyncio.timeout(7200):
            return str(await receive("never", timeout=HOUR * 5))

    handles = [
        asyncio.ensure_future(one)
        for one in (
            receive(Paid, where={"order": "1"}), first(Paid, Refunded, timer(2 * HOUR)), sleep(HOUR),
            asyncio.sleep(3600), packs(), first(run_of("x"), event("e")),
            task(queue="desk", timeout=HOUR), charge(), late(),
        )
    ]  # fmt: skip
    done, _ = await asyncio.wait(handles)
    return str(len(done))


async def test_the_same_code_fits_all_that_it_waits_for(source: StoreSource) -> None:
    async with Environment([compares, *OTHERS], source, autojump_s=None) as env:
        await env.engine.start(packs(), id="x")
        await env.engine.start(compares(), id="r")
        for _ in range(5):
            await env.advance(timedelta(minutes=20))
            await env.restart()
            view = await env.engine.runs.get("r")
            assert view is not None
            assert view.hold is None
        await env.engine.handle("r").pause()
        await env.engine.handle("r").resume()
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is None, view.hold
        await env.check()
