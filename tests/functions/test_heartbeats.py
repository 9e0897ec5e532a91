"""Heartbeats: who is silent for too long fails, and what was said is there for the next attempt, whatever happens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from perdure import Engine, Limits, Retry, Workflow, current_step, resource, sleep, step, workflow
from perdure.errors import NotInStep, RunFailed, StepTimedOut, UnstorableValue
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Wait
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import CRASH_POINTS, Environment, Fault, VirtualClock, run_with_crashes
from perdure.testing.environment import StoreSource

QUICK = Retry(attempts=4, initial=timedelta(milliseconds=10), jitter=0)
HOURLY = Retry(attempts=4, initial=timedelta(hours=1), maximum=timedelta(hours=1), jitter=0)


class Seen:
    """What each attempt found: its number and the details of those before it."""

    def __init__(self) -> None:
        self.attempts: list[tuple[int, Any]] = []
        self.begun = asyncio.Event()

    def look(self) -> int:
        me = current_step()
        self.attempts.append((me.attempt, me.heartbeat_details))
        return len(self.attempts)


def environment(flow: Workflow[Any, Any], source: StoreSource = None, **options: Any) -> Environment:
    return Environment([flow], source, autojump_s=None, **options)


async def stored(engine: Engine, run_id: str) -> tuple[Wait, ...]:
    return (await engine.session.store.load([run_id]))[run_id].waits


# Signs of life.


async def test_an_attempt_that_is_silent_for_too_long_fails_and_is_tried_again() -> None:
    @step(retry=QUICK, heartbeat_timeout=timedelta(seconds=5))
    async def work() -> int:
        if (attempt := current_step().attempt) < 3:
            await resource(VirtualClock).sleep(60)
        return attempt

    @workflow
    async def flow() -> int:
        return await work()

    async with environment(flow) as env:
        run = await env.engine.start(flow())
        await env.advance(11)
        assert await run.result() == 3
        (entry,) = (await env.engine.handle(run.id).history()).journal
        assert entry.at - entry.started_at == timedelta(seconds=10, milliseconds=30)


async def test_the_error_names_the_silence() -> None:
    @step(retry=Retry.never(), heartbeat_timeout=5)
    async def work() -> None:
        await resource(VirtualClock).sleep(3)
        current_step().heartbeat()
        await resource(VirtualClock).sleep(60)

    @workflow
    async def flow() -> None:
        await work()

    async with environment(flow) as env:
        run = await env.engine.start(flow())
        await env.advance(7.9)
        assert await run.status() == "running"
        await env.advance(0.1)
        with pytest.raises(RunFailed, match=r"work' sent no heartbeat for 5\.0 s in attempt 1") as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, StepTimedOut)


async def test_an_attempt_that_gives_signs_of_life_may_take_as_long_as_it_likes() -> None:
    @step(retry=Retry.never(), heartbeat_timeout=5)
    async def work() -> str:
        for _ in range(20):
            await resource(VirtualClock).sleep(4.9)
            current_step().heartbeat()
        return "done"

    @workflow
    async def flow() -> str:
        return await work()

    async with environment(flow) as env:
        run = await env.engine.start(flow())
        await env.advance(100)
        assert await run.result() == "done"
        commits = env.engine.engines.stats.commits
        assert commits == 2  # A sign of life without details is not worth a commit.


async def test_a_thread_that_is_silent_for_too_long_is_given_up_and_no_longer_listened_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    let_go, has_spoken = threading.Event(), threading.Event()
    seen = Seen()

    @step(retry=Retry(attempts=2, initial=timedelta(0)), heartbeat_timeout=5)
    def work() -> str:
        me = current_step()
        if seen.look() == 1:
            me.heartbeat("first")
            assert let_go.wait(10)
            me.heartbeat("too late")
            has_spoken.set()
            return "never"
        return "in time"

    @workflow
    async def flow() -> str:
        return await work()

    async with Environment([flow], autojump_s=0.01) as env:
        run = await env.engine.start(flow())
        assert await run.result() == "in time"
        let_go.set()
        assert await asyncio.to_thread(has_spoken.wait, 10)
        await env.settle()
        assert seen.attempts == [(1, None), (2, "first")]
        assert await stored(env.engine, run.id) == ()
    assert "sent no heartbeat for 5.0 s in attempt 1; its thread is still busy" in caplog.text


async def test_a_heartbeat_belongs_into_a_step() -> None:
    with pytest.raises(NotInStep):
        current_step().heartbeat()


# What they say.


class Progress(Struct):
    done: int
    names: list[str]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_next_attempt_knows_what_the_one_before_said_last(in_thread: bool) -> None:
    seen = Seen()

    def body() -> None:
        number = seen.look()
        for done in range(100):
            current_step().heartbeat(Progress(100 * number + done, ["a"]))
        current_step().heartbeat()  # Only a sign of life: what was said before still counts.
        if number < 3:
            raise OSError("again")

    @step(retry=QUICK)
    async def on_loop() -> None:
        body()

    @step(retry=QUICK)
    def threaded() -> None:
        body()

    work = threaded if in_thread else on_loop

    @workflow
    async def flow() -> None:
        await work()

    async with Environment([flow]) as env:
        await env.engine.run(flow())
    assert seen.attempts == [(1, None), (2, {"done": 199, "names": ["a"]}), (3, {"done": 299, "names": ["a"]})]


async def test_details_survive_a_crash_and_the_attempt_cut_short_does_not_count(source: StoreSource) -> None:
    seen = Seen()

    @step(retry=Retry(attempts=2, initial=timedelta(milliseconds=1)))
    async def work() -> str:
        number = seen.look()
        current_step().heartbeat({"life": number})
        if number <= 3:
            await asyncio.Event().wait()
        if number == 4:
            raise OSError("the first that fails")
        return "done"

    @workflow
    async def flow() -> str:
        return await work()

    async with environment(flow, source) as env:
        await env.engine.start(flow(), id="r")
        started_at = env.clock.time
        for _ in range(3):
            await env.advance(10)
            await env.restart()
        await env.advance(10)
        assert await env.engine.handle("r").result() == "done"
        assert seen.attempts == [(1, None), (1, {"life": 1}), (1, {"life": 2}), (1, {"life": 3}), (2, {"life": 4})]
        (entry,) = (await env.engine.handle("r").history()).journal
        assert (entry.attempts, entry.started_at) == (2, started_at)
        assert await stored(env.engine, "r") == ()
        await env.check()


async def test_a_later_attempt_cut_short_keeps_its_number_and_the_history(source: StoreSource) -> None:
    seen = Seen()

    @step(retry=Retry(attempts=3, initial=timedelta(milliseconds=1)))
    async def work() -> None:
        number = seen.look()
        current_step().heartbeat(number)
        if number == 2:
            await asyncio.Event().wait()
        raise OSError(f"life {number}")

    @workflow
    async def flow() -> None:
        await work()

    async with environment(flow, source) as env:
        await env.engine.start(flow(), id="r")
        await env.advance(10)
        await env.restart()
        await env.advance(10)
        with pytest.raises(RunFailed, match="life 4"):
            await env.engine.handle("r").result()
        assert seen.attempts == [(1, None), (2, 1), (2, 2), (3, 3)]
        (entry,) = (await env.engine.handle("r").history()).journal
        assert entry.failure is not None
        assert [(one.attempt, one.message) for one in entry.failure.history] == [
            (1, "life 1"), (2, "life 3"), (3, "life 4"),
        ]  # fmt: skip


@pytest.mark.parametrize("is_evicted", [False, True])
async def test_details_survive_a_long_pause_and_a_crash_in_it(source: StoreSource, is_evicted: bool) -> None:
    seen = Seen()

    @step(retry=HOURLY)
    async def work() -> None:
        number = seen.look()
        if number % 2:
            current_step().heartbeat(number)
        raise OSError(f"attempt {number}")

    @workflow
    async def flow() -> None:
        await work()

    @workflow
    async def other() -> None:
        await sleep(1)

    async with Environment([flow, other], source, autojump_s=None, limits=Limits(live_runs_max=1)) as env:
        await env.engine.start(flow(), id="r")
        await env.quiet()
        (wait,) = await stored(env.engine, "r")
        assert (wait.kind, wait.attempts, wait.details) == ("retry", 1, "1")
        if is_evicted:
            await env.engine.start(other())
            await env.quiet()
            assert env.engine.runtime.functions.live_runs == 1
        else:
            await env.restart()
        await env.advance(timedelta(hours=2))
        assert seen.attempts == [(1, None), (2, 1), (3, 1)]
        await env.restart()
        await env.advance(timedelta(hours=1))
        assert seen.attempts == [(1, None), (2, 1), (3, 1), (4, 3)]


async def test_details_go_through_the_codec() -> None:
    class Reversing:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    seen = Seen()

    @step(retry=HOURLY)
    async def work() -> None:
        if seen.look() < 4:
            current_step().heartbeat({"secret": len(seen.attempts)})
        if len(seen.attempts) in (1, 3):
            await asyncio.Event().wait()
        if len(seen.attempts) == 2:
            raise OSError("pause")

    @workflow
    async def flow() -> None:
        await work()

    async with environment(flow, codec=Reversing()) as env:
        await env.engine.start(flow(), id="r")
        await env.advance(1)
        (wait,) = await stored(env.engine, "r")
        assert (wait.kind, wait.details) == ("beat", '}1:"terces"{')
        await env.restart()
        await env.quiet()
        (wait,) = await stored(env.engine, "r")
        assert (wait.kind, wait.details) == ("retry", '}2:"terces"{')
        await env.advance(timedelta(hours=1))
        await env.restart()
        await env.engine.handle("r").result()
        assert seen.attempts == [(1, None), (1, {"secret": 1}), (2, {"secret": 2}), (2, {"secret": 3})]


async def test_a_codec_that_fails_on_details_holds_the_run_with_the_reason() -> None:
    class Choosy:
        def encode(self, text: str) -> str:
            if "secret" in text:
                raise ValueError("no key for this")
            return text

        def decode(self, text: str) -> str:
            return text

    @step
    async def work() -> None:
        current_step().heartbeat("secret")
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        await work()

    async with environment(flow, codec=Choosy()) as env:
        await env.engine.start(flow(), id="r")
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is not None
        assert "no key for this" in view.hold.reason


async def test_what_has_no_json_form_is_refused_where_it_is_said() -> None:
    @step
    async def work() -> str:
        with pytest.raises(UnstorableValue, match=r"the details of a heartbeat of step .*builtins\.object"):
            current_step().heartbeat(object())
        return "went on"

    @workflow
    async def flow() -> str:
        return await work()

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == "went on"


# How they are written.


class Watched(MemoryStore):
    """Notes what every batch writes about heartbeats."""

    def __init__(self, database: MemoryDatabase, written: list[str | None]) -> None:
        super().__init__(database)
        self.written = written

    async def commit(self, batch: Batch) -> Committed:
        self.written += [wait.details for wait in batch.waits.values() if wait.kind == "beat"]
        return await super().commit(batch)


async def test_the_first_details_are_written_at_once_and_of_many_the_newest_at_intervals() -> None:
    @step
    async def work() -> None:
        clock = resource(VirtualClock)
        for number in range(1000):
            current_step().heartbeat(number)
        await clock.sleep(0.199)
        written.append("almost a fifth of a second later")
        await clock.sleep(10)
        current_step().heartbeat("later")
        await clock.sleep(0.1)
        current_step().heartbeat("at the end")

    @workflow
    async def flow() -> None:
        await work()

    database, written = MemoryDatabase(), list[str | None]()
    async with environment(flow, lambda: Watched(database, written)) as env:
        run = await env.engine.start(flow())
        await env.advance(20)
        await run.result()
        assert written == ["999", "almost a fifth of a second later", '"later"']
        assert await stored(env.engine, run.id) == ()


async def test_details_said_while_others_are_on_their_way_follow_once_those_have_arrived() -> None:
    @step
    async def work() -> None:
        clock = resource(VirtualClock)
        for number in range(5):
            current_step().heartbeat(number)
            await clock.sleep(0.1)
        await clock.sleep(60)

    @workflow
    async def flow() -> None:
        await work()

    database, written = MemoryDatabase(), list[str | None]()
    async with environment(flow, lambda: Watched(database, written)) as env:
        await env.engine.start(flow())
        await env.advance(30)
        assert written == ["0", "1", "3", "4"]


async def test_a_step_that_never_waits_but_for_its_heartbeats_is_not_held_up_by_a_slow_store() -> None:
    """The store takes nothing for as long as the step runs."""
    seen, is_open = Seen(), asyncio.Event()

    class Stuck(MemoryStore):
        async def commit(self, batch: Batch) -> Committed:
            if any(wait.kind == "beat" for wait in batch.waits.values()):
                await is_open.wait()
            return await super().commit(batch)

    @step
    async def work() -> int:
        for number in range(100):
            current_step().heartbeat(number)
            await asyncio.sleep(0)
        seen.begun.set()
        return 1

    @workflow
    async def flow() -> int:
        return await work()

    database = MemoryDatabase()
    async with environment(flow, lambda: Stuck(database)) as env:
        run = await env.engine.start(flow(), id="r")
        await seen.begun.wait()
        is_open.set()
        assert await run.result() == 1
        assert await stored(env.engine, "r") == ()
        await env.check()


@pytest.mark.parametrize("end", ["cancelled", "given up", "failed", "paused"])
async def test_however_the_step_ends_nothing_is_left_behind(end: str, source: StoreSource) -> None:
    seen = Seen()

    @step(retry=Retry.never())
    async def work() -> None:
        seen.look()
        current_step().heartbeat("here")
        current_step().heartbeat("and there")
        await resource(VirtualClock).sleep(1)
        if end == "failed":
            raise OSError
        current_step().heartbeat("further")
        if len(seen.attempts) == 1:
            await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        try:
            async with asyncio.timeout(5 if end == "given up" else None):
                await work()
        except (TimeoutError, OSError):
            await sleep(1)

    async with environment(flow, source) as env:
        await env.engine.start(flow(), id="r")
        await env.advance(3)
        if end == "cancelled":
            await env.engine.handle("r").cancel()
        elif end == "paused":
            await env.engine.handle("r").pause()
            assert [wait.details for wait in await stored(env.engine, "r")] == ['"further"']
            await env.engine.handle("r").resume()
        await env.advance(10)
        assert await stored(env.engine, "r") == ()
        assert seen.attempts == [(1, None), (1, "further")] if end == "paused" else [(1, None)]
        await env.check()


async def test_a_shutdown_that_cuts_a_step_short_writes_what_it_said_last(source: StoreSource) -> None:
    seen = Seen()

    @step
    async def work() -> str:
        if seen.look() == 2:
            return "done"
        for number in range(100):
            current_step().heartbeat(number)
            await asyncio.sleep(0)
        seen.begun.set()
        await asyncio.Event().wait()
        return "never"

    @workflow
    async def flow() -> str:
        return await work()

    async with environment(flow, source) as env:
        await env.engine.start(flow(), id="r")
        await seen.begun.wait()
        await env.engine.shutdown(grace=0)
        env.kill()
        await env.restart()
        assert await env.engine.handle("r").result() == "done"
        assert seen.attempts == [(1, None), (1, 99)]


# Crashes.


@step(retry=Retry(attempts=3, initial=timedelta(hours=1), jitter=0))
async def chapters() -> list[int]:
    """Goes on where its heartbeats say that it was, and fails in the middle."""
    clock, me = resource(VirtualClock), current_step()
    read = me.heartbeat_details or []
    while len(read) < 6:
        read = [*read, len(read) + 1]
        me.heartbeat(read)
        await clock.sleep(1)
        if len(read) >= 3 and me.attempt == 1:
            raise OSError("the light went out")
    return read


@workflow
async def reading() -> list[int]:
    return await chapters()


async def read_to_the_end(env: Environment) -> Any:
    result = await (await env.engine.start(reading(), id="r")).result()
    (entry,) = (await env.engine.handle("r").history()).journal
    return result, entry.attempts


async def test_a_crash_at_any_commit_costs_no_more_than_the_attempt(fresh: Callable[[], StoreSource]) -> None:
    report = await run_with_crashes(read_to_the_end, workflows=[reading], store=fresh)
    assert report.result == ([1, 2, 3, 4, 5, 6], 2)
    assert report.commits >= 8
    assert report.restarts == report.commits * 3


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_around_the_write_of_a_heartbeat_leaves_it_whole_or_not_at_all(point: Any) -> None:
    def beats(batch: Batch) -> bool:
        return any(wait.kind == "beat" for wait in batch.waits.values())

    fault = Fault(point, 2, when=beats)
    async with Environment([reading], fault=fault) as env:
        assert await env.survive(read_to_the_end) == ([1, 2, 3, 4, 5, 6], 2)
        assert fault.struck == 1
        assert await env.check() == 1
