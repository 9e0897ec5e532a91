"""What the tests of patterns run: tasks that take their time and say when they begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure import Retry, resource, step
from perdure.graph import Graph
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource


class Trace:
    """Which tasks have ended, in order, and how many of them ran at once."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.begun: list[str] = []
        self.at_once_max = 0
        self._at_once = 0

    def begin(self, name: str) -> None:
        self.begun.append(name)
        self._at_once += 1
        self.at_once_max = max(self.at_once_max, self._at_once)

    def end(self, name: str | None) -> None:
        self._at_once -= 1
        if name is not None:
            self.ran.append(name)


@step(retry=Retry.never())
async def task(name: str, seconds: float = 0) -> str:
    trace = resource(Trace)
    trace.begin(name)
    ended: str | None = None
    try:
        await resource(VirtualClock).sleep(seconds)
        ended = name
    finally:
        trace.end(ended)
    return name


def net(name: str, tasks: str, seconds: Mapping[str, float] | None = None) -> Graph[Any, Any]:
    """A graph with a task per name, which takes so many seconds; in a branch over a list its item is part of it."""
    graph: Graph[Any, Any] = Graph(name)
    for one in tasks.split():
        add(graph, one, (seconds or {}).get(one, 0))
    return graph


def add(graph: Graph[Any, Any], name: str, seconds: float | str = 0, label: str | None = None) -> str:
    label = f"'{name}' + (has(branch.item) ? string(branch.item) : '')" if label is None else label
    return graph.node(name, task, input={"name": label, "seconds": seconds}).name


class World:
    """One engine with graphs or functions, and what their tasks did: `async with World([graph], source) as world`."""

    def __init__(self, workflows: list[Any], source: StoreSource, **options: Any) -> None:
        self.trace = Trace()
        self.env = Environment(workflows, source, resources={Trace: lambda: self.trace}, **options)

    @property
    def ran(self) -> list[str]:
        return self.trace.ran

    @property
    def engine(self) -> Any:
        return self.env.engine

    async def __aenter__(self) -> World:
        await self.env.__aenter__()
        self.began = self.env.clock.now()
        return self

    async def __aexit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                await self.env.check()
        finally:
            await self.env.__aexit__(*error)

    @property
    def seconds(self) -> float:
        return (self.env.clock.now() - self.began) / 1_000_000


async def play(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> list[str]:
    """The tasks of a run, in the order of their ends."""
    async with World([graph], source) as world:
        await world.engine.run(graph(input))
        return world.ran
