"""Every behaviour of behaviours.py: with steps that end in any order, with crashes, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from perdure import Limits, NamedEvent
from perdure.errors import RunFailed, RunFinished
from perdure.graph import Graph
from perdure.testing import Environment, Fault, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.testing.faults import CRASH_POINTS, DEADLY, Point
from tests.graphs.behaviours import BEHAVIOURS, Behaviour, Jitter, double

SEEDS = 5
COMMITS_PER_LIFE = 12
LIVE_RUNS_MAX = 3

by_name = pytest.mark.parametrize("one", BEHAVIOURS, ids=lambda one: f"{one.number}-{one.name}")


async def outcome(env: Environment, one: Behaviour, graph: Graph[Any, Any], run_id: str) -> tuple[str, Any]:
    """Start a run, if it is not there, tell it what it is to hear, and wait for its end."""
    run = await env.engine.start(graph(one.input), id=run_id)
    for number, (name, value) in enumerate(one.events):
        try:
            await env.engine.send(NamedEvent(name, value), to=run_id, key=f"{run_id}/{number}")
        except RunFinished:
            break
    try:
        return "succeeded", await run.result()
    except RunFailed as failed:
        return "failed", type(failed.__cause__).__name__


async def published(env: Environment) -> set[str]:
    return {artifact.name for artifact in await env.engine.artifacts.list()}


@by_name
async def test_it_holds_in_whatever_order_steps_end(one: Behaviour) -> None:
    graph = one.graph()
    for seed in range(SEEDS):
        async with Environment([graph, double], resources={Jitter: lambda seed=seed: Jitter(seed)}) as env:
            one.check(await outcome(env, one, graph, "one"))
            await env.settle()
            await env.check()


async def die_everywhere(
    one: Behaviour, store: Callable[[], StoreSource] = lambda: None, points: Sequence[Point] = CRASH_POINTS
) -> None:
    graph = one.graph()

    async def scenario(env: Environment) -> Any:
        return await outcome(env, one, graph, "one")

    options: dict[str, Any] = {"resources": {Jitter: lambda: Jitter(7)}, "store": store, "points": points}
    report = await run_with_crashes(scenario, workflows=[graph, double], check=one.check, **options)
    assert report.commits >= 2


@by_name
async def test_it_holds_wherever_the_process_dies(one: Behaviour) -> None:
    await die_everywhere(one)


@pytest.mark.soak
@pytest.mark.parametrize("fresh", ["sqlite"], indirect=True)
@by_name
async def test_it_holds_wherever_the_process_dies_on_sqlite(one: Behaviour, fresh: Callable[[], StoreSource]) -> None:
    await die_everywhere(one, fresh)


@pytest.mark.soak
@pytest.mark.parametrize("fresh", ["postgres"], indirect=True)
@by_name
async def test_it_holds_wherever_the_process_dies_on_postgres(one: Behaviour, fresh: Callable[[], StoreSource]) -> None:
    # New tables for each trial take a second there.
    await die_everywhere(one, fresh, ("before_effects",))


class Again(Fault):
    """Strikes every few commits, in every life, at a point drawn by lot."""

    def __init__(self, seed: int, every: int) -> None:
        super().__init__("before")
        self._lot = Random(seed)
        self._every = every

    def strikes(self, batch: Any) -> bool:
        self.commits += 1
        if self.commits % self._every:
            return False
        self.point = self._lot.choice(sorted(DEADLY))
        self.struck += 1
        return True


def all_graphs() -> dict[str, tuple[Behaviour, Graph[Any, Any]]]:
    return {one.name: (one, one.graph()) for one in BEHAVIOURS}


async def check_all(env: Environment, graphs: dict[str, tuple[Behaviour, Graph[Any, Any]]]) -> None:
    ended = await asyncio.gather(*[outcome(env, one, graph, name) for name, (one, graph) in graphs.items()])
    for (one, _), found in zip(graphs.values(), ended, strict=True):
        one.check(found)
    assert await published(env) == {"published"}


@pytest.mark.parametrize("seed", range(2))
async def test_all_hold_side_by_side(seed: int, source: StoreSource) -> None:
    graphs = all_graphs()
    workflows = [double, *(graph for _, graph in graphs.values())]
    async with Environment(workflows, source, resources={Jitter: lambda: Jitter(seed)}) as env:
        await check_all(env, graphs)
        await env.settle()
        await env.check()


async def test_all_hold_while_the_engine_dies_again_and_again(source: StoreSource) -> None:
    graphs = all_graphs()
    workflows = [double, *(graph for _, graph in graphs.values())]
    fault = Again(seed=7, every=COMMITS_PER_LIFE)
    options: dict[str, Any] = {"resources": {Jitter: lambda: Jitter(1)}}
    async with Environment(
        workflows, source, fault=fault, limits=Limits(live_runs_max=LIVE_RUNS_MAX, recoveries_max=1000), **options
    ) as env:
        await env.survive(lambda env: check_all(env, graphs))
        await env.check()
        assert env.restarts >= 5


def test_every_number_has_a_behaviour() -> None:
    """Those that have none here are tested where the docstring of behaviours.py says."""
    elsewhere = {"W1", "W2", "W3", "W4", "W5", "W6", "W7", "W17", "W26"}
    assert {one.number for one in BEHAVIOURS} | elsewhere == {f"W{number}" for number in range(1, 34)}
