"""Yield points: what is seen there, who stops, and that the example of the docstring holds."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Delivered, Event, receive, workflow
from perdure.errors import RunFinished
from perdure.testing import Environment, YieldPoints


class Paid(Event):
    amount: int


@workflow
async def checkout() -> int:
    return (await receive(Paid)).amount


def environment(points: YieldPoints) -> Environment:
    return Environment([checkout], autojump_s=None, probe=points)


async def test_an_op_comes_by_its_points_in_order() -> None:
    points = YieldPoints()
    async with environment(points) as env:
        await env.engine.start(checkout(), id="r")
        await env.quiet()
        points.seen.clear()
        await env.engine.send(Paid(amount=1), to="r")
        await env.quiet()
        assert points.seen == [
            ("send.submit", "r"), ("batch.take", ""), ("send.before_commit", "r"), ("send.committed", "r"),
            ("advance.submit", "r"), ("send.done", "r"),
            ("batch.take", ""), ("advance.before_commit", "r"), ("advance.committed", "r"), ("advance.done", "r"),
        ]  # fmt: skip


@pytest.mark.parametrize("first", ["send", "cancel"])
async def test_two_ops_meet_in_the_order_that_the_test_wants(first: str) -> None:
    points = YieldPoints()
    async with environment(points) as env:
        await env.engine.start(checkout(), id="o-17")
        await env.quiet()
        calls = {
            "send": lambda: env.engine.send(Paid(amount=100), to="o-17"),
            "cancel": lambda: env.engine.handle("o-17").cancel(),
        }
        second = "cancel" if first == "send" else "send"
        tasks = {}
        with points.hold(f"{first}.before_commit") as held:
            tasks[first] = asyncio.ensure_future(calls[first]())  # type: ignore[no-untyped-call]
            await held.reached()
            tasks[second] = asyncio.ensure_future(calls[second]())  # type: ignore[no-untyped-call]
        await asyncio.wait(tasks.values())
        assert tasks["cancel"].result() is True
        if first == "send":
            assert tasks["send"].result() == Delivered(("o-17",))
        else:
            assert isinstance(tasks["send"].exception(), RunFinished)


async def test_a_point_can_be_held_for_one_run_and_released_early() -> None:
    points = YieldPoints()
    async with environment(points) as env:
        for name in ("a", "b"):
            await env.engine.start(checkout(), id=name)
        await env.quiet()
        with points.hold("send.submit", run="a") as held:
            waiting = asyncio.ensure_future(env.engine.send(Paid(amount=1), to="a"))
            await env.engine.send(Paid(amount=2), to="b")
            assert held.is_reached
            assert not waiting.done()
            held.release()
            assert await waiting == Delivered(("a",))
        assert [await env.engine.handle(name).result() for name in ("a", "b")] == [1, 2]


async def test_passing_a_point_can_be_waited_for() -> None:
    points = YieldPoints()
    async with environment(points) as env:
        passing = asyncio.ensure_future(points.passed("advance.done", run="r"))
        await asyncio.sleep(0)
        await env.engine.start(checkout(), id="other")
        await env.quiet()
        assert not passing.done()
        await env.engine.start(checkout(), id="r")
        await passing
        assert await env.engine.handle("r").status() == "suspended"


async def test_an_engine_that_is_killed_at_a_point_lets_its_callers_go() -> None:
    points = YieldPoints()
    async with environment(points) as env:
        with points.hold("start.before_commit") as held:
            starting = asyncio.ensure_future(env.engine.start(checkout(), id="r"))
            await held.reached()
            env.kill()
            await asyncio.wait({starting})
        assert starting.exception() is not None
        await env.restart()
        assert await env.engine.runs.get("r") is None
