"""An engine whose store cannot be used as it is: it starts over, after pauses that grow, and stops in the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from perdure.coordinator.caller_patience import Restarts
from perdure.errors import (
    EngineBug,
    EngineStopped,
    InvariantViolated,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBroken,
    StoreMisconfigured,
    StoreUnavailable,
)
from perdure.kernel.effects import Drop
from perdure.kernel.rules.starts import Started
from perdure.testing.simulate.loop import SimulatedLoop
from perdure.values.limits import Limits
from tests.coordinator.test_coordinator import Bench, advance, bench, start, turns

T = TypeVar("T")

USUAL = Limits()


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop = SimulatedLoop(0)
    try:
        result: T = loop.run_until_complete(scenario())
    finally:
        loop.run_out()
        loop.close()
    return result


def unfit() -> StoreMisconfigured:
    return StoreMisconfigured("there is no table journal; restore it from a backup")


def test_pauses_grow_up_to_a_bound_and_are_counted() -> None:
    restarts = Restarts(Limits(restarts_max=5, restart_first_s=0.5, restart_max_s=3.0))
    assert [restarts.next_pause_s(float(number)) for number in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_restarts_are_forgotten_once_the_engine_was_well_for_long() -> None:
    restarts = Restarts(Limits(restarts_max=2, restart_forget_s=600))
    assert [restarts.next_pause_s(at) for at in (0.0, 10.0, 20.0)] == [0.5, 1.0, None]
    assert [restarts.next_pause_s(at) for at in (700.0, 710.0, 720.0)] == [0.5, 1.0, None]


def test_an_engine_drops_its_runs_and_its_sign_of_life_and_registers_anew() -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            await b.coordinator.submit(start("a"))
            b.store.script = [unfit()]
            waiting = b.submit(start("b"))
            b.coordinator.enqueue(advance("a", 1))
            while b.coordinator.loaded("a") is not None:
                await asyncio.sleep(0)
            await turns()
            assert not b.store.is_surely_alive()
            assert await b.store.mark_dead_engines() == ["e1"]  # Others can take its runs before it is back.
            started = await waiting
            assert (started.run.owner, b.rejoined, b.stopped_by) == ("e2", 1, None)
            assert Drop("a", "the store has another state") in b.effects
            assert asyncio.get_running_loop().time() == pytest.approx(0.5, abs=0.1)
            assert b.store.is_surely_alive()

    in_virtual_time(scenario)


def test_an_engine_that_cannot_register_either_tries_ever_more_rarely_until_it_can() -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            b.store.script = [unfit()]
            b.store.reads = [None, unfit(), unfit(), unfit()]
            assert isinstance(await b.coordinator.submit(start("a")), Started)
            assert asyncio.get_running_loop().time() == pytest.approx(0.5 + 1 + 2 + 4, abs=0.1)
            assert b.stopped_by is None

    in_virtual_time(scenario)


def test_after_too_many_restarts_the_engine_stops_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            b.store.script = [unfit() for _ in range(100)]
            with pytest.raises(StoreUnavailable, match="there is no table journal"):
                await b.coordinator.submit(start("a"))
            assert asyncio.get_running_loop().time() == pytest.approx(USUAL.patience_s, abs=1.1)
            while b.stopped_by is None:
                b.coordinator.enqueue(start("owed"))
                await asyncio.sleep(1)
            assert isinstance(b.stopped_by, EngineStopped)
            with pytest.raises(EngineStopped, match="after 10 new starts: there is no table journal"):
                await b.coordinator.submit(start("b"))
            assert b.enrolled == 1 + USUAL.restarts_max
            assert asyncio.get_running_loop().time() == pytest.approx(sum((0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60)), abs=5)

    caplog.set_level(logging.WARNING)
    in_virtual_time(scenario)
    assert "the engine registers anew in 0.5 s (1 of 10 times): there is no table journal" in caplog.text
    assert "What to do: mend the database (perdure doctor)" in caplog.text
    assert "the engine stops: after 10 new starts: there is no table journal" in caplog.text


@pytest.mark.parametrize(
    "error",
    [StoreBroken("corrupt"), SchemaTooNew("newer"), InvariantViolated("wrong"), EngineBug("bug"), ValueError("code")],
)
def test_what_nobody_can_mend_while_it_runs_stops_the_engine_at_once(error: Exception) -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            b.store.script = [error]
            with pytest.raises(EngineStopped):
                await b.coordinator.submit(start("a"))
            assert (b.enrolled, asyncio.get_running_loop().time()) == (1, 0)
            assert b.stopped_by is not None

    in_virtual_time(scenario)


def test_whoever_waits_behind_the_batch_that_stops_the_engine_is_told_too() -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            first = await b.hold_commits(start("a"))
            behind = b.submit(start("b"))
            await turns()
            b.store.script = [StoreBroken("corrupt")]
            b.store.gate.set()
            for waiting in (first, behind):
                with pytest.raises(EngineStopped, match="corrupt"):
                    await asyncio.wait_for(waiting, 1)

    in_virtual_time(scenario)


def test_whoever_does_not_know_whether_it_was_written_is_told_so_and_it_is_not_decided_again() -> None:
    async def scenario() -> None:
        async with bench(USUAL) as b:
            b.store.after = [OutcomeUnknown("the line went dead")]
            b.store.script = [None, unfit()]
            with pytest.raises(StoreUnavailable, match="may be written nevertheless"):
                await b.coordinator.submit(start("a"))
            await b.idle()
            assert len(b.store.database.audit["a"]) == 1

    in_virtual_time(scenario)


def test_an_engine_that_starts_over_can_be_stopped_at_once() -> None:
    async def scenario() -> None:
        b = Bench(USUAL)
        await b.store.open()
        await b.coordinator.start()
        b.store.script = [unfit()]
        waiting = b.submit(start("a"))
        while b.store.is_surely_alive():
            await asyncio.sleep(0)
        await turns()
        await b.coordinator.stop()
        with pytest.raises(EngineStopped):
            await waiting
        assert asyncio.get_running_loop().time() < 0.5

    in_virtual_time(scenario)
