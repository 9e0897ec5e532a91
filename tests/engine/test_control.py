"""Pausing, cancelling and retrying runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import Limits, step, workflow
from perdure.errors import (
    ConcurrentModification,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
)
from perdure.kernel import ops
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.world import World, environment, hanging, steps, touch, waiting

# Pausing.


async def test_a_paused_run_does_nothing_until_it_is_resumed(source: StoreSource) -> None:
    world = World()
    async with environment(source, world) as env:
        run = await env.engine.start(hanging(), id="r-1")
        await env.advance(0)
        assert await env.engine.handle("r-1").pause(reason="looking into it", actor="ada")
        assert not await env.engine.handle("r-1").pause()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert view.hold is not None
        assert (view.status, view.hold.kind, view.hold.reason) == ("running", "paused", "looking into it")
        await asyncio.sleep(0)
        assert world.cancelled == ["hang"]
        await env.restart()
        assert (await env.engine.recover()).total == 0
        assert await env.engine.handle("r-1").resume()
        assert not await env.engine.handle("r-1").resume()
        await env.advance(0)
        assert world.calls == ["before"]
        await env.engine.handle("r-1").cancel()
        with pytest.raises(RunFinished):
            await env.engine.handle("r-1").pause()
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").resume()
        assert run.id == "r-1"


async def test_a_sleep_that_is_over_when_the_run_is_resumed_ends_at_once(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        await env.engine.handle("r-1").pause()
        await env.advance(timedelta(days=3))
        assert await run.status() == "suspended"
        await env.engine.handle("r-1").resume()
        assert await run.result() == "waited"


async def test_whoever_waits_for_a_paused_run_gets_its_result_in_the_end(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(waiting(), id="r-1")
        result = asyncio.ensure_future(run.result())
        await env.quiet()
        await env.engine.handle("r-1").pause()
        await env.engine.handle("r-1").resume()
        await env.advance(timedelta(days=1))
        assert await result == "waited"


# Of a version.


async def test_what_is_asked_of_another_version_than_the_runs_changes_nothing(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        before = await env.engine.runs.get("r-1")
        assert before is not None
        other = before.version - 1
        run = env.engine.handle("r-1")
        for ask in (run.cancel, run.pause, run.resume):
            with pytest.raises(ConcurrentModification) as caught:
                await ask(expected_version=other)
            assert (caught.value.version, caught.value.expected_version) == (before.version, other)
        assert await env.engine.runs.get("r-1") == before
        assert await env.engine.handle("r-1").pause(expected_version=before.version)
        assert await env.engine.handle("r-1").resume(expected_version=before.version)
        assert await env.engine.handle("r-1").cancel(expected_version=before.version)
        with pytest.raises(ConcurrentModification):
            await env.engine.handle("r-1").cancel(expected_version=before.version)


# Cancelling.


async def cancelled(env: Environment, run_id: str) -> None:
    assert await env.engine.handle(run_id).cancel(reason="no longer wanted", actor="ada")
    assert not await env.engine.handle(run_id).cancel()
    with pytest.raises(RunCancelled, match="was cancelled: no longer wanted"):
        await env.engine.handle(run_id).result()
    last = (await env.engine.handle(run_id).history()).audit[-1]
    assert (last.became, last.actor, last.details) == ("cancelled", "ada", "no longer wanted")


async def test_a_running_run_is_cancelled_with_its_steps(source: StoreSource) -> None:
    world = World()
    async with environment(source, world) as env:
        await env.engine.start(hanging(), id="r-1")
        await env.advance(0)
        await cancelled(env, "r-1")
        await env.quiet()
        assert world.cancelled == ["hang"]
        await env.check()


async def test_a_suspended_run_is_cancelled_wherever_it_is(source: StoreSource) -> None:
    async with environment(source, limits=Limits(live_runs_max=1)) as env:
        for name in ("evicted", "live", "paused"):
            await env.engine.start(waiting(), id=name)
            await env.quiet()
        await env.engine.handle("paused").pause()
        for name in ("evicted", "live", "paused"):
            await cancelled(env, name)
        await env.advance(timedelta(days=2))
        assert await env.check() == 3


async def test_a_run_that_nobody_has_claimed_is_cancelled(source: StoreSource) -> None:
    async with environment(source) as env:
        op = ops.Start(run_id="r-1", at=env.clock.now(), workflow="elsewhere", input="{}", admit=False)
        await env.engine.session.coordinator.submit(op)
        await cancelled(env, "r-1")


async def test_there_is_nothing_to_cancel_in_what_has_ended_or_never_was(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.run(steps(), id="r-1")
        assert not await env.engine.handle("r-1").cancel()
        assert not await env.engine.handle("nobody").cancel()


async def test_a_result_that_comes_after_the_cancellation_is_dropped(source: StoreSource) -> None:
    ending = asyncio.Event()

    @step
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ending.set()
        return "too late"

    @workflow
    async def flow() -> str:
        return await stubborn()

    async with Environment([flow], source, autojump_s=None) as env:
        await env.engine.start(flow(), id="r-1")
        await env.advance(0)
        await env.engine.handle("r-1").cancel()
        await ending.wait()
        await env.quiet()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.status, view.output) == ("cancelled", None)
        assert (await env.engine.handle("r-1").history()).journal == []


# Retrying.


async def test_a_retry_goes_on_at_the_step_that_failed(source: StoreSource) -> None:
    world = World()
    world.broken.add("c")
    async with environment(source, world) as env:
        run = await env.engine.start(steps(*"abcd"), id="r-1")
        with pytest.raises(RunFailed):
            await run.result()
        failed = await env.engine.runs.get("r-1")
        assert failed is not None
        assert failed.completed_at is not None
        world.broken.clear()
        retried = await env.engine.handle("r-1").retry(actor="ada")
        assert await retried.result() == list("ABCD")
        assert world.calls == ["a", "b", "c", "c", "d"]
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.attempt, view.failure, view.version) == (2, None, failed.version + 2)
        history = await env.engine.handle("r-1").history()
        assert [entry.value for entry in history.journal] == list("ABCD")
        assert [(entry.seq, entry.archived_attempt) for entry in history.archived] == [(3, 1)]
        again = history.audit[-2]
        assert (again.was, again.became, again.cause, again.actor) == ("failed", "running", "retried", "ada")
        await env.check()


async def test_while_it_is_retried_a_run_has_no_end(source: StoreSource) -> None:
    world = World()
    world.broken.add("before")
    async with environment(source, world) as env:
        await env.engine.start(hanging(), id="r-1")
        with pytest.raises(RunFailed):
            await env.engine.handle("r-1").result()
        world.broken.clear()
        await env.engine.handle("r-1").retry()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.status, view.completed_at, view.failure) == ("running", None, None)


async def test_a_run_can_be_retried_again_and_again(source: StoreSource) -> None:
    world = World()
    world.broken.add("b")
    async with environment(source, world) as env:
        await env.engine.start(steps("a", "b"), id="r-1")
        for _ in range(3):
            with pytest.raises(RunFailed):
                await env.engine.handle("r-1").result()
            await env.engine.handle("r-1").retry()
        with pytest.raises(RunFailed):
            await env.engine.handle("r-1").result()
        history = await env.engine.handle("r-1").history()
        assert [entry.archived_attempt for entry in history.archived] == [1, 2, 3]
        assert world.calls == ["a", "b", "b", "b", "b"]
        await env.check()


async def test_a_retry_does_not_repeat_what_the_workflow_had_dealt_with(source: StoreSource) -> None:
    world = World()
    world.broken |= {"charge", "apologise"}

    @workflow
    async def flow() -> str:
        try:
            return await touch("charge")
        except ConnectionError:
            return await touch("apologise")

    async with Environment([flow], source, resources={World: lambda: world}) as env:
        await env.engine.start(flow(), id="r-1")
        with pytest.raises(RunFailed):
            await env.engine.handle("r-1").result()
        world.broken.clear()
        await env.engine.handle("r-1").retry()
        assert await env.engine.handle("r-1").result() == "APOLOGISE"
        assert world.calls == ["charge", "apologise", "apologise"]


async def test_a_retry_finds_the_step_behind_an_error_of_the_workflows_own(source: StoreSource) -> None:
    world = World()
    world.broken.add("b")

    @workflow
    async def flow() -> str:
        await touch("a")
        try:
            return await touch("b")
        except ConnectionError:
            raise LookupError("no b today")  # noqa: B904 - as people write it

    async with Environment([flow], source, resources={World: lambda: world}) as env:
        await env.engine.start(flow(), id="r-1")
        with pytest.raises(RunFailed, match="no b today"):
            await env.engine.handle("r-1").result()
        world.broken.clear()
        await env.engine.handle("r-1").retry()
        assert await env.engine.handle("r-1").result() == "B"
        assert world.calls == ["a", "b", "b"]


async def test_only_what_failed_can_be_retried(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.run(steps(), id="done")
        await env.engine.start(waiting(), id="asleep")
        for name in ("done", "asleep"):
            with pytest.raises(RunNotRetryable, match="only a failed run can be retried"):
                await env.engine.handle(name).retry()
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").retry()
