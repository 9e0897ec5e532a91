"""Every public parameter that is a duration takes a timedelta or a number of seconds, and refuses anything else."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from perdure import Client, Engine, Event, Limits, sleep, start, step, timer, workflow
from perdure.cooperation import Operation, Scope, TimeWindow, Topic
from perdure.errors import InvalidArguments, InvalidDefinition, Misuse
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.values.arguments import IS_DURATION, hint_of, span_of
from tests.engine.hostile_calls import Public, public_calls

# Words that name a duration in a parameter, wherever it is added. `due_at`, `until` and the like are times.
WORDS = re.compile(
    r"(^|_)(timeout|delay|deadline|duration|lease|every|window|retention|expire_after|expires|overlap|grace|interval|"
    r"period|ttl|lasts|wait|pause)$"
)
NO_DURATIONS = [-1, -0.5, timedelta(microseconds=-1), float("nan"), float("inf"), -float("inf"), 1e300, True, "5", None]


def parameters() -> Iterator[tuple[Public, str, Any]]:
    for public in public_calls():
        for name, parameter in public.parameters.items():
            yield public, name, hint_of(inspect.unwrap(public.function), parameter.annotation)


def parts(hint: Any) -> Iterator[Any]:
    yield hint
    if typing.get_origin(hint) is not typing.Annotated:
        for one in typing.get_args(hint):
            if not isinstance(one, list):
                yield from parts(one)


def is_duration(hint: Any) -> bool:
    return any(IS_DURATION in getattr(one, "__metadata__", ()) for one in parts(hint))


def test_every_parameter_that_takes_a_timedelta_takes_seconds_too() -> None:
    loose = {f"{one.label}({name})" for one, name, hint in parameters() if timedelta in parts(hint)}
    assert loose == set()


def test_every_parameter_whose_name_says_that_it_is_a_duration_is_one() -> None:
    loose = {
        f"{one.label}({name})"
        for one, name, hint in parameters()
        if WORDS.search(name)
        and {int, float, timedelta} & set(parts(hint))
        and not is_duration(hint)
        and f"{one.name}({name})" != "call_after(delay)"  # the clock's own, in microseconds
    }
    assert loose == set()


def test_the_walk_sees_the_parameters() -> None:
    found = {f"{one.label.partition(':')[2]}({name})" for one, name, hint in parameters() if is_duration(hint)}
    assert {
        "Scope.sleep(duration)", "Scope.emit(deadline)", "start(deadline)", "RunHandle.update(deadline)",
        "sleep(duration)", "receive(timeout)", "timer(duration)",
        "Operation.periodic(every)", "TimeWindow.__init__(window)", "Engines.overdue(by)", "Tasks.claim(lease)",
    } <= found  # fmt: skip


@pytest.mark.parametrize("given", NO_DURATIONS, ids=repr)
def test_what_is_no_duration_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"that is a duration .*finite and not negative"):
        span_of(given, "that")


@pytest.mark.parametrize("given", NO_DURATIONS[:-1], ids=repr)
def test_every_public_duration_refuses_it(given: Any) -> None:
    taken = {
        f"{one.label}({name})"
        for one, name, hint in parameters()
        if is_duration(hint)
        and not (isinstance(given, str) and str in parts(hint))  # an expression
        and (form := one.form(one.parameters[name])) is not None
        and form.allows(given)
    }
    assert taken == set()


def test_options_of_events() -> None:
    class Brief(Event, expire_after=5):
        pass

    assert Brief.__event_options__.expire_after == timedelta(seconds=5)  # type: ignore[attr-defined]
    for wrong in [*NO_DURATIONS[:-1], 0, [5]]:
        with pytest.raises(InvalidDefinition, match="expire_after"):
            types.new_class("Wrong", (Event,), {"expire_after": wrong})


def test_definitions_of_operations() -> None:
    place = Operation("place", Topic("orders", str))
    place.sleep(1.5)
    place.periodic(0.5, count=2)
    assert TimeWindow(2).window == timedelta(seconds=2)
    for wrong in (-1, float("nan"), timedelta(-1)):
        with pytest.raises(Misuse, match=r"sleep\(\)"):
            place.sleep(wrong)
        with pytest.raises(Misuse, match=r"periodic\(\)"):
            place.periodic(wrong, count=1)
        with pytest.raises(Misuse, match=r"TimeWindow\(\)"):
            TimeWindow(wrong)


def test_retention() -> None:
    assert Client("memory://", limits=Limits(event_retention=5)).session.event_retention_us == 5_000_000
    with pytest.raises(Misuse, match="event_retention"):
        Engine("memory://", limits=Limits(event_retention=-5))


@step
async def work() -> str:
    return "done"


@workflow
async def child() -> str:
    await sleep(3600)
    return "late"


@workflow
async def parent() -> str:
    handle = await start(child(), deadline=2)
    try:
        await handle.result()
    except Exception as error:  # noqa: BLE001 - it is shown
        return type(error).__name__
    return "no deadline"


async def test_seconds_as_deadlines(source: StoreSource) -> None:
    async with Environment([parent, child], source) as env:
        assert await env.engine.run(parent()) == "ChildFailed"
        run = await env.engine.start(child(), deadline=2.5, id="r-1")
        view = await env.engine.runs.get(run.id)
        assert view is not None
        assert view.deadline == view.created_at + timedelta(seconds=2.5)
        updated = await env.engine.handle("r-1").update(deadline=10)
        assert updated.deadline is not None
        passed = await env.engine.start(child(), deadline=datetime(2000, 1, 1, tzinfo=UTC))
        assert [one.run_id for one in await env.engine.engines.overdue(by=5)] == []
        await env.quiet()
        assert await passed.status() == "failed"
        with pytest.raises(InvalidArguments, match="deadline"):
            await env.engine.start(child(), deadline=-1)


class Order(msgspec.Struct):
    sku: str


async def test_seconds_in_operations(source: StoreSource) -> None:
    orders, stock = Topic("orders", Order), Topic("stock", Order)
    place, take = Operation("place", orders), Operation("take", stock)
    times: list[datetime] = []

    @place.step
    async def ask(scope: Scope, order: Order) -> None:
        times.append(env.clock.time)
        scope.deadline(100)
        scope.sleep(2.5)
        await scope.emit(stock, order, delay=5, deadline=50.5)
        with pytest.raises(InvalidArguments):
            scope.sleep(-1)
        with pytest.raises(InvalidArguments):
            scope.emit(stock, order, delay=float("nan"))

    @place.step
    async def done(scope: Scope, order: Order) -> None:
        times.append(env.clock.time)

    @take.step
    async def taken(scope: Scope, order: Order) -> None:
        times.append(env.clock.time)

    async with Environment([place, take], source) as env:
        begun = env.clock.time
        root = await env.engine.emit(orders, Order(sku="s"), delay=3, deadline=1000)
        await root.finished()
    assert [round((time - begun).total_seconds()) for time in times] == [3, 8, 8]


async def test_a_workflow_is_told_what_is_wrong() -> None:
    @workflow
    async def flow() -> list[str]:
        told = []
        for wrong in (-1, float("nan"), timedelta(seconds=-1)):
            for call in (sleep, timer):
                try:
                    found: Any = call(wrong)
                    if inspect.isawaitable(found):
                        await found
                except Misuse as error:
                    told.append(str(error))
        return told

    async with Environment([flow]) as env:
        told = await env.engine.run(flow())
    assert len(told) == 6
    assert all("finite and not negative" in one for one in told)
