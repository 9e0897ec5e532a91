"""A process that dies right before or right after the commit of a retry by hand, or of the failure before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from perdure import Event, Retry, receive, resource, step, workflow
from perdure.kernel.batch import Batch
from perdure.kernel.status import Status
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.faults import Fault, Point

HOUR = timedelta(hours=1)
MONTH = timedelta(days=30)
POINTS: list[Point] = ["before", "before_effects"]


class Notice(Event, consume_on_read=False, delivery="all"):
    number: int


class Weather:
    """Whether what can fail does."""

    def __init__(self) -> None:
        self.is_bad = True


def fails(batch: Batch) -> bool:
    return any(write.run.status is Status.FAILED for write in batch.runs.values())


def is_updated(batch: Batch) -> bool:
    return any(row.became == "updated" for row in batch.audit)


def is_retried(batch: Batch) -> bool:
    return any(row.cause == "retried" for row in batch.audit)


@workflow
async def listener() -> str:
    got: str = await receive("word")
    return got


async def deadline_of(env: Environment) -> tuple[datetime | None, int]:
    view = await env.engine.runs.get("r")
    assert view is not None
    return view.deadline, view.attempt


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("dies_as", [is_updated, fails, is_retried])
async def test_a_deadline_begins_anew_with_its_length(
    source: StoreSource, dies_as: Callable[[Batch], bool], point: Point
) -> None:
    """It was set later than the start, and its length is found in the audit trail."""

    async def update(env: Environment) -> None:
        if (await deadline_of(env))[0] == started + 3 * MONTH:
            await env.engine.handle("r").update(deadline=HOUR)

    async def miss(env: Environment) -> None:
        while await env.engine.handle("r").status() != "failed":
            await env.advance(2 * HOUR)

    async def retry(env: Environment) -> None:
        if await env.engine.handle("r").status() == "failed":
            await env.engine.handle("r").retry()

    async with Environment([listener], source, fault=Fault(point, when=dies_as), autojump_s=None) as env:
        started = env.clock.time
        await env.engine.start(listener(), id="r", deadline=3 * MONTH)
        await env.advance(MONTH)
        for attempt in (2, 3):
            if attempt == 2:
                await env.survive(update)
            await env.survive(miss)
            await env.survive(retry)
            assert await deadline_of(env) == (env.clock.time + HOUR, attempt)
            await env.advance(timedelta(minutes=59))
            assert await env.engine.handle("r").status() == "suspended"
        assert env.restarts == 1
        await env.check()


@step(retry=Retry.never())
async def risky() -> None:
    if resource(Weather).is_bad:
        raise ConnectionError("no answer")


@workflow
async def reads_notices() -> list[int]:
    """Its step fails after the first of them; it reads another one, and fails for that."""
    read = [(await receive(Notice)).number]
    failed: ConnectionError | None = None
    try:
        await risky()
    except ConnectionError as error:
        failed = error
    read.append((await receive(Notice)).number)
    if failed is not None:
        raise failed
    return [*read, (await receive(Notice)).number]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("dies_as", [fails, is_retried])
@pytest.mark.parametrize("time", [1, 2])
async def test_no_retained_event_is_read_twice(
    source: StoreSource, dies_as: Callable[[Batch], bool], point: Point, time: int
) -> None:
    """What a failed run has read is kept with it. It read the first notice before the failure, and the second after it:
    only the second is read again."""
    weather = Weather()

    async def until_done(env: Environment) -> list[int]:
        while True:
            await env.settle()
            view = await env.engine.runs.get("r")
            assert view is not None
            if view.status != "failed":
                read: list[int] = await env.engine.handle("r").result()
                return read
            weather.is_bad = view.attempt < 2
            await env.engine.handle("r").retry()

    fault = Fault(point, time, when=dies_as)
    async with Environment([reads_notices], source, fault=fault, resources={Weather: lambda: weather}) as env:
        for number in range(4):
            await env.engine.send(Notice(number))
        await env.engine.start(reads_notices(), id="r")
        assert await env.survive(until_done) == [0, 1, 2]
        assert env.restarts == 1
        await env.check()
