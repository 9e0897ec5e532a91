"""Idempotency keys of nodes: one for each execution, whatever order things happen in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, current_step, resource, step
from perdure.errors import RunFailed
from perdure.graph import Graph, all_of, append
from perdure.testing import Environment, run_with_crashes
from perdure.testing.clock import VirtualClock
from perdure.testing.environment import StoreSource


class Ledger:
    """Which keys each execution had: of a node for an item, in a lap. What is `broken` fails."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, int, int], set[str]] = {}
        self.broken: set[tuple[str, int]] = set()

    def note(self, node: str, item: int, lap: int = 0) -> None:
        self.keys.setdefault((node, item, lap), set()).add(current_step().idempotency_key)
        if (node, item) in self.broken:
            raise ConnectionError(f"{node} fails for item {item}")


@step(retry=Retry.never())
async def begin() -> list[int]:
    return [1, 2, 3]


@step(retry=Retry.never())
async def reserve(item: int) -> int:
    resource(Ledger).note("reserve", item)
    return item


@step(retry=Retry.never())
async def charge(item: int) -> int:
    resource(Ledger).note("charge", item)
    return item


@step(retry=Retry.never())
async def tally(lap: int) -> int:
    resource(Ledger).note("tally", 0, lap)
    return lap + 1


def shop() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("shop")
    graph.node("begin", begin)
    graph.node("reserve", reserve, input={"item": "branch.item"}, on_error="branch_error")
    graph.node("charge", charge, input={"item": "branch.item"}, on_error="branch_error")
    graph.node("end", begin)
    graph.edge("begin", "reserve", foreach="nodes.begin")
    graph.edge("reserve", "charge")
    graph.edge("charge", "end", join=all_of(), merge=append("state.items"))
    return graph


def laps() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("laps")
    graph.node("tally", tally, input={"lap": "has(state.lap) ? state.lap : 0"}, output={"state.lap": "nodes.tally"})
    graph.node("end", begin)
    graph.edge("tally", "tally", when="state.lap < 3", limit=5)
    graph.edge("tally", "end", when="state.lap >= 3")
    return graph


SHOP, LAPS = shop(), laps()


def distinct(ledger: Ledger) -> None:
    assert all(len(keys) == 1 for keys in ledger.keys.values()), ledger.keys
    every = [key for keys in ledger.keys.values() for key in keys]
    assert len(set(every)) == len(every), ledger.keys


async def test_laps_and_branches_have_keys_of_their_own(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment([SHOP, LAPS], source, resources={Ledger: lambda: ledger}) as env:
        await env.engine.run(SHOP(), id="s")
        await env.engine.run(LAPS(), id="l")
        assert len(ledger.keys) == 9
        distinct(ledger)


async def test_a_crash_anywhere_changes_no_key(fresh: Callable[[], StoreSource]) -> None:
    ledger = Ledger()

    async def scenario(env: Environment) -> None:
        for call, run_id in ((SHOP(), "s"), (LAPS(), "l")):
            await (await env.engine.start(call, id=run_id)).result()

    await run_with_crashes(scenario, workflows=[SHOP, LAPS], store=fresh, resources={Ledger: lambda: ledger})
    assert len(ledger.keys) == 9
    distinct(ledger)


async def test_an_execution_has_its_key_after_a_retry_also_if_others_come_first_then(source: StoreSource) -> None:
    """In the first attempt items 2 and 3 are charged first, in the second one item 1 is."""
    ledger = Ledger()
    ledger.broken = {("reserve", 1), ("charge", 2), ("charge", 3)}
    async with Environment([SHOP], source, resources={Ledger: lambda: ledger}) as env:
        run = await env.engine.start(SHOP(), id="s")
        with pytest.raises(RunFailed):
            await run.result()
        assert ("charge", 2, 0) in ledger.keys
        assert ("charge", 1, 0) not in ledger.keys
        ledger.broken = set()
        await (await env.engine.handle("s").retry()).result()
        distinct(ledger)


@step(retry=Retry(attempts=2, initial=timedelta(hours=1)))
async def fails_once() -> str:
    resource(Ledger).note("fails_once", 0)
    if current_step().attempt == 1:
        raise ConnectionError("try again")
    return current_step().idempotency_key


def patient() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("patient")
    graph.node("begin", begin)
    graph.node("last", fails_once)
    graph.edge("begin", "last")
    graph.output({"key": "nodes.last"})
    return graph


async def test_a_run_that_began_by_earlier_rules_keeps_its_keys(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    clock = VirtualClock()
    old, new = patient(), patient()
    with monkeypatch.context() as patched:
        patched.setattr("perdure.models.graphs.fingerprint.RULES", 0)
        async with Environment([old], source, clock=clock, autojump_s=None, resources={Ledger: lambda: ledger}) as env:
            await env.engine.start(old(), id="r")
            await env.quiet()
    async with Environment([new], source, clock=clock, resources={Ledger: lambda: ledger}) as env:
        assert await env.engine.handle("r").result() == {"key": "r:c.1"}
        assert await env.engine.run(new(), id="s") == {"key": "s:last#1"}
    assert ledger.keys == {("fails_once", 0, 0): {"r:c.1", "s:last#1"}}
