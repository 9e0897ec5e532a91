"""Engines on a database go by the server's clock, whatever their own machines take for the time of day."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from perdure import Engine, sleep, workflow
from perdure.ports import clock as clocks
from perdure.storage.postgres.clock import ServerClock, passed_us
from tests.storage.postgres.meddler import author_on, meddler

HOUR_US = 3_600_000_000


@workflow
async def sleeps(seconds: float) -> str:
    await sleep(seconds)
    return "awake"


async def test_what_the_server_says_counts_and_small_differences_do_not() -> None:
    clock = ServerClock()
    assert abs(clock.now() - time.time_ns() // 1000) < HOUR_US  # Nothing is known yet.
    base = passed_us()
    clock.learn(5 * HOUR_US, base, base + 2_000)
    assert clock._ahead == 5 * HOUR_US - base - 1_000
    clock.learn(5 * HOUR_US + 40_000, base, base + 2_000)
    assert clock._ahead == 5 * HOUR_US - base - 1_000  # It does not waver.
    clock.learn(5 * HOUR_US + 900_000, base, base + 2_000_000)
    assert clock._ahead == 5 * HOUR_US - base - 1_000  # Nobody knows when in those two seconds that was.
    clock.learn(4 * HOUR_US, base, base + 2_000)
    assert clock._ahead == 4 * HOUR_US - base - 1_000  # The server's clock was set.
    assert abs(clock.now() - 4 * HOUR_US) < HOUR_US


async def test_heartbeats_set_the_clock_right_after_the_server_s_was_set(url: str) -> None:
    async with author_on(f"{url}&lease=1") as author:
        clock = author.store.clock
        assert isinstance(clock, ServerClock)
        before = passed_us()
        clock.learn(5 * HOUR_US, before, before)  # as if the server had said so
        while abs(clock.now() - time.time_ns() // 1000) > HOUR_US:
            await asyncio.sleep(0.01)


async def test_a_sign_of_life_lasts_as_long_as_it_should_though_the_clock_is_set(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with author_on(f"{url}&lease=1000") as author:
        assert author.store.is_surely_alive()
        right, right_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: right() + 3600)
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + 3600 * 10**9)
        assert author.store.is_surely_alive()


@pytest.mark.parametrize("skew", [timedelta(hours=1), timedelta(hours=-1)])
async def test_an_engine_whose_machine_is_wrong_takes_over_and_is_neither_early_nor_late(
    url: str, monkeypatch: pytest.MonkeyPatch, skew: timedelta
) -> None:
    async with Engine(url, workflows=[sleeps]) as engine:
        far = await engine.start(sleeps(1800), id="far")
        while await far.status() != "suspended":
            await far.status()
        (wait,) = await engine.handle("far").waits()
    skew_ns = round(skew.total_seconds() * 1e9)
    right = time.time_ns
    monkeypatch.setattr(clocks, "time_ns", lambda: right() + skew_ns)
    async with Engine(url, workflows=[sleeps]) as engine, meddler(url) as other:
        server = await other.fetchval("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
        assert abs(engine.session.clock.now() - server) < HOUR_US / 2
        await engine.recover()
        assert await engine.handle("far").status() == "suspended"
        assert await engine.run(sleeps(0.01), id="near") == "awake"
        view = await engine.runs.get("near")
        assert view is not None
        assert abs(view.created_at.timestamp() * 1e6 - server) < HOUR_US / 2
        assert (await engine.handle("far").waits())[0] == wait
