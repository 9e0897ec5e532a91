"""Runs that go on as another call: the same run, without its history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure import (
    NamedEvent,
    Retry,
    TimeReached,
    compensate,
    continue_as,
    current_run,
    event,
    first,
    receive,
    sleep,
    step,
    timer,
    workflow,
)
from perdure.errors import InvalidArguments, Misuse, NotInWorkflow, RunFailed
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource


@step(retry=Retry.never())
async def note(text: str) -> str:
    return text


@workflow
async def climb(level: int) -> str:
    await note(f"level {level}")
    if level < 5:
        await continue_as(climb(level + 1))
    return f"top at {level}"


@workflow
async def ping(left: int, label: str) -> str:
    await note(label)
    if left > 0:
        await continue_as(pong(left - 1))
    return label


@workflow
async def pong(left: int) -> str:
    await note("pong")
    await continue_as(ping(left, label=f"ping {left}"))


@workflow
async def collect(so_far: list[str]) -> list[str]:
    got = await receive("item")
    so_far = [*so_far, got]
    if len(so_far) < 3:
        await continue_as(collect(so_far))
    return so_far


@workflow
async def wait_or_hop(hops: int) -> str:
    """Its first life waits where its second one does too, for something else."""
    got = await first(event("go"), timer(hours=1))
    if isinstance(got, TimeReached):
        await continue_as(wait_or_hop(hops + 1))
    return f"{got.value} after {hops}"


async def test_the_same_run_goes_on_with_another_input_and_no_history(source: StoreSource) -> None:
    async with Environment([climb], source) as env:
        assert await env.engine.run(climb(0), id="r", tags={"k": "v"}) == "top at 5"
        view = await env.engine.get("r")
        assert view is not None
        assert (view.input, dict(view.tags)) == ({"level": 5}, {"k": "v"})
        history = await env.engine.history("r")
        assert [entry.value for entry in history.journal] == ["level 5"]
        assert [row.became for row in history.audit] == ["continued", "succeeded"]
        assert await env.check() == 1


async def test_a_run_can_become_another_workflow_of_another_arity(source: StoreSource) -> None:
    async with Environment([ping, pong], source) as env:
        assert await env.engine.run(ping(2, "start"), id="r") == "ping 0"
        view = await env.engine.get("r")
        assert view is not None
        assert (view.workflow, view.input) == ("ping", {"left": 0, "label": "ping 0"})


async def test_what_was_sent_to_it_is_kept(source: StoreSource) -> None:
    async with Environment([collect], source) as env:
        run = await env.engine.start(collect([]), id="r")
        for item in ("a", "b", "c"):
            await env.engine.send(NamedEvent("item", item), to="r")
        assert await run.result() == ["a", "b", "c"]
        assert await env.engine.events(to="r") == []


async def test_a_timer_of_the_life_before_does_not_fire_in_the_next(source: StoreSource) -> None:
    async with Environment([wait_or_hop], source, autojump_s=None) as env:
        run = await env.engine.start(wait_or_hop(0), id="r")
        await env.advance(timedelta(hours=1))
        await env.advance(timedelta(minutes=59))
        await env.engine.send(NamedEvent("go", "gone"), to="r")
        assert await run.result() == "gone after 1"


async def test_recovery_after_a_hop_begins_where_the_hop_led(source: StoreSource) -> None:
    async with Environment([wait_or_hop], source, autojump_s=None) as env:
        await env.engine.start(wait_or_hop(0), id="r")
        await env.advance(timedelta(hours=1))
        await env.restart()
        await env.advance(timedelta(hours=1))
        await env.engine.send(NamedEvent("go", "gone"), to="r")
        assert await env.engine.handle("r").result() == "gone after 2"


async def test_a_task_of_the_run_can_do_it_and_the_others_are_closed(source: StoreSource) -> None:
    closed: list[str] = []

    @workflow(name="forked")
    async def forked(again: bool) -> str:
        async def other() -> None:
            try:
                await sleep(timedelta(days=1))
            finally:
                closed.append("other")

        async def hop() -> None:
            await sleep(1)
            await continue_as(forked(False))

        if again:
            await asyncio.gather(other(), hop())
        return f"now at {current_run().now():%H:%M:%S}"

    async with Environment([forked], source) as env:
        assert await env.engine.run(forked(True)) == "now at 00:00:01"
        assert closed == ["other"]


async def test_bad_calls_are_refused_in_the_workflow(source: StoreSource) -> None:
    @workflow(name="wrong")
    async def wrong(how: str) -> str:
        if how == "registered":
            await compensate(note("undone"))
            await continue_as(wrong("plain"))
        if how == "type":
            await continue_as(climb("high"))  # type: ignore[arg-type]
        if how == "call":
            await continue_as("climb")  # type: ignore[arg-type]
        return "plain"

    async with Environment([wrong], source) as env:
        for how, kind in {"registered": Misuse, "type": InvalidArguments, "call": Misuse}.items():
            with pytest.raises(RunFailed) as caught:
                await env.engine.run(wrong(how))
            assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(NotInWorkflow):
        await continue_as(climb(1))


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> tuple[str, list[str]]:
        run = await env.engine.start(ping(2, "start"), id="ping")
        items = await env.engine.start(collect([]), id="collect")
        for item in ("a", "b", "c"):
            await env.engine.send(NamedEvent("item", item), to="collect", key=item)
        return await run.result(), await items.result()

    report = await run_with_crashes(scenario, workflows=[ping, pong, collect], store=fresh)
    assert report.result == ("ping 0", ["a", "b", "c"])
    assert report.trials >= 30
