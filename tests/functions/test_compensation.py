"""Undoing: what a run registered is done in reverse when it fails, is cancelled or runs into its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, Workflow, compensate, current_step, receive, resource, sleep, start, step, workflow
from perdure.errors import InvalidDefinition, Misuse, NotInWorkflow, RollbackFailed, RunCancelled, RunFailed
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

THREE = ("flight", "hotel", "car")


class Diary(list[str]):
    """What was done and undone."""


@step(retry=Retry.never())
async def book(what: str) -> str:
    resource(Diary).append(f"book {what}")
    return what


@step(retry=Retry.never())
async def release(what: str) -> None:
    resource(Diary).append(f"release {what}")


@step(retry=Retry(attempts=2, initial=timedelta(minutes=1)))
async def release_later(what: str) -> None:
    resource(Diary).append(f"try to release {what}")
    if current_step().attempt == 1:
        raise OSError("nobody answers")


@step(retry=Retry.never())
async def cannot_release(what: str) -> None:
    resource(Diary).append(f"fail to release {what}")
    raise ValueError(f"{what} is not given back")


@workflow
async def cancel_booking(what: str) -> None:
    await release(what)


@workflow
async def trip(end: str) -> str:
    for what in THREE:
        booked = await book(what)
        await compensate(release(booked))
    if end == "fail":
        raise RuntimeError("no visa")
    if end == "wait":
        await receive("never")
    return "have a good trip"


@workflow
async def trip_that_ends_badly() -> str:
    await compensate(release("first"))
    await compensate(cannot_release("second"))
    await compensate(release("third"))
    raise RuntimeError("no visa")


@workflow(compensation="continue")
async def trip_that_goes_on_undoing() -> str:
    await compensate(release("first"))
    await compensate(cannot_release("second"))
    await compensate(release("third"))
    raise RuntimeError("no visa")


@workflow
async def trip_with_calls() -> str:
    await compensate(cancel_booking("hotel"))
    await compensate(release_later("car"))
    await sleep(timedelta(days=1))
    raise RuntimeError("no visa")


@workflow
async def undone_by_workflow() -> None:
    await compensate(cancel_slowly(await book("hotel")))
    await receive("never")


@workflow
async def cancel_slowly(what: str) -> None:
    await sleep(timedelta(hours=2))
    await cancel_booking(what)


ALL: list[Workflow[Any, Any]] = [
    trip,
    trip_that_ends_badly,
    trip_that_goes_on_undoing,
    trip_with_calls,
    cancel_booking,
    undone_by_workflow,
    cancel_slowly,
]


def environment(source: StoreSource, diary: Diary, **options: object) -> Environment:
    return Environment(ALL, source, resources={Diary: lambda: diary}, **options)  # type: ignore[arg-type]


async def test_a_run_that_succeeds_undoes_nothing(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        assert await env.engine.run(trip("well")) == "have a good trip"
        assert diary == [f"book {what}" for what in THREE]


async def test_a_failure_is_undone_in_reverse(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(trip("fail"), id="r")
        with pytest.raises(RunFailed, match="no visa") as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert diary[3:] == ["release car", "release hotel", "release flight"]
        assert await run.status() == "rolled_back"
        audit = [(row.was, row.became) for row in (await env.engine.handle("r").history()).audit]
        assert audit == [(None, "running"), ("running", "rolling_back"), ("rolling_back", "rolled_back")]
        assert await env.check() == 1


async def test_a_cancelled_run_is_undone_even_if_nobody_has_it_in_memory(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        await env.engine.start(trip("wait"), id="r")
        await env.quiet()
        await env.restart()
        run = env.engine.handle("r")
        assert await run.cancel("changed my mind")
        assert not await run.cancel("again")
        with pytest.raises(RunCancelled, match="changed my mind"):
            await run.result()
        assert diary[3:] == ["release car", "release hotel", "release flight"]
        became = [row.became for row in (await env.engine.handle("r").history()).audit]
        assert became == ["running", "suspended", "cancelling", "rolling_back", "rolled_back"]


async def test_a_passed_deadline_is_undone_too(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(trip("wait"), deadline=timedelta(hours=1))
        with pytest.raises(RunFailed, match="deadline"):
            await run.result()
        assert diary[3:] == ["release car", "release hotel", "release flight"]
        assert await run.status() == "rolled_back"


@pytest.mark.parametrize("how", ["late", "cancelled"])
async def test_the_deadline_of_a_run_does_not_end_what_undoes_it(source: StoreSource, how: str) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(undone_by_workflow(), deadline=timedelta(hours=1))
        if how == "cancelled":
            await env.quiet()
            await run.cancel()
        with pytest.raises((RunFailed, RunCancelled)):
            await run.result()
        assert diary == ["book hotel", "release hotel"]
        assert await run.status() == "rolled_back"
        await env.check()


async def test_a_compensation_that_fails_stops_the_others_by_default(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(trip_that_ends_badly())
        with pytest.raises(RunFailed, match=r"second is not given back.*no visa") as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, RollbackFailed)
        assert diary == ["release third", "fail to release second"]
        assert await run.status() == "rollback_failed"


async def test_or_not_if_the_workflow_says_so(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(trip_that_goes_on_undoing())
        with pytest.raises(RunFailed, match="1 of 3 compensations failed"):
            await run.result()
        assert diary == ["release third", "fail to release second", "release first"]
        assert await run.status() == "rollback_failed"


async def test_children_and_long_retries_work_while_rolling_back(source: StoreSource) -> None:
    diary = Diary()
    async with environment(source, diary) as env:
        run = await env.engine.start(trip_with_calls(), id="r")
        with pytest.raises(RunFailed, match="no visa"):
            await run.result()
        assert diary == ["try to release car", "try to release car", "release hotel"]
        (child,) = (await env.engine.runs.list(parent="r")).runs
        assert (child.workflow, child.status) == ("cancel_booking", "succeeded")


async def test_what_is_registered_keeps_its_arguments_as_they_were(source: StoreSource) -> None:
    diary = Diary()

    @step(retry=Retry.never())
    async def release_all(what: list[str]) -> None:
        resource(Diary).append(f"release {what}")

    @workflow(name="changing")
    async def changing() -> None:
        booked = ["flight"]
        await compensate(release_all(booked))
        booked.append("hotel")
        raise RuntimeError("no visa")

    async with Environment([changing], source, resources={Diary: lambda: diary}) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(changing())
        assert diary == ["release ['flight']"]


async def test_only_calls_can_be_registered_and_only_in_workflows(source: StoreSource) -> None:
    @workflow(name="wrong")
    async def wrong() -> None:
        await compensate("release")  # type: ignore[arg-type]

    async with Environment([wrong], source) as env:
        with pytest.raises(RunFailed) as caught:
            await env.engine.run(wrong())
        assert isinstance(caught.value.__cause__, Misuse)
    with pytest.raises(NotInWorkflow):
        await compensate(cancel_booking("x"))
    with pytest.raises(InvalidDefinition, match="halt"):
        workflow(compensation="maybe")  # type: ignore[call-overload]


async def test_a_crash_at_any_commit_undoes_everything_and_nothing_twice_after_its_commit(
    fresh: Callable[[], StoreSource],
) -> None:
    diaries: list[Diary] = []

    def trial() -> StoreSource:
        diaries.append(Diary())
        return fresh()

    async def scenario(env: Environment) -> list[str]:
        failing = await env.engine.start(trip("fail"), id="failing")
        waiting = await env.engine.start(trip("wait"), id="waiting")
        await env.quiet()
        await waiting.cancel("enough")
        for run in (failing, waiting):
            with pytest.raises((RunFailed, RunCancelled)):
                await run.result()
        # Each is undone in order; a crash may repeat the step that it met, but no other.
        for name in ("failing", "waiting"):
            entries = (await env.engine.handle(name).history()).journal
            undone = [entry.name for entry in entries if entry.position.startswith("undo.")]
            assert undone == ["release", "release", "release"]
        return [await failing.status(), await waiting.status()]

    report = await run_with_crashes(
        scenario, workflows=ALL, store=trial, resources={Diary: lambda: diaries[-1]}
    )  # fmt: skip
    assert report.result == ["rolled_back", "rolled_back"]
    for diary in diaries:
        done = [line for line in diary if line.startswith("release")]
        assert set(done) == {f"release {what}" for what in THREE}
        assert len(done) <= 6 + 2


@workflow
async def leaves_a_child(name: str) -> None:
    await compensate(release(name))
    await start(takes_a_hotel(name), id=f"child of {name}")
    await receive("never")


@workflow
async def takes_a_hotel(name: str) -> None:
    await book(name)
    await receive("never")


async def test_a_child_that_is_asked_for_while_its_parent_is_cancelled_does_not_begin(source: StoreSource) -> None:
    diary = Diary()
    async with Environment(
        [leaves_a_child, takes_a_hotel], source, resources={Diary: lambda: diary}, autojump_s=None
    ) as env:
        for turns in range(20):
            name = f"r-{turns}"
            run = await env.engine.start(leaves_a_child(name), id=name)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await run.cancel()
            done = list(diary)
            await env.quiet()
            child = await env.engine.runs.get(f"child of {name}")
            assert child is None or child.status == "cancelled"
            assert [one for one in diary[len(done) :] if not one.startswith("release")] == []
        await env.check()
