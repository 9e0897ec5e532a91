"""Runs that wait for each other's ends: none of them ever ends, and somebody is told."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from perdure import NamedEvent, Workflow, compensate, first, receive, timer, workflow
from perdure.api.deadlocks import PERIOD_S
from perdure.models.functions.children import run_of
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

WARNING = "runs wait for each other, and nothing can end that"


@workflow(name="standstill.waits")
async def waits(others: list[str]) -> str:
    """Wait for the end of one run after the other."""
    for other in others:
        await run_of(other).result()
    return "done"


@workflow(name="standstill.gathers")
async def gathers(others: list[str]) -> str:
    await asyncio.gather(*[run_of(other).result() for other in others])
    return "done"


@workflow(name="standstill.one_of")
async def one_of(others: list[str]) -> str:
    return str((await first(*map(run_of, others))).run_id)


@workflow(name="standstill.for_a_while")
async def for_a_while(others: list[str]) -> str:
    return type(await first(run_of(others[0]), timer(hours=1))).__name__


@workflow(name="standstill.listens")
async def listens() -> str:
    await receive("go")
    return "done"


@workflow(name="standstill.awaits")
async def awaits(child: str, others: list[str]) -> str:
    """Wait for a child, which waits for others."""
    del child
    return await waits(others)


@workflow(name="standstill.undone_by_waiting")
async def undone_by_waiting(others: list[str]) -> None:
    await compensate(waits(others))
    await receive("go")


ALL: list[Workflow[Any, Any]] = [waits, gathers, one_of, for_a_while, listens, awaits, undone_by_waiting]


def environment(source: StoreSource) -> Environment:
    return Environment(ALL, source, autojump_s=None, poll_s=1.0)


async def kinds(env: Environment, run_id: str) -> list[str]:
    return [wait.kind for wait in await env.engine.handle(run_id).waits()]


async def pass_time(env: Environment, seconds: int = 3 * PERIOD_S) -> None:
    await env.settle()
    for _ in range(seconds // 10):
        await env.advance(10)
        await env.settle()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]


async def test_three_runs_that_wait_for_each_other(source: StoreSource, caplog: pytest.LogCaptureFixture) -> None:
    async with environment(source) as env:
        await env.engine.start(listens(), id="c")
        await env.engine.start(waits(["b"]), id="a-0")
        await env.engine.start(waits(["a"]), id="b")
        await env.engine.start(waits(["b"]), id="a")
        await pass_time(env)
        (told,) = warnings(caplog)
        assert "'a' waits for 'b', 'b' waits for 'a'" in told or "'b' waits for 'a', 'a' waits for 'b'" in told
        assert "cancel one of them" in told
        for run_id in ("a", "b", "a-0"):
            assert (await kinds(env, run_id))[0] == "standstill"
        assert await kinds(env, "c") == ["event"]
        assert await env.engine.handle("a").cancel()
        await env.settle()
        assert await kinds(env, "b") == []


async def test_a_child_that_waits_for_its_grandparent(source: StoreSource, caplog: pytest.LogCaptureFixture) -> None:
    async with environment(source) as env:
        with caplog.at_level(logging.WARNING, "perdure"):
            await env.engine.start(awaits("", ["top"]), id="middle")
            await env.engine.start(waits(["middle"]), id="top")
            await pass_time(env)
        (told,) = warnings(caplog)
        assert "'top' waits for 'middle'" in told


@pytest.mark.parametrize("deadline", [None, timedelta(days=1)], ids=["no deadline", "deadline"])
async def test_a_rollback_that_waits_for_a_run_that_waits_for_it(
    source: StoreSource, caplog: pytest.LogCaptureFixture, deadline: timedelta | None
) -> None:
    async with environment(source) as env:
        run = await env.engine.start(undone_by_waiting(["b"]), id="a", deadline=deadline)
        await env.engine.start(waits(["a"]), id="b")
        await env.settle()
        assert await kinds(env, "b") == ["run"]
        await run.cancel()
        await pass_time(env)
        assert await run.status() == "rolling_back"
        assert await kinds(env, "a") == ["standstill", "run"]
        assert await kinds(env, "b") == ["standstill", "run"]
        assert len(warnings(caplog)) == 1
        assert await env.engine.handle("b").cancel()
        await env.settle()
        assert await run.status() == "rollback_failed"


async def test_a_wait_that_something_else_can_end_is_no_standstill(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    async with environment(source) as env:
        await env.engine.start(for_a_while(["b"]), id="a")  # a timer
        await env.engine.start(waits(["a"]), id="b")
        await env.engine.start(listens(), id="free")
        await env.engine.start(one_of(["d", "free"]), id="c")  # another run
        await env.engine.start(waits(["c"]), id="d")
        await env.engine.start(waits(["f"]), id="e", deadline=timedelta(days=1))  # a deadline
        await env.engine.start(waits(["e"]), id="f")
        await pass_time(env)
        assert warnings(caplog) == []
        for run_id in "abcdef":
            assert "standstill" not in await kinds(env, run_id)
        await env.engine.send(NamedEvent("go"), to="free")
        await env.settle()
        assert (await env.engine.handle("d").status()) == "succeeded"


async def test_a_standstill_that_begins_when_the_last_way_out_is_gone(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    async with environment(source) as env:
        await env.engine.start(listens(), id="free")
        await env.engine.start(gathers(["b", "free"]), id="a")
        await env.engine.start(waits(["a"]), id="b")
        await pass_time(env)
        assert warnings(caplog) == []
        await env.engine.send(NamedEvent("go"), to="free")
        await pass_time(env, 600)
        assert len(warnings(caplog)) == 1


async def test_runs_that_nobody_has_in_memory(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waits(["b"]), id="a")
        await env.engine.start(waits(["a"]), id="b")
        await env.settle()
        await env.restart()
        assert (await kinds(env, "a"))[0] == "standstill"
