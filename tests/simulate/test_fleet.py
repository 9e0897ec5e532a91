"""Fleets in a few chosen situations, on the simulator."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.cooperation import CancellationToken, Failure, Operation, Scope, Topic
from perdure.ports import LoadedRun
from perdure.testing.simulate import FINE, Bug, SimulatedStore, Simulation, Weather
from perdure.testing.simulate.loop import process_name
from perdure.testing.simulate.workload import Ledger, Word, baker, clerk

TOPICS = [Topic(name, str) for name in ("top", "middle", "leaf")]
TOKEN = CancellationToken("deploy-17")


def a_simulation(**options: Any) -> Simulation:
    return Simulation(1, resources={Ledger: Ledger}, **options)


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
        await b.call(lambda engine: engine.send(Word(number=0), to="r"))
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
        await b.call(lambda engine: engine.send(Word(number=0), to="r"))
        result = await b.call(lambda engine: engine.handle("r").result())
        owners = {run.run.owner for run in simulation.database.memory.runs.values()}
        assert owners == {None}
        return result

    assert simulation.run(scenario()) == [9, 0, 16]
    assert any("buries" in line for line in simulation.trace) == (pause_s > 10)


def an_order(begun: list[str], *, is_answering: bool) -> list[Operation[str]]:
    """An operation that notes which code of it begins. To have it answer a failure, its child's child fails."""
    top, middle, leaf = (Operation(topic.name, topic) for topic in TOPICS)

    @top.step
    async def orders(scope: Scope, message: str) -> None:
        begun.append("step")
        if is_answering:
            await scope.emit(TOPICS[1], message)

    @orders.on_child_failure
    async def answers(scope: Scope, message: str, failure: Failure, attempt: int) -> None:
        begun.append("answer")

    @middle.step
    async def hands_on(scope: Scope, message: str) -> None:
        await scope.emit(TOPICS[2], message)

    @leaf.step
    async def fails(scope: Scope, message: str) -> None:
        raise ValueError("the leaf fails")

    return [top, middle, leaf]


@pytest.mark.parametrize("call", ["commit", "events_at"])
def test_an_engine_that_wakes_up_begins_nothing_of_a_run_whose_token_was_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It stands still while the last answer that the code needs is on its way: that the commit before the first step
    has landed, or the causes of the failure to be answered. Another engine takes the run over, and the token is
    cancelled there."""
    begun: list[str] = []
    top, middle, leaf = an_order(begun, is_answering=call == "events_at")
    simulation = Simulation(1)
    a = simulation.member("a", [top])
    original = getattr(SimulatedStore, call)
    stood_still = simulation.loop.create_future()
    commits: list[int] = []

    async def slow(store: SimulatedStore, given: Any) -> Any:
        answer = await original(store, given)
        if process_name.get() != "a.1":
            return answer
        # The first commit begins the run; those of handlers do not count. Causes have numbers beyond that of a token's
        # cancellation, which is 0.
        if call == "commit" and given.shared is None:
            commits.append(given.number)
        is_wanted = len(commits) == 2 if call == "commit" else all(seq > 0 for _, seq in given)
        if is_wanted and not stood_still.done():
            stood_still.set_result(None)
            a.pause()
            await asyncio.sleep(0)
        return answer

    async def scenario() -> None:
        await a.open()
        b = simulation.member("b", [middle, leaf])
        await b.open()
        monkeypatch.setattr(SimulatedStore, call, slow)
        emitted = await b.call(lambda engine: engine.emit(TOPICS[0], "go", tokens=[TOKEN]))
        await stood_still
        c = simulation.member("c", [top])
        await c.open()
        await c.call(lambda engine: engine.topics.cancel_token(TOKEN))
        a.wake()
        await asyncio.sleep(30)
        run = await c.call(lambda engine: engine.runs.get(emitted.run_ids[0]))
        assert run is not None
        assert run.status == "rolled_back"

    simulation.run(scenario())
    assert begun == (["step"] if call == "events_at" else [])
    assert any("buries ['a.1']" in line for line in simulation.trace)


def test_the_trace_of_a_seed_is_always_the_same_and_bugs_change_it() -> None:
    from perdure.testing.simulate.scenario import simulate

    first = simulate(7).trace
    assert simulate(7).trace == first
    assert simulate(8).trace != first
    assert any(simulate(seed, bugs=[Bug.NO_FENCE]).trace != simulate(seed).trace for seed in range(7, 40))
