"""Steps: attempts, the pauses between them, timeouts."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, Retry, current_step, sleep, step, workflow
from perdure.errors import MaxRetriesExceeded, NonRetryable, RunFailed, StepTimedOut
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

QUICK = Retry(attempts=4, initial=timedelta(milliseconds=10), jitter=0)
HOURLY = Retry(attempts=4, initial=timedelta(hours=1), maximum=timedelta(hours=1), jitter=0)


class Declined(Exception):
    """As people write them: the arguments are not those of the base class."""

    def __init__(self, card: str, cents: int, response: object = None) -> None:
        super().__init__(f"card {card} was declined for {cents}")
        self.card = card
        self.cents = cents
        self.response = response


# Attempts.


async def test_a_step_is_tried_until_it_succeeds(source: StoreSource) -> None:
    @step(retry=QUICK)
    async def shaky() -> int:
        if (attempt := current_step().attempt) < 3:
            raise OSError("not yet")
        return attempt

    @workflow
    async def flow() -> int:
        return await shaky()

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow())
        assert await run.result() == 3
        (entry,) = (await env.engine.handle(run.id).history()).journal
        assert (entry.attempts, entry.failure, entry.value) == (3, None, 3)
        assert entry.at - entry.started_at == timedelta(milliseconds=30)


async def test_after_the_last_attempt_the_error_is_its_own_and_its_cause_tells_of_all(source: StoreSource) -> None:
    @step(retry=QUICK)
    async def hopeless() -> None:
        raise Declined("c-1", current_step().attempt)

    @workflow
    async def flow() -> list[Any]:
        try:
            await hopeless()
        except Declined as error:
            cause = error.__cause__
            assert isinstance(cause, MaxRetriesExceeded)
            return [error.card, error.cents, cause.attempts, [one.attempt for one in cause.history], cause.position]
        return []

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow())
        assert await run.result() == ["c-1", 4, 4, [1, 2, 3, 4], "1"]
        (entry,) = (await env.engine.handle(run.id).history()).journal
        assert entry.failure is not None
        assert entry.attempts == len(entry.failure.history) == 4
        assert entry.failure.history[0].message == "card c-1 was declined for 1"
        assert "hopeless" in entry.failure.stack


@pytest.mark.parametrize(
    ("policy", "error", "attempts"),
    [
        (Retry(attempts=3, initial=timedelta(0)), OSError("x"), 3),
        (Retry(attempts=3, initial=timedelta(0), give_up_on=(OSError,)), ConnectionError("x"), 1),
        (Retry(attempts=3, initial=timedelta(0), retry_on=(OSError,)), ValueError("x"), 1),
        (Retry(attempts=3, initial=timedelta(0), recoverable=lambda error: "x" not in str(error)), OSError("x"), 1),
        (Retry(attempts=3, initial=timedelta(0)), NonRetryable("x"), 1),
        (Retry.never(), OSError("x"), 1),
    ],
)
async def test_the_policy_decides_how_often(policy: Retry, error: Exception, attempts: int) -> None:
    calls: list[int] = []

    @step(retry=policy)
    async def failing() -> None:
        calls.append(1)
        raise error

    @workflow
    async def flow() -> None:
        await failing()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed) as caught:
            await env.engine.run(flow())
        assert type(caught.value.__cause__) is type(error)
        assert len(calls) == attempts


async def test_an_own_delay_is_kept_to() -> None:
    times: list[float] = []

    @step(retry=Retry(attempts=3, delay=lambda attempt: timedelta(minutes=attempt)))
    async def failing() -> None:
        times.append(env.clock.now() / 60e6)
        raise OSError

    @workflow
    async def flow() -> None:
        await failing()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(flow())
        assert [round(time - times[0]) for time in times] == [0, 1, 3]


@pytest.mark.parametrize("where", ["recoverable", "delay"])
async def test_a_policy_that_fails_itself_fails_the_step(where: str) -> None:
    def broken(_: Any) -> Any:
        raise ZeroDivisionError("in the policy")

    policy = Retry(recoverable=broken) if where == "recoverable" else Retry(delay=broken)

    @step(retry=policy)
    async def failing() -> None:
        raise OSError("the real one")

    @workflow
    async def flow() -> None:
        await failing()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match="in the policy") as caught:
            await env.engine.run(flow())
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert isinstance(caught.value.__cause__.__cause__, OSError)


async def test_a_long_pause_survives_a_crash_with_its_attempts_and_their_history(source: StoreSource) -> None:
    started: list[tuple[int, str]] = []

    @step(retry=HOURLY)
    async def failing() -> None:
        me = current_step()
        started.append((me.attempt, me.idempotency_key))
        raise OSError(f"attempt {me.attempt}")

    @workflow
    async def flow() -> None:
        await failing()

    async with Environment([flow], source, autojump_s=None) as env:
        run = await env.engine.start(flow(), id="r-1")
        await env.quiet()
        assert await run.status() == "suspended"
        await env.advance(timedelta(hours=1, minutes=30))
        await env.restart()
        await env.advance(timedelta(minutes=29))
        assert [attempt for attempt, _ in started] == [1, 2]
        await env.advance(timedelta(minutes=1))
        assert [attempt for attempt, _ in started] == [1, 2, 3]
        await env.restart()
        await env.advance(timedelta(hours=5))
        with pytest.raises(RunFailed) as caught:
            await env.engine.handle("r-1").result()
        exhausted = caught.value.__cause__.__cause__ if caught.value.__cause__ else None
        (entry,) = (await env.engine.handle("r-1").history()).journal
        assert entry.attempts == 4
        assert entry.failure is not None
        assert [one.message for one in entry.failure.history] == [f"attempt {n}" for n in (1, 2, 3, 4)]
        assert [attempt for attempt, _ in started] == [1, 2, 3, 4]
        assert {key for _, key in started} == {"r-1:1"}
        assert exhausted is None or isinstance(exhausted, MaxRetriesExceeded)


async def test_an_attempt_that_a_crash_cut_short_runs_again_with_its_number() -> None:
    started: list[int] = []

    @step(retry=HOURLY)
    async def work() -> str:
        started.append(current_step().attempt)
        if len(started) == 1:
            raise OSError
        if len(started) == 2:
            await asyncio.Event().wait()
        return "done"

    @workflow
    async def flow() -> str:
        return await work()

    async with Environment([flow], autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.quiet()
        await env.advance(timedelta(hours=1))
        assert started == [1, 2]
        await env.restart()
        await env.advance(0)
        assert await env.engine.handle("r-1").result() == "done"
        assert started == [1, 2, 2]


# Timeouts.


async def test_an_async_attempt_that_takes_too_long_is_cancelled() -> None:
    cancelled: list[int] = []

    @step(retry=QUICK, timeout=timedelta(seconds=5))
    async def slow() -> str:
        if (attempt := current_step().attempt) == 3:
            return "in time"
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(attempt)
        return "never"

    @workflow
    async def flow() -> str:
        return await slow()

    async with Environment([flow], autojump_s=0.01) as env:
        assert await env.engine.run(flow()) == "in time"
        assert cancelled == [1, 2]


async def test_a_timeout_is_a_timeout_error_that_names_the_step() -> None:
    @step(retry=Retry.never(), timeout=5)
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except TimeoutError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async with Environment([flow], autojump_s=0.01) as env:
        said = await env.engine.run(flow())
        assert said.startswith("StepTimedOut")
        assert "slow' took longer than its timeout of 5.0 s in attempt 1" in said


async def test_a_thread_that_takes_too_long_keeps_its_place_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    let_go, ended, attempts = threading.Event(), threading.Event(), []

    @step(retry=Retry(attempts=2, initial=timedelta(0)), timeout=5)
    def slow() -> str:
        me = current_step()
        if me.attempt == 1:
            let_go.wait(10)
            attempts.append(current_step().attempt)
            ended.set()
            return "too late"
        return "in time"

    @workflow
    async def flow() -> str:
        return await slow()

    with caplog.at_level(logging.WARNING, "perdure"):
        async with Environment([flow], autojump_s=0.01, limits=Limits(threads_max=2)) as env:
            run = await env.engine.start(flow())
            assert await run.result() == "in time"
            let_go.set()
            assert await asyncio.to_thread(ended.wait, 10)
            await env.settle()
            assert len((await env.engine.handle(run.id).history()).journal) == 1
    assert "its thread is still busy and keeps its place" in caplog.text
    assert attempts == [1]  # It is told its own number, not that of the attempt after it.


async def test_the_total_timeout_counts_all_attempts_and_the_pauses_between(source: StoreSource) -> None:
    attempts: list[int] = []

    @step(retry=replace(HOURLY, attempts=99), total_timeout=timedelta(hours=3))
    async def failing() -> None:
        attempts.append(current_step().attempt)
        raise OSError("again")

    @workflow
    async def flow() -> str:
        await sleep(timedelta(hours=10))
        try:
            await failing()
        except StepTimedOut as error:
            return str(error)
        return ""

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.advance(timedelta(hours=11, minutes=30))
        await env.restart()
        await env.advance(timedelta(hours=5))
        said = await env.engine.handle("r-1").result()
        assert "did not finish within 10800.0 s, all attempts taken together (3 failed)" in said
        assert attempts == [1, 2, 3]


async def test_the_total_timeout_ends_an_attempt_that_hangs() -> None:
    @step(timeout=50, total_timeout=timedelta(seconds=7))
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> float:
        before = env.clock.now()
        with pytest.raises(StepTimedOut):
            await slow()
        return (env.clock.now() - before) / 1e6

    async with Environment([flow], autojump_s=0.01) as env:
        assert await env.engine.run(flow()) == 7
