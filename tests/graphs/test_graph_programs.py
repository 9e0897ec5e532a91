"""Graphs of all sorts side by side in one engine, on every store, and over restarts."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Limits, NamedEvent
from perdure.graph import Graph
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.graphs.programs import PROGRAMS, nap, waiting

LAPS = 3


def all_graphs() -> dict[str, Graph[Any, Any]]:
    return {graph.name: graph.build() for graph in [*(make() for make, _ in PROGRAMS), waiting()]}


EXPECTED = {**{make.__name__: expected for make, expected in PROGRAMS}, "waiting": [5, "word"]}


async def start_all(env: Environment, graphs: dict[str, Graph[Any, Any]]) -> list[str]:
    ids = [f"{name}-{lap}" for name in graphs for lap in range(LAPS)]
    await asyncio.gather(*[env.engine.start(graphs[id.partition("-")[0]](), id=id) for id in ids])
    await asyncio.gather(
        *[env.engine.send(NamedEvent("told", "word"), to=id) for id in ids if id.startswith("waiting")]
    )
    return ids


async def results(env: Environment, ids: list[str]) -> dict[str, Any]:
    found = await asyncio.gather(*[env.engine.handle(id).result() for id in ids])
    return dict(zip(ids, found, strict=True))


async def test_many_graphs_run_side_by_side(source: StoreSource) -> None:
    graphs = all_graphs()
    async with Environment([*graphs.values(), nap], source) as env:
        ids = await start_all(env, graphs)
        assert await results(env, ids) == {id: EXPECTED[id.partition("-")[0]] for id in ids}
        await env.check()


async def test_many_graphs_go_on_after_restarts(source: StoreSource) -> None:
    graphs = all_graphs()
    async with Environment([*graphs.values(), nap], source, autojump_s=None) as env:
        ids = await start_all(env, graphs)
        for _ in range(8):
            await env.quiet()
            await env.advance(2)
            await env.restart()
        await env.advance(2000)
        assert await results(env, ids) == {id: EXPECTED[id.partition("-")[0]] for id in ids}
        await env.check()


async def test_many_graphs_run_with_room_for_few(source: StoreSource) -> None:
    graphs = all_graphs()
    async with Environment([*graphs.values(), nap], source, limits=Limits(live_runs_max=2)) as env:
        ids = await start_all(env, graphs)
        assert await results(env, ids) == {id: EXPECTED[id.partition("-")[0]] for id in ids}
        await env.check()
