"""Rollbacks that are in the way of something: held, evicted, cancelled twice, blamed, and with other code."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure import Limits, NamedEvent, Retry, Workflow, compensate, receive, step, workflow
from perdure.errors import RunCancelled, RunFailed
from perdure.kernel import ops
from perdure.kernel.runs import Hold
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class Desk:
    """What was done, and a step that hangs until it is let go."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.hangs = asyncio.Event()
        self.leave = asyncio.Event()


@pytest.fixture
def desk() -> Desk:
    return Desk()


def trips(desk: Desk) -> tuple[Workflow[Any, Any], Workflow[Any, Any]]:
    """One workflow, as it is and as somebody changes it."""

    @step(retry=Retry.never(), name="release")
    async def release(what: str) -> None:
        desk.done.append(f"release {what}")

    @step(retry=Retry.never(), name="wait")
    async def wait(what: str) -> None:
        desk.hangs.set()
        await desk.leave.wait()
        desk.done.append(f"wait for {what}")

    @workflow(name="trip")
    async def trip() -> None:
        await compensate(release("hotel"))
        await compensate(wait("car"))
        await receive("go")
        raise ValueError("no visa")

    @workflow(name="trip")
    async def changed() -> None:
        await compensate(release("hotel"))
        await compensate(release("bicycle"))
        await receive("go")
        raise ValueError("no passport")

    return trip, changed


async def view(env: Environment, run_id: str = "r-1") -> tuple[str, str | None, int]:
    found = await env.engine.runs.get(run_id)
    assert found is not None
    return found.status, None if found.hold is None else found.hold.kind, found.recoveries


async def rolling_back(env: Environment, desk: Desk) -> None:
    await env.engine.start("trip", id="r-1")
    await env.engine.send(NamedEvent("go"), to="r-1")
    await desk.hangs.wait()


async def test_a_paused_rollback_goes_on_where_it_was(source: StoreSource, desk: Desk) -> None:
    trip, _ = trips(desk)
    async with Environment([trip], source, autojump_s=None) as env:
        await rolling_back(env, desk)
        assert await env.engine.handle("r-1").pause()
        await env.restart()
        assert await view(env) == ("rolling_back", "paused", 0)
        assert not await env.engine.handle("r-1").cancel()  # It is being undone already.
        desk.leave.set()
        assert await env.engine.handle("r-1").resume()
        with pytest.raises(RunFailed, match="no visa"):
            await env.engine.handle("r-1").result()
        assert desk.done == ["wait for car", "release hotel"]
        assert await view(env) == ("rolled_back", None, 0)
        await env.check()


async def test_a_rollback_that_other_code_does_not_fit_waits_for_its_own(
    source: StoreSource, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    trip, changed = trips(desk)
    async with Environment([trip], source, autojump_s=None) as env:
        await rolling_back(env, desk)
        with caplog.at_level(logging.WARNING, "perdure"):
            await env.restart([changed])
            await env.quiet()
        assert await view(env) == ("rolling_back", "blocked", 1)
        (line,) = [record.getMessage() for record in caplog.records if "is held (blocked)" in record.getMessage()]
        assert "start an engine with code that fits" in line
        assert "cancel" not in line  # It would change nothing.
        desk.leave.set()
        await env.restart([trip])
        with pytest.raises(RunFailed, match="no visa"):
            await env.engine.handle("r-1").result()
        assert desk.done == ["wait for car", "release hotel"]
        await env.check()


async def test_a_run_that_is_poison_and_cancelled_is_undone_with_a_clean_slate(source: StoreSource, desk: Desk) -> None:
    """The rollback is other code than what killed the process: it may be interrupted as often as any."""
    trip, _ = trips(desk)
    async with Environment([trip], source, autojump_s=None, limits=Limits(recoveries_max=1)) as env:
        await env.engine.start("trip", id="r-1")
        await env.quiet()
        await env.engine.session.coordinator.submit(ops.Count(run_id="r-1", at=env.clock.now(), claim=1, change=1))
        hold = Hold(kind="poison", reason="it died", at=env.clock.now())
        await env.engine.session.coordinator.submit(ops.SetHold(run_id="r-1", at=env.clock.now(), hold=hold))
        assert await view(env) == ("suspended", "poison", 1)
        assert await env.engine.handle("r-1").cancel()
        await desk.hangs.wait()
        assert await view(env) == ("rolling_back", None, 0)
        desk.hangs.clear()
        await env.restart()
        await desk.hangs.wait()
        assert await view(env) == ("rolling_back", None, 1)
        desk.leave.set()
        with pytest.raises(RunCancelled):
            await env.engine.handle("r-1").result()
        assert desk.done == ["wait for car", "release hotel"]


async def test_a_rollback_goes_on_though_others_fill_the_memory(source: StoreSource, desk: Desk) -> None:
    @workflow
    async def child() -> None:
        await receive("done")

    @step(retry=Retry.never())
    async def release(what: str) -> None:
        desk.done.append(what)

    @workflow
    async def flow(number: int) -> None:
        await compensate(release(f"first {number}"))
        await compensate(child())
        raise ValueError("undo all")

    async with Environment([flow, child], source, autojump_s=None, limits=Limits(live_runs_max=1)) as env:
        for number in range(5):
            await env.engine.start(flow(number), id=f"r-{number}")
            await env.quiet()
        await env.restart()
        await env.quiet()
        for _ in range(5):
            await env.engine.send(NamedEvent("done"))
        for number in range(5):
            with pytest.raises(RunFailed):
                await env.engine.handle(f"r-{number}").result()
            assert (await view(env, f"r-{number}"))[0] == "rolled_back"
        assert sorted(desk.done) == [f"first {number}" for number in range(5)]
        await env.check()


async def test_whoever_cancels_first_has_it_undone_once(source: StoreSource, desk: Desk) -> None:
    trip, _ = trips(desk)
    desk.leave.set()
    async with Environment([trip], source, autojump_s=None) as env:
        await env.engine.start("trip", id="r-1")
        await env.quiet()
        sent = env.engine.send(NamedEvent("go"), to="r-1")
        answers = await asyncio.gather(
            *[env.engine.handle("r-1").cancel() for _ in range(5)], sent, return_exceptions=True
        )
        assert answers[:5].count(True) <= 1
        with pytest.raises((RunFailed, RunCancelled)):
            await env.engine.handle("r-1").result()
        assert desk.done == ["wait for car", "release hotel"]
        await env.check()
