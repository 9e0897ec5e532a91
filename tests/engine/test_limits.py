"""What happens at the edges: a full inbox, a store that refuses one run's progress for good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Limits, step, workflow
from perdure.errors import CommitRefused, EngineStopped, InvalidArguments
from perdure.kernel.batch import Batch, Committed
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.world import steps, waiting


async def test_more_callers_than_the_inbox_holds_wait_and_are_served(source: StoreSource) -> None:
    async with Environment([steps], source, limits=Limits(inbox_max=2)) as env:
        results = await asyncio.gather(*[env.engine.run(steps(), id=f"r-{n}") for n in range(50)])
        assert results == [[]] * 50


async def test_callers_that_wait_for_room_are_told_of_a_shutdown(source: StoreSource) -> None:
    async with Environment([waiting], source, limits=Limits(inbox_max=1)) as env:
        starts = [asyncio.ensure_future(env.engine.start(waiting(), id=f"r-{n}")) for n in range(5)]
        await asyncio.sleep(0)
        await env.engine.shutdown()
        done, pending = await asyncio.wait(starts, timeout=1)
        for task in pending:
            task.cancel()
        assert not pending
        assert all(task.exception() is None or isinstance(task.exception(), EngineStopped) for task in done)
        env.kill()


class Picky(MemoryStore):
    """Takes no journal entry of the run called `bad`."""

    async def commit(self, batch: Batch) -> Committed:
        if any(entry.run_id == "bad" for entry in batch.journal):
            raise CommitRefused("not this one")
        return await super().commit(batch)


async def test_a_run_whose_progress_is_refused_is_held_alone() -> None:
    calls: list[str] = []

    @step
    async def work(name: str) -> str:
        calls.append(name)
        return name

    @workflow
    async def flow(name: str) -> str:
        return await work(name)

    database = MemoryDatabase()
    async with Environment([flow], lambda: Picky(database)) as env:
        runs = [await env.engine.start(flow(name), id=name) for name in ("a", "bad", "b")]
        assert await runs[0].result() == "a"
        assert await runs[2].result() == "b"
        await env.quiet()
        view = await env.engine.runs.get("bad")
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, "refused" in view.hold.reason) == ("blocked", True)
        assert sorted(calls) == ["a", "b", "bad"]


async def test_a_run_whose_progress_is_refused_is_not_run_again_and_again() -> None:
    calls: list[int] = []

    @step
    async def work() -> None:
        calls.append(1)

    @workflow
    async def flow() -> None:
        await work()

    database = MemoryDatabase()
    async with Environment([flow], lambda: Picky(database)) as env:
        await env.engine.start(flow(), id="bad")
        await env.quiet()
        for _ in range(3):
            await env.engine.recover()
            await env.quiet()
        assert len(calls) == 1


@pytest.mark.parametrize("name", [name for name in Limits.__struct_fields__ if name.endswith("_s")])
def test_a_time_is_one_that_a_thread_can_wait_for(name: str) -> None:
    def made(seconds: Any) -> Limits:
        return Limits(**{name: seconds})

    for wrong in (float("inf"), 1e10, float("nan"), -1):
        with pytest.raises(InvalidArguments, match=name):
            made(wrong)
    years = 100 * 366 * 86_400
    assert getattr(made(years), name) == years
