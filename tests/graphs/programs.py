"""Graphs that do a little of everything, and what comes out of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure import Retry, current_step, sleep, step, workflow
from perdure.graph import Graph, all_of, any_of, append, assign, collect, m_of, timer, wait

STARTED: Counter[str] = Counter()


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    STARTED[current_step().idempotency_key] += 1
    return value


@step(retry=Retry.never())
async def refuse_odd(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


@workflow
async def nap(value: int) -> int:
    await sleep(value)
    return value


def nested() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("nested")
    graph.node("outer", same, input={"value": [1, 2, 3]})
    graph.node("inner", assign({}))
    graph.node("work", same, input={"value": "branch.parent.item * 10 + branch.item"})
    graph.node("row", assign({}))
    graph.node("table", same, input={"value": "state.table"})
    graph.edge("outer", "inner", foreach="nodes.outer")
    graph.edge("inner", "work", foreach="[1, 2, 3, 4]")
    graph.edge("work", "row", join=all_of(), merge=collect("state.row"))
    graph.edge("row", "table", join=all_of(), merge=append("state.table", source="state.row"))
    graph.output("nodes.table")
    return graph


def laps() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("laps")
    graph.node("lap", assign({"state.lap": "has(state.lap) ? state.lap + 1 : 1"}))
    graph.node("work", same, input={"value": "state.lap * 10 + branch.item"})
    graph.node("meet", assign({}))
    graph.edge("lap", "work", foreach="[1, 2]")
    graph.edge("work", "meet", join=all_of(), merge=append("state.got"))
    graph.edge("meet", "lap", limit=2)
    graph.node("done", assign({}))
    graph.edge("meet", "done", priority=1)
    graph.output("state.got")
    return graph


def race() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("race")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("work", same, input={"value": "branch.item"})
    graph.node("meet", same, input={"value": "state.got"})
    graph.edge("begin", "nap", foreach="[30, 10, 20]")
    graph.edge("nap", "work")
    graph.edge("work", "meet", join=m_of(2), merge=collect("state.got"))
    graph.output("nodes.meet")
    return graph


def errors() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("errors")
    graph.node("begin", assign({}))
    graph.node("work", refuse_odd, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("meet", assign({}))
    graph.node("again", refuse_odd, input={"value": 3})
    graph.node("rescue", same, input={"value": "error.message"})
    graph.edge("begin", "work", foreach="[1, 2, 4]")
    graph.edge("work", "meet", join=m_of(2), merge=collect("state.got"))
    graph.edge("meet", "again")
    graph.edge("again", "rescue", on_error=True)
    graph.output({"got": "state.got", "why": "nodes.rescue"})
    return graph


def waiting() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("waiting")
    graph.node("begin", assign({}))
    graph.node("child", nap, input={"value": 5})
    graph.node("event", wait("told"))
    graph.node("slow", timer(1000))
    graph.node("first", same, input={"value": "nodes.event"})
    graph.node("meet", assign({}))
    graph.edge("begin", "child")
    graph.edge("begin", "event")
    graph.edge("begin", "slow")
    graph.edge("event", "first")
    graph.edge(["child", "first"], "meet", join=m_of(2), merge=collect("state.got"))
    graph.edge("slow", "meet", join=m_of(2), merge=collect("state.got"))
    graph.output("state.got")
    return graph


def hurried() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("hurried")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", same, input={"value": "state.got"})
    graph.node("after", same, input={"value": "[nodes.meet, state.got]"})
    graph.edge("begin", "nap", foreach="[1, 3, 30]")
    graph.edge(
        "nap", "meet", join=all_of(timeout=10, on_timeout="proceed"), merge=collect("state.got", source="branch.item")
    )
    graph.edge("meet", "after")
    graph.output("nodes.after")
    return graph


def late() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("late")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", same, input={"value": "state.got"})
    graph.edge("begin", "nap", foreach="[3, 1, 2]")
    graph.edge("nap", "meet", join=any_of(on_early="late_merge"), merge=append("state.got", source="branch.item"))
    graph.output({"first": "nodes.meet", "all": "state.got"})
    return graph


PROGRAMS: list[tuple[Callable[[], Graph[Any, Any]], Any]] = [
    (nested, [11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34]),
    (laps, [11, 12, 21, 22, 31, 32]),
    (race, [10, 20]),
    (errors, {"got": [2, 4], "why": "odd"}),
    (hurried, [[1, 3], [1, 3]]),
    (late, {"first": [1], "all": [1, 2, 3]}),
]
