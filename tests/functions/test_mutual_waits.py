"""A child that waits for the end of the run that awaits it would never end: it is told so when it begins to wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import NamedEvent, Workflow, current_run, first, receive, sleep, start, timer, workflow
from perdure.errors import Misuse, RunFailed
from perdure.models.functions.children import run_of
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


@workflow
async def looks_up(parent: str) -> str:
    return str((await first(run_of(parent))).status)


@workflow
async def looks_up_for_a_while(parent: str) -> str:
    return type(await first(run_of(parent), timer(hours=1))).__name__


@workflow
async def goes_on(parent: str) -> str:
    try:
        await first(run_of(parent))
    except Misuse:
        await sleep(timedelta(hours=1))
        return "refused"
    return "waited"


@workflow
async def awaits(child: str) -> str:
    flow: Workflow[[str], str] = {"looks up": looks_up, "goes on": goes_on, "for a while": looks_up_for_a_while}[child]
    return await flow(current_run().id)


@workflow
async def starts() -> str:
    await start(looks_up(current_run().id), id="child")
    await receive("go")
    return "done"


FLOWS: list[Workflow[Any, Any]] = [looks_up, looks_up_for_a_while, goes_on, awaits, starts]


async def test_a_child_cannot_wait_for_the_run_that_awaits_it(source: StoreSource) -> None:
    async with Environment(FLOWS, source) as env:
        with pytest.raises(RunFailed, match="which awaits it: each would wait for the other"):
            await env.engine.run(awaits("looks up"))
        (child,) = (await env.engine.runs.list(workflow="looks_up")).runs
        assert child.status == "failed"


async def test_beside_a_timer_it_may_wait(source: StoreSource) -> None:
    """The timer ends the wait."""
    async with Environment(FLOWS, source) as env:
        assert await env.engine.run(awaits("for a while")) == "TimeReached"


async def test_a_child_that_nobody_awaits_may_wait_for_its_parent(source: StoreSource) -> None:
    async with Environment(FLOWS, source) as env:
        run = await env.engine.start(starts())
        await env.engine.send(NamedEvent("go", {}), to=run.id)
        assert await run.result() == "done"
        assert await env.engine.handle("child").result() == "succeeded"


async def test_what_was_refused_is_refused_in_every_replay(source: StoreSource) -> None:
    async with Environment(FLOWS, source, autojump_s=None) as env:
        run = await env.engine.start(awaits("goes on"))
        await env.settle()
        await env.restart()
        await env.advance(3_600)
        assert await env.engine.handle(run.id).result() == "refused"
