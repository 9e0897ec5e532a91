"""Events as workflow code sees them: who gets which, in which order, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Delivered,
    Event,
    NamedEvent,
    Queued,
    Retry,
    TimeReached,
    Workflow,
    event,
    first,
    receive,
    run_of,
    sleep,
    step,
    timer,
    workflow,
)
from perdure.errors import InvalidArguments, Misuse
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)


class Paid(Event, event_name="payments.paid", expire_after=timedelta(days=7)):
    amount: int
    order: str = ""


class Shipped(Event):
    parcel: str


class Fleeting(Event, expire_after=HOUR):
    number: int


class News(Event, consume_on_read=False):
    number: int


class Since(Event, consume_on_read=False, delivery="after_create", expire_after=timedelta(days=1)):
    number: int


class Archive(Event, consume_on_read=False, delivery="all", expire_after=timedelta(days=1)):
    number: int


RETAINED: dict[str, type[Any]] = {"after_wait": News, "after_create": Since, "all": Archive}


@step(retry=Retry.never())
async def note(text: str) -> str:
    return text


@workflow
async def pays() -> int:
    return (await receive(Paid)).amount


@workflow
async def pays_twice() -> list[int]:
    return [(await receive(Paid)).amount, (await receive(Paid)).amount]


@workflow
async def pays_after_a_day() -> int:
    await sleep(timedelta(days=1))
    return (await receive(Paid)).amount


@workflow
async def pays_for(order: str) -> int:
    return (await receive(Paid, where={"order": order})).amount


@workflow
async def pays_in_time() -> str:
    try:
        return str((await receive(Paid, timeout=HOUR)).amount)
    except TimeoutError as late:
        return str(late)


@workflow
async def catches(after_s: float) -> list[Any]:
    await sleep(after_s)
    got = await first(Fleeting, timer(HOUR))
    return ["nothing"] if isinstance(got, TimeReached) else [got.number]


@workflow
async def reads(kind: str, times: int) -> list[Any]:
    """Reads a retained event so often, or until an hour goes by without one."""
    got: list[Any] = []
    for _ in range(times):
        one: Any = await first(RETAINED[kind], timer(HOUR))
        got.append("nothing" if isinstance(one, TimeReached) else one.number)
    return got


@workflow
async def later(kind: str) -> list[Any]:
    await sleep(60)
    got: list[Any] = []
    for _ in range(3):
        one: Any = await first(RETAINED[kind], timer(HOUR))
        got.append("nothing" if isinstance(one, TimeReached) else one.number)
    return got


@workflow
async def reads_in_two_tasks() -> list[Any]:
    async def read() -> Any:
        one: Any = await first(Archive, timer(HOUR))
        return "nothing" if isinstance(one, TimeReached) else one.number

    return list(await asyncio.gather(read(), read()))


@workflow
async def either() -> list[Any]:
    """What comes first, and then the other."""
    match await first(Paid, Shipped, timer(hours=1)):
        case Paid(amount=amount):
            return ["paid", amount, (await receive(Shipped)).parcel]
        case Shipped(parcel=parcel):
            return ["shipped", parcel, (await receive(Paid)).amount]
        case TimeReached():
            return ["late", (await receive(Paid)).amount]


@workflow
async def step_and_event() -> list[Any]:
    """A step and a wait asked for in one go, first of all."""
    return list(await asyncio.gather(note("done"), receive(Paid, where={"order": "o"})))


@workflow
async def in_two_tasks() -> list[int]:
    async def amount() -> int:
        return (await receive(Paid)).amount

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(amount()) for _ in range(3)]
    return [task.result() for task in tasks]


@workflow
async def named(name: str) -> Any:
    return await receive(name)


@workflow
async def named_first(name: str) -> Any:
    return await first(event(name, where={"colour": "red"}))


@workflow
async def gives_up() -> str:
    """A wait that is withdrawn is nobody's any more."""
    try:
        async with asyncio.timeout(60):
            await receive(Paid)
    except TimeoutError:
        pass
    return (await receive(Shipped)).parcel


@workflow
async def waits_for_run_or_event(run_id: str) -> str:
    match await first(run_of(run_id), Paid):
        case Paid(amount=amount):
            return f"paid {amount}"
        case ended:
            return f"{ended.run_id} {ended.status}"


WORKFLOWS: list[Workflow[Any, Any]] = [
    pays, pays_twice, pays_after_a_day, pays_for, pays_in_time, catches, reads, later, reads_in_two_tasks,
    either, step_and_event, in_two_tasks, named, named_first, gives_up, waits_for_run_or_event,
]  # fmt: skip

Open = Callable[..., Environment]


@pytest.fixture
def opened(source: StoreSource) -> Open:
    return lambda **options: Environment(WORKFLOWS, source, **{"autojump_s": None, **options})


async def status(env: Environment, run_id: str) -> str:
    view = await env.engine.runs.get(run_id)
    assert view is not None
    return str(view.status)


# Early, late, expired.


async def test_an_early_event_waits_for_the_run_that_it_was_sent_to(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(pays_after_a_day(), id="r")
        assert isinstance(await env.engine.send(Paid(amount=7), to="r"), Queued)
        await env.restart()
        await env.advance(timedelta(days=1))
        assert await env.engine.handle(run.id).result() == 7
        await env.check()


async def test_an_early_broadcast_waits_for_somebody_to_want_it(opened: Open) -> None:
    async with opened() as env:
        assert isinstance(await env.engine.send(Paid(amount=7)), Queued)
        await env.restart()
        assert await env.engine.run(pays()) == 7
        assert await env.engine.events.pending() == []


async def test_a_run_that_waits_gets_the_event_at_once(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(pays(), id="r")
        await env.quiet()
        assert await env.engine.send(Paid(amount=7), to="r") == Delivered(("r",))
        assert await run.result() == 7


@pytest.mark.parametrize("to", ["r", None])
async def test_an_expired_event_is_never_delivered(opened: Open, to: str | None) -> None:
    async with opened() as env:
        run = await env.engine.start(catches(2 * 3600), id="r")
        await env.engine.send(Fleeting(number=1), to=to)
        await env.advance(4 * HOUR)
        assert await run.result() == ["nothing"]


@pytest.mark.parametrize("to", ["r", None])
async def test_an_event_is_delivered_until_it_expires(opened: Open, to: str | None) -> None:
    async with opened() as env:
        run = await env.engine.start(catches(3599), id="r")
        await env.engine.send(Fleeting(number=1), to=to)
        await env.advance(HOUR)
        assert await run.result() == [1]


async def test_what_has_won_a_wait_is_delivered_even_if_the_engine_is_away_until_it_expires(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(catches(0), id="r")
        await env.quiet()
        await env.engine.handle("r").pause()
        assert await env.engine.send(Fleeting(number=1), to="r") == Delivered(("r",))
        await env.advance(timedelta(days=3))
        await env.engine.events.purge()
        await env.engine.handle("r").resume()
        assert await env.engine.handle("r").result() == [1]


# Who gets it, and in which order.


async def test_each_of_many_waiters_gets_one_in_the_order_of_waiting(opened: Open) -> None:
    async with opened() as env:
        for number in range(5):
            await env.engine.start(pays(), id=f"r-{number}")
            await env.quiet()
        for number in range(5):
            assert await env.engine.send(Paid(amount=number)) == Delivered((f"r-{number}",))
        assert [await env.engine.handle(f"r-{n}").result() for n in range(5)] == list(range(5))


async def test_the_order_of_waiting_outlives_the_engine(opened: Open) -> None:
    async with opened() as env:
        for name in ("z", "a", "m"):
            await env.engine.start(pays(), id=name)
            await env.quiet()
        await env.restart()
        for number, name in enumerate(("z", "a", "m")):
            assert await env.engine.send(Paid(amount=number)) == Delivered((name,))


async def test_tasks_of_one_run_get_events_in_the_order_of_waiting_also_after_a_restart(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(in_two_tasks(), id="r")
        await env.quiet()
        await env.engine.send(Paid(amount=1), to="r")
        await env.restart()
        await env.engine.send(Paid(amount=2), to="r")
        await env.engine.send(Paid(amount=3))
        assert await env.engine.handle("r").result() == [1, 2, 3]


async def test_the_earliest_sent_is_read_first(opened: Open) -> None:
    async with opened() as env:
        for amount in (3, 1, 2):
            await env.engine.send(Paid(amount=amount))
        assert await env.engine.run(pays_twice()) == [3, 1]
        assert [view.value for view in await env.engine.events.pending()] == [{"amount": 2, "order": ""}]


async def test_what_was_sent_to_the_run_is_read_before_broadcasts(opened: Open) -> None:
    async with opened() as env:
        await env.engine.send(Paid(amount=1))
        run = await env.engine.start(pays_after_a_day(), id="r")
        await env.engine.send(Paid(amount=2), to="r")
        await env.advance(timedelta(days=1))
        assert await run.result() == 2
        assert [view.value["amount"] for view in await env.engine.events.pending()] == [1]


async def test_several_events_sent_to_one_run_are_read_in_order_also_across_a_restart(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(pays_twice(), id="r")
        await env.quiet()
        await asyncio.gather(*[env.engine.send(Paid(amount=n), to=run.id) for n in (1, 2, 3)])
        await env.restart()
        assert await env.engine.handle("r").result() == [1, 2]


async def test_where_chooses_by_the_events_fields(opened: Open) -> None:
    async with opened() as env:
        a = await env.engine.start(pays_for("a"), id="a")
        b = await env.engine.start(pays_for("b"), id="b")
        await env.quiet()
        assert isinstance(await env.engine.send(Paid(amount=0, order="c")), Queued)
        assert await env.engine.send(Paid(amount=1, order="b")) == Delivered(("b",))
        assert isinstance(await env.engine.send(Paid(amount=3, order="b"), to="a"), Queued)
        assert await env.engine.send(Paid(amount=2, order="a"), to="a") == Delivered(("a",))
        assert (await a.result(), await b.result()) == (2, 1)


async def test_where_finds_the_one_in_a_long_queue(opened: Open) -> None:
    async with opened() as env:
        await env.engine.send_many([Paid(amount=n, order=str(n)) for n in range(250)])
        assert await env.engine.run(pays_for("240")) == 240
        assert await env.engine.run(pays()) == 0


# Retained events.


async def test_all_who_wait_get_a_retained_event_once(opened: Open) -> None:
    async with opened() as env:
        for number in range(3):
            await env.engine.start(reads("after_wait", 2), id=f"r-{number}")
            await env.quiet()
        sent = await env.engine.send(News(number=1))
        assert sent == Delivered(("r-0", "r-1", "r-2"))
        await env.advance(2 * HOUR)
        assert [await env.engine.handle(f"r-{n}").result() for n in range(3)] == [[1, "nothing"]] * 3


@pytest.mark.parametrize(
    ("mode", "got"),
    [
        ("after_wait", ["nothing", "nothing", "nothing"]),
        ("after_create", [2, "nothing", "nothing"]),
        ("all", [1, 2, "nothing"]),
    ],
)
async def test_who_waits_later_gets_retained_events_by_their_delivery_mode(
    opened: Open, mode: str, got: list[Any]
) -> None:
    async with opened() as env:
        await env.engine.send(RETAINED[mode](number=1))
        run = await env.engine.start(later(mode), id="r")
        await env.engine.send(RETAINED[mode](number=2))
        await env.restart()
        await env.advance(timedelta(hours=5))
        assert await env.engine.handle(run.id).result() == got
        await env.check()


@pytest.mark.parametrize("mode", ["after_create", "all"])
async def test_an_expired_retained_event_is_not_given_to_who_waits_later(opened: Open, mode: str) -> None:
    async with opened() as env:
        await env.engine.start(reads(mode, 1), id="first")
        await env.engine.send(RETAINED[mode](number=1))
        assert await env.engine.handle("first").result() == [1]
        await env.advance(timedelta(days=1))
        run = await env.engine.start(reads("all", 1))
        await env.advance(HOUR)
        assert await run.result() == ["nothing"]


async def test_two_tasks_of_a_run_do_not_get_the_same_retained_event(opened: Open) -> None:
    async with opened() as env:
        await env.engine.send(Archive(number=1))
        run = await env.engine.start(reads_in_two_tasks())
        await env.advance(2 * HOUR)
        assert await run.result() == [1, "nothing"]
        other = await env.engine.start(reads_in_two_tasks())
        await env.quiet()
        await env.engine.send(Archive(number=2))
        await env.advance(2 * HOUR)
        assert await other.result() == [1, 2]
        await env.check()


# The first of several.


async def test_the_first_event_wins_and_the_others_stay_queued(opened: Open) -> None:
    async with opened() as env:
        await env.engine.send(Shipped(parcel="p"))
        await env.engine.send(Paid(amount=5))
        assert await env.engine.run(either()) == ["shipped", "p", 5]


async def test_the_winner_is_in_the_journal_and_wins_again_in_replay(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(either(), id="r")
        await env.quiet()
        await env.engine.send(Paid(amount=5), to="r")
        await env.quiet()
        await env.restart()
        await env.engine.send(Shipped(parcel="p"), to="r")
        assert await env.engine.handle(run.id).result() == ["paid", 5, "p"]
        journal = (await env.engine.handle("r").history()).journal
        assert [entry.name for entry in journal] == ["payments.paid or Shipped or timer", "Shipped"]
        await env.check()


async def test_the_timer_wins_when_nothing_comes_and_what_comes_later_is_queued(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(either(), id="r")
        await env.advance(HOUR)
        assert await env.engine.send(Paid(amount=6), to="r") == Delivered(("r",))
        assert await run.result() == ["late", 6]


async def test_a_timer_that_was_due_while_no_engine_was_there_fires_when_one_is(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(either(), id="r")
        await env.quiet()
        env.kill()
        env.clock.move_to(env.clock.now() + 2 * 3600 * 1_000_000)
        await env.restart()
        await env.quiet()
        await env.engine.send(Paid(amount=6), to="r")
        assert await env.engine.handle("r").result() == ["late", 6]


async def test_receive_with_a_timeout_raises_timeout_error(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(pays_in_time())
        await env.advance(HOUR)
        assert await run.result() == "no event 'payments.paid' came within 1:00:00"
        again = await env.engine.start(pays_in_time(), id="r")
        await env.engine.send(Paid(amount=3), to="r")
        assert await again.result() == "3"


async def test_a_withdrawn_wait_leaves_the_event_to_others(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(gives_up(), id="r")
        await env.advance(60)
        assert isinstance(await env.engine.send(Paid(amount=1)), Queued)
        await env.engine.send(Shipped(parcel="p"), to="r")
        assert await env.engine.handle("r").result() == "p"
        assert await env.engine.run(pays()) == 1


async def test_a_step_and_a_wait_may_be_the_first_thing_that_is_asked_for(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(step_and_event(), id="r")
        await env.quiet()
        await env.engine.send(Paid(amount=4, order="o"), to="r")
        assert await run.result() == ["done", {"amount": 4, "order": "o"}]
        await env.check()


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_end_of_a_run_or_an_event_whichever_comes_first(opened: Open, restarts: bool) -> None:
    async with opened() as env:
        await env.engine.start(pays_for("x"), id="target")
        for name in ("a", "b"):
            await env.engine.start(waits_for_run_or_event("target"), id=name)
            await env.quiet()
        await env.engine.send(Paid(amount=1), to="a")
        if restarts:
            await env.restart()
        await env.engine.send(Paid(amount=2, order="x"), to="target")
        await env.quiet()
        assert await env.engine.handle("a").result() == "paid 1"
        assert await env.engine.handle("b").result() == "target succeeded"
        await env.check()


# Names and types.


async def test_named_events_carry_any_json_value(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(named("door"), id="r")
        await env.engine.send(NamedEvent("door", {"open": [True, None]}), to="r")
        assert await run.result() == {"open": [True, None]}
        red = await env.engine.start(named_first("door"), id="red")
        await env.quiet()
        assert isinstance(await env.engine.send(NamedEvent("door", {"colour": "blue"})), Queued)
        await env.engine.send(NamedEvent("door", {"colour": "red"}))
        assert await red.result() == {"name": "door", "value": {"colour": "red"}}


@pytest.mark.parametrize("choice", [int, Event, "", 5])
def test_only_events_can_be_waited_for(choice: Any) -> None:
    with pytest.raises(Misuse, match=r"event|Event"):
        event(choice)


def test_where_can_only_ask_for_fields_that_there_are() -> None:
    with pytest.raises(InvalidArguments, match="no field 'colour'"):
        event(Paid, where={"colour": "red"})
    with pytest.raises(InvalidArguments, match="short texts"):
        event("door", where={"sides": [1, 2]})


@pytest.mark.parametrize("part", [float("nan"), float("inf"), "\udcff"])
def test_where_refuses_what_no_event_can_have(part: Any) -> None:
    """NaN would be null in JSON, and the wait would get an event without the number."""
    with pytest.raises(InvalidArguments, match="short texts, numbers"):
        event("door", where={"kilos": part})
