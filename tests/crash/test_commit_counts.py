"""How many commits a run costs, counted at the store's door."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import Retry, Workflow, sleep, step, workflow
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger


@step(retry=Retry.never())
async def add(left: int, right: int) -> int:
    return left + right


@workflow
async def sum_up(steps: int) -> int:
    total = 0
    for number in range(steps):
        total = await add(total, number)
    return total


@workflow
async def fan_out(width: int) -> int:
    return sum(await asyncio.gather(*[add(number, 1) for number in range(width)]))


@workflow
async def nap() -> str:
    await sleep(60)
    return "rested"


WORKFLOWS: list[Workflow[Any, Any]] = [sum_up, fan_out, nap]


@pytest.mark.parametrize(("steps", "commits"), [(0, 2), (1, 2), (2, 3), (10, 11)])
async def test_a_run_commits_its_start_and_then_once_per_step(steps: int, commits: int, source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        assert await env.engine.run(sum_up(steps)) == sum(range(steps))
        await env.settle()
        assert len(ledger.batches) == env.engine.engines.stats.commits == commits


async def test_the_last_result_and_the_end_of_the_run_share_a_commit(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        await env.engine.run(sum_up(1))
    start, end = ledger.batches
    assert [row.became for row in start.audit] == ["running"]
    assert [entry.kind for entry in end.journal] == ["step"]
    assert [row.became for row in end.audit] == ["succeeded"]


async def test_a_sleep_costs_two_commits_more(source: StoreSource) -> None:
    """Start; suspended with its timer; the timer's entry and the end."""
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        await env.engine.run(nap())
    assert len(ledger.batches) == 3


async def test_an_overdue_sleep_of_a_run_that_nobody_has_costs_one_commit(source: StoreSource) -> None:
    """The claim, the timer's entry and the end."""
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch, autojump_s=None) as env:
        await env.engine.start(nap(), id="nap")
        await env.quiet()
        env.kill()
        env.clock.move_to(env.clock.now() + 3_600_000_000)
        before = len(ledger.batches)
        await env.restart()
        assert await env.engine.handle("nap").result() == "rested"
    (batch,) = ledger.batches[before:]
    assert [entry.kind for entry in batch.journal] == ["timer"]
    assert [row.became for row in batch.audit] == ["running", "succeeded"]


async def test_steps_that_end_together_share_a_commit(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        assert await env.engine.run(fan_out(50)) == sum(range(50)) + 50
    assert len(ledger.batches) <= 4


async def test_a_hundred_concurrent_runs_share_commits(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        results = await asyncio.gather(*[env.engine.run(sum_up(10)) for _ in range(100)])
        assert results == [45] * 100
        assert env.engine.engines.stats.largest_batch >= 50
    # Alone they would take 1,100.
    assert len(ledger.batches) <= 110


async def test_what_changes_nothing_commits_nothing(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, watch=ledger.watch) as env:
        await env.engine.run(sum_up(1), id="r")
        before = len(ledger.batches)
        assert await env.engine.handle("r").cancel() is False
        assert await env.engine.handle("nobody").cancel() is False
        assert await (await env.engine.start(sum_up(1), id="r")).result() == 0
        assert len(ledger.batches) == before
