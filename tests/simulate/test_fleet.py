"""Fleets in a few chosen situations, on the simulator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.ports import LoadedRun
from perdure.testing.simulate import FINE, Bug, Simulation, Weather
from perdure.testing.simulate.workload import Ledger, Told, baker, clerk


def a_simulation(**options: Any) -> Simulation:
    return Simulation(1, resources={Ledger: lambda: Ledger(lambda *_: None)}, **options)


def test_an_engine_learns_of_a_death_that_another_has_noticed() -> None:
    simulation = a_simulation()
    a, b, c = (simulation.member(name, code) for name, code in [("a", [baker]), ("b", [clerk]), ("c", [baker])])

    async def scenario() -> Any:
        for member in (a, b, c):
            await member.open()
        await a.call(lambda engine: engine.start(baker([["hear"]]), id="r"))
        await asyncio.sleep(1)
        a.kill()
        await asyncio.sleep(5)
        c.pause()  # Not for longer than its lease, but while the one of `a` ends.
        await asyncio.sleep(8)
        c.wake()
        assert [engine.alive for engine in simulation.database.memory.engines.values()] == [False, True, True]
        await b.call(lambda engine: engine.send(Told(number=0), to="r"))
        async with asyncio.timeout(30):
            return await c.call(lambda engine: engine.handle("r").result())

    assert simulation.run(scenario()) == [0]
    assert [line for line in simulation.trace if "buries" in line]


def test_runs_that_were_claimed_without_the_engines_hearing_of_it_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = a_simulation()
    a, b = simulation.member("a", [clerk]), simulation.member("b", [clerk])
    claim = simulation.database.claim

    async def lossy_claim(engine_id: str, work: Any) -> list[LoadedRun]:
        claimed = await claim(engine_id, work)
        if claimed:
            simulation.network.weather = Weather(answers_lost=1.0)
            simulation.loop.call_later(0.1, setattr, simulation.network, "weather", FINE)
        return claimed

    async def scenario() -> Any:
        await a.open()
        await b.open()
        await a.call(lambda engine: engine.start(clerk([["work", 3, 0, 60.0]]), id="r"))
        await asyncio.sleep(1)
        monkeypatch.setattr(simulation.database, "claim", lossy_claim)
        a.kill()
        async with asyncio.timeout(120):
            return await b.call(lambda engine: engine.handle("r").result())

    assert simulation.run(scenario()) == [9]
    assert any("the answer was lost" in line for line in simulation.trace)


@pytest.mark.parametrize("pause_s", [5, 15])
def test_an_engine_that_stood_still_goes_on_if_nobody_took_over_and_begins_anew_if_somebody_did(pause_s: int) -> None:
    simulation = a_simulation()
    a, b = simulation.member("a", [clerk]), simulation.member("b", [clerk])

    async def scenario() -> Any:
        await a.open()
        await b.open()
        await a.call(lambda engine: engine.start(clerk([["work", 3, 0, 1.0], ["hear"], ["work", 4, 0, 1.0]]), id="r"))
        a.pause()
        await asyncio.sleep(pause_s)
        a.wake()
        await b.call(lambda engine: engine.send(Told(number=0), to="r"))
        result = await b.call(lambda engine: engine.handle("r").result())
        owners = {run.run.owner for run in simulation.database.memory.runs.values()}
        assert owners == {None}
        return result

    assert simulation.run(scenario()) == [9, 0, 16]
    assert any("buries" in line for line in simulation.trace) == (pause_s > 10)


def test_the_trace_of_a_seed_is_always_the_same_and_bugs_change_it() -> None:
    from perdure.testing.simulate.scenario import simulate

    first = simulate(7).trace
    assert simulate(7).trace == first
    assert simulate(8).trace != first
    assert any(simulate(seed, bugs=[Bug.NO_FENCE]).trace != simulate(seed).trace for seed in range(7, 40))
