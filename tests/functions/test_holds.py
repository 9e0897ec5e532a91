"""Runs whose code cannot go on are set aside with a reason a person can read, and go on once it can."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Limits, Retry, current_step, sleep, step, workflow
from perdure.errors import ForbiddenInWorkflow, RunFailed
from perdure.kernel.runs import Hold
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


@step
async def reserve(order: str) -> str:
    return f"reserved {order}"


@step
async def charge(order: str) -> str:
    return f"charged {order}"


@step
async def notify(order: str) -> str:
    return f"notified {order}"


@workflow(name="checkout")
async def first(order: str) -> str:
    await reserve(order)
    await sleep(timedelta(hours=1))
    return await notify(order)


@workflow(name="checkout")
async def changed(order: str) -> str:
    await charge(order)
    await sleep(timedelta(hours=1))
    return await notify(order)


@workflow(name="checkout")
async def mended(order: str) -> str:
    await reserve(order)
    await sleep(timedelta(hours=1))
    return "mended: " + await notify(order)


@workflow(name="checkout")
async def shorter(order: str) -> str:
    return order


@workflow(name="checkout")
async def other_parameter(order: int) -> int:
    await sleep(timedelta(hours=1))
    return order


async def blocked_by(code: Any, source: StoreSource) -> Hold:
    """The hold of a run that `first` left behind when an engine with `code` finds it."""
    async with Environment([first], source, autojump_s=None) as env:
        await env.engine.start(first("o-17"), id="r-1")
        await env.quiet()
        before = env.clock
    async with Environment([code], source, clock=before, autojump_s=None) as env:
        await env.advance(timedelta(hours=2))
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, view.status, view.owner) == ("blocked", "suspended", None)
        await env.check()
        return view.hold


async def test_code_that_does_not_fit_blocks_the_run_with_a_diff(source: StoreSource) -> None:
    hold = await blocked_by(changed, source)
    assert hold.reason == (
        "the code does not fit the journal: at position 1 the journal has step 'reserve', "
        "the code asks for step 'charge'"
    )
    assert "-    1  1        step reserve" in hold.details
    assert "+ now: step 'charge' at 1" in hold.details


async def test_code_that_ends_too_early_blocks_the_run(source: StoreSource) -> None:
    hold = await blocked_by(shorter, source)
    assert "the code ends after 0 of 1 journal entries" in hold.reason
    assert "the end of the workflow" in hold.details


async def test_code_that_takes_other_arguments_blocks_the_run(source: StoreSource) -> None:
    assert "Expected `int`, got `str`" in (await blocked_by(other_parameter, source)).reason


async def test_a_blocked_run_goes_on_by_itself_once_fitting_code_is_there(source: StoreSource) -> None:
    hold = await blocked_by(changed, source)
    async with Environment([changed], source, autojump_s=None) as env:
        assert (await env.engine.recover()).total == 0  # The same code does not claim it in vain.
        again = await env.engine.runs.get("r-1")
        assert again is not None
        assert again.hold == hold
    async with Environment([mended], source) as env:
        assert await env.engine.handle("r-1").result() == "mended: notified o-17"
        audit = [row.became for row in (await env.engine.handle("r-1").history()).audit]
        assert audit == ["running", "suspended", "blocked", "resumed", "running", "succeeded"]
        await env.check()


async def test_engines_with_code_that_does_not_fit_do_not_pass_a_run_to_and_fro(source: StoreSource) -> None:
    await blocked_by(changed, source)
    audits: set[int] = set()
    for code, is_new in ((other_parameter, True), (changed, False), (other_parameter, False), (changed, False)):
        async with Environment([code], source, autojump_s=None) as env:
            assert (await env.engine.recover()).total == 0  # It was claimed when the engine opened, if ever.
            await env.quiet()
            view = await env.engine.runs.get("r-1")
            assert view is not None
            assert view.hold is not None
            before, audits = audits, {len((await env.engine.handle("r-1").history()).audit)}
            assert (before != audits) == is_new
    async with Environment([mended], source) as env:
        assert await env.engine.handle("r-1").result() == "mended: notified o-17"
        await env.check()


async def test_a_deadlock_is_held_with_its_stack_and_again_after_it_is_resumed(source: StoreSource) -> None:
    @workflow
    async def stuck() -> None:
        await reserve("x")
        await asyncio.Event().wait()

    async with Environment([stuck], source) as env:
        run = await env.engine.start(stuck())
        for _ in range(2):
            await env.quiet()
            view = await env.engine.runs.get(run.id)
            assert view is not None
            assert view.hold is not None
            assert "can never happen" in view.hold.reason
            assert "in stuck" in view.hold.details
            assert await env.engine.handle(run.id).resume()
        assert await env.engine.handle(run.id).cancel()


async def test_a_loop_that_never_waits_is_held_and_others_go_on(source: StoreSource) -> None:
    @workflow
    async def busy() -> None:
        while True:
            await asyncio.sleep(0)

    @workflow
    async def innocent() -> str:
        return await reserve("y")

    async with Environment([busy, innocent], source, limits=Limits(callbacks_max=500)) as env:
        run = await env.engine.start(busy())
        assert await env.engine.run(innocent()) == "reserved y"
        await env.quiet()
        view = await env.engine.runs.get(run.id)
        assert view is not None
        assert view.hold is not None
        assert "500 callbacks without waiting" in view.hold.reason
        assert "in busy" in view.hold.details


def connect() -> None:
    socket.create_connection(("127.0.0.1", 9), timeout=0.01)


def write() -> None:
    Path("never-written").write_text("x")


FORBIDDEN: dict[str, Callable[[], None]] = {
    "socket": connect,
    "write": write,
    "time.sleep": lambda: time.sleep(0),
    "thread": lambda: threading.Thread(target=print).start(),
}


@pytest.mark.parametrize("what", list(FORBIDDEN))
async def test_touching_the_world_in_a_workflow_says_to_use_a_step(what: str) -> None:
    @workflow
    async def flow() -> None:
        FORBIDDEN[what]()

    async with Environment([flow]) as env:
        with pytest.raises(RunFailed, match="put this into a step") as caught:
            await env.engine.run(flow())
        assert isinstance(caught.value.__cause__, ForbiddenInWorkflow)
    assert not await asyncio.to_thread(Path("never-written").exists)


async def test_threads_and_foreign_futures_in_a_workflow_say_to_use_a_step() -> None:
    foreign: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @workflow
    async def thread() -> None:
        await asyncio.to_thread(print)

    @workflow
    async def future() -> None:
        await foreign

    async with Environment([thread, future]) as env:
        for flow in (thread, future):
            with pytest.raises(RunFailed, match="put this into a step"):
                await env.engine.run(flow())


# Eviction.


async def test_runs_that_are_evicted_notice_nothing(source: StoreSource) -> None:
    @workflow
    async def flow(n: int) -> list[str]:
        got = [await reserve(f"a{n}")]
        await sleep(60 + n)
        got += await asyncio.gather(reserve(f"b{n}"), charge(f"c{n}"))
        await sleep(60)
        return [*got, await notify(f"d{n}")]

    async with Environment([flow], source, limits=Limits(live_runs_max=3)) as env:
        runs = [await env.engine.start(flow(n)) for n in range(20)]
        results = await asyncio.gather(*[run.result() for run in runs])
        assert results == [[f"reserved a{n}", f"reserved b{n}", f"charged c{n}", f"notified d{n}"] for n in range(20)]
        assert await env.check() == 20
        assert (await env.engine.runs.list(hold="blocked")).runs == []


async def test_more_busy_runs_than_may_live_are_all_kept(source: StoreSource) -> None:
    let_go = asyncio.Event()

    @step
    async def hang(n: int) -> int:
        await let_go.wait()
        return n

    @workflow
    async def flow(n: int) -> int:
        return await hang(n)

    async with Environment([flow], source, limits=Limits(live_runs_max=1), autojump_s=None) as env:
        runs = [await env.engine.start(flow(n)) for n in range(5)]
        let_go.set()
        assert await asyncio.gather(*[run.result() for run in runs]) == [0, 1, 2, 3, 4]


async def test_a_step_that_waits_for_its_next_attempt_can_be_evicted(source: StoreSource) -> None:
    @step(retry=Retry(attempts=3, initial=timedelta(minutes=1), jitter=0))
    async def shaky(n: int) -> list[int]:
        if (attempt := current_step().attempt) < 3:
            raise OSError
        return [n, attempt]

    @workflow
    async def flow(n: int) -> list[int]:
        return await shaky(n)

    async with Environment([flow], source, limits=Limits(live_runs_max=1)) as env:
        runs = [await env.engine.start(flow(n)) for n in range(4)]
        assert await asyncio.gather(*[run.result() for run in runs]) == [[n, 3] for n in range(4)]
