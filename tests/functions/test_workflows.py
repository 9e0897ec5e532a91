"""Workflow functions: asyncio as everybody writes it, time that survives, and what ends a run."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Retry, TimeReached, current_run, resource, sleep, sleep_until, step, workflow
from perdure.errors import Misuse, NotInWorkflow, RunFailed
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@step(retry=Retry.never())
async def work(name: str, seconds: float = 0) -> str:
    """Takes virtual time. Names that begin with `bad` fail."""
    calls.append(name)
    await resource(VirtualClock).sleep(seconds)
    if name.startswith("bad"):
        raise ValueError(name)
    return name.upper()


async def outcome_with_and_without_crashes(flow: Any, source: StoreSource) -> Any:
    """The result in peace; and again, with the engine killed in the middle of every pause."""
    calls.clear()
    async with Environment([flow], source) as env:
        expected = await env.engine.run(flow(), id="peace")
        in_peace = list(calls)
    calls.clear()
    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="crashes")
        for _ in range(200):
            await env.quiet()
            if await env.engine.handle("crashes").status() in ("succeeded", "failed"):
                break
            await env.advance(0.7)
            await env.restart()
        assert await env.engine.handle("crashes").result() == expected
        assert set(calls) == set(in_peace)
        await env.check()
    return expected


# Asyncio.


async def test_steps_one_after_the_other(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        return [await work(name) for name in ("a", "b", "c")]

    assert await outcome_with_and_without_crashes(flow, source) == ["A", "B", "C"]


async def test_gather_runs_steps_side_by_side(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        return list(await asyncio.gather(work("slow", 3), work("quick"), work("middle", 1)))

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow())
        assert await run.result() == ["SLOW", "QUICK", "MIDDLE"]
        journal = (await env.engine.handle(run.id).history()).journal
        assert [entry.value for entry in journal] == ["QUICK", "MIDDLE", "SLOW"]
        assert [entry.seq for entry in journal] == [1, 2, 3]


async def test_a_task_group_of_steps_and_sleeps(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        done: list[str] = []

        async def one(name: str, seconds: float) -> None:
            await sleep(seconds)
            done.append(await work(name))
            await asyncio.sleep(seconds)
            done.append(await work(name + name))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("a", 3), ("b", 1), ("c", 2)):
                group.create_task(one(name, seconds))
        return done

    assert await outcome_with_and_without_crashes(flow, source) == ["B", "C", "BB", "A", "CC", "AA"]


async def test_a_task_group_whose_step_fails_cancels_the_others() -> None:
    @workflow
    async def flow() -> str:
        said = "never"
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(work("bad"))
                group.create_task(work("long", 1_000_000))
        except* ValueError as group_error:
            said = str(group_error.exceptions[0])
        return said

    async with Environment([flow]) as env:
        run = await env.engine.start(flow())
        assert await run.result() == "bad"
        assert [entry.name for entry in (await env.engine.handle(run.id).history()).journal] == ["work"]
        assert env.clock.time.year == 2030


async def test_as_completed_and_wait_go_by_what_ended_first(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        first = [await one for one in asyncio.as_completed([work("x", 2), work("y", 1), work("z", 3)])]
        tasks = [asyncio.create_task(work(name, n)) for n, name in enumerate("pqr", 1)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first += [task.result() for task in done]
        for task in pending:
            task.cancel()
        return first

    async with Environment([flow], source) as env:
        assert await env.engine.run(flow()) == ["Y", "X", "Z", "P"]


async def test_a_timeout_around_a_step_cancels_it_and_is_journaled(source: StoreSource) -> None:
    @workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(10):
                return await work("endless", 10_000)
        except TimeoutError:
            return await work("instead")

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow())
        assert await run.result() == "INSTEAD"
        journal = (await env.engine.handle(run.id).history()).journal
        assert [(entry.kind, entry.name) for entry in journal] == [("timer", "timer"), ("step", "work")]
        assert env.clock.time < datetime(2030, 1, 1, 0, 1, tzinfo=UTC)


async def test_a_timeout_that_is_not_needed_leaves_nothing_behind(source: StoreSource) -> None:
    @workflow
    async def flow() -> str:
        async with asyncio.timeout(3600):
            result = await work("in time", 1)
        await sleep(5)
        return result

    async with Environment([flow], source) as env:
        assert await env.engine.run(flow()) == "IN TIME"
        assert env.clock.time == datetime(2030, 1, 1, 0, 0, 6, tzinfo=UTC)
        await env.check()


async def test_locks_and_queues_between_tasks(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        lock, ready, got = asyncio.Lock(), asyncio.Event(), []

        async def produce() -> None:
            await ready.wait()
            for name in ("a", "b", "c"):
                async with lock:
                    await queue.put(await work(name, 0.5))
            await queue.put(None)

        async def consume() -> None:
            ready.set()
            while (item := await queue.get()) is not None:
                await sleep(1)
                got.append(item)

        await asyncio.gather(produce(), consume())
        return got

    assert await outcome_with_and_without_crashes(flow, source) == ["A", "B", "C"]


# Time.


async def test_a_sleep_lasts_while_no_process_runs_and_past_due_ones_end_at_once(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        reached = await sleep(timedelta(days=30))
        assert isinstance(reached, TimeReached)
        await asyncio.sleep(60)
        return [reached.scheduled_at.isoformat(), reached.fired_at.isoformat()]

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.advance(timedelta(days=29))
        assert await env.engine.handle("r-1").status() == "suspended"
        env.kill()
        env.clock.move_to(env.clock.now() + 10 * 86_400_000_000)
        await env.restart()
        await env.quiet()
        await env.advance(60)
        assert await env.engine.handle("r-1").result() == ["2030-01-31T00:00:00+00:00", "2030-02-09T00:00:00+00:00"]


async def test_sleep_until_a_point_in_time_and_one_in_the_past() -> None:
    @workflow
    async def flow() -> list[int]:
        past = await sleep_until(datetime(2001, 1, 1, tzinfo=UTC))
        later = await sleep_until(datetime(2030, 6, 1, tzinfo=UTC))
        return [past.fired_at.month, past.scheduled_at.year, later.fired_at.month]

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == [1, 2001, 6]


@pytest.mark.parametrize("duration", [float("inf"), float("nan"), timedelta.max, 1e30])
async def test_a_sleep_that_would_never_end_is_refused_where_it_is_asked_for(duration: Any) -> None:
    @workflow
    async def flow(seconds: str) -> None:
        await sleep(duration)

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match=r"longer than any run lives|finite and not negative"):
            await env.engine.run(flow("x"))


async def test_a_time_without_a_zone_is_refused() -> None:
    @workflow
    async def flow() -> None:
        await sleep_until(datetime(2030, 1, 1))  # noqa: DTZ001 - on purpose

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match="has no time zone") as caught:
            await env.engine.run(flow())
        assert isinstance(caught.value.__cause__, Misuse)


async def test_time_ids_and_chance_are_the_same_in_a_replay(source: StoreSource) -> None:
    seen: list[Any] = []

    @workflow
    async def flow() -> None:
        me = current_run()
        mine: list[Any] = [me.now(), me.uuid4(), me.random.random()]
        await work("a", 5)
        mine += [me.now(), me.uuid4(), me.random.random(), me.id]
        seen.append(mine)
        await sleep(3600)

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.advance(60)
        await env.restart()
        await env.advance(3600)
        await env.engine.handle("r-1").result()
        assert len(seen) == 2
        assert seen[0] == seen[1]
        start, first_id, _, later, second_id, _, run_id = seen[0]
        assert (later - start, run_id) == (timedelta(seconds=5), "r-1")
        assert first_id != second_id
        assert isinstance(first_id, uuid.UUID)
        assert first_id.version == 4


async def test_two_runs_do_not_share_their_chance() -> None:
    @workflow
    async def flow() -> float:
        return current_run().random.random()

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) != await env.engine.run(flow())


async def test_workflow_verbs_belong_into_workflows() -> None:
    @step
    async def wrong() -> str:
        with pytest.raises(NotInWorkflow, match="was called in a step"):
            await sleep(1)
        with pytest.raises(NotInWorkflow):
            current_run()
        return "refused"

    @workflow
    async def flow() -> str:
        return await wrong()

    with pytest.raises(NotInWorkflow, match="code that no engine runs"):
        await sleep(1)
    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == "refused"


# Failure.


async def test_a_caught_failure_is_not_the_end(source: StoreSource) -> None:
    @workflow
    async def flow() -> list[str]:
        caught = ""
        try:
            await work("bad")
        except ValueError as error:
            caught = str(error)
        await sleep(1)
        return [caught, await work("after")]

    assert await outcome_with_and_without_crashes(flow, source) == ["bad", "AFTER"]
    assert calls == ["bad", "after"]


async def test_a_failed_run_raises_with_its_cause_as_often_as_it_is_asked(source: StoreSource) -> None:
    @workflow
    async def flow() -> None:
        await work("bad luck")

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow(), id="r-1")
        for handle in (run, env.engine.handle("r-1")):
            with pytest.raises(
                RunFailed, match=r"run 'r-1' of workflow .*flow' failed: ValueError: bad luck"
            ) as caught:
                await handle.result()
            assert type(caught.value.__cause__) is ValueError
            assert caught.value.failure.entry == 1
        assert await run.status() == "failed"


async def test_the_result_and_the_end_of_a_run_share_one_commit() -> None:
    @workflow
    async def flow() -> str:
        return await work("only")

    async with Environment([flow]) as env:
        before = env.engine.engines.stats.commits
        await env.engine.run(flow())
        assert env.engine.engines.stats.commits - before == 2


async def test_a_run_that_ends_leaves_its_tasks_and_timers(source: StoreSource) -> None:
    tidied: list[str] = []

    @workflow
    async def flow() -> str:
        async def background() -> None:
            try:
                await work("endless", 1_000_000)
            finally:
                tidied.append("background")

        task = asyncio.create_task(background())
        sleeper = asyncio.create_task(asyncio.sleep(1_000_000))
        await work("quick")
        return f"{task.done()} {sleeper.done()}"

    async with Environment([flow], source) as env:
        run = await env.engine.start(flow())
        assert await run.result() == "False False"
        await env.settle()
        assert tidied == ["background"]
        assert env.engine.runtime.steps_running == 0
        assert env.clock.time.year == 2030
        assert len((await env.engine.handle(run.id).history()).journal) == 1


async def test_a_workflow_without_a_step_ends_at_once(source: StoreSource) -> None:
    @workflow
    async def flow(n: int) -> int:
        return n + 1

    async with Environment([flow], source) as env:
        assert await env.engine.run(flow(1)) == 2


async def test_a_workflow_outside_an_engine_is_a_plain_coroutine() -> None:
    @step
    async def double(n: int) -> int:
        return n * 2

    @workflow
    async def flow(n: int) -> int:
        return await double(n) + 1

    assert await flow(2) == 5
