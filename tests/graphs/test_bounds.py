"""Bounds of loops and forks: how long a loop goes on, how many branches are under way, how many may fail; and what is
seen of a failure after it was dealt with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import NamedEvent, Retry, current_step, resource, step
from perdure.errors import InvalidDefinition, JoinFailed, NoMatchingEdge, RunFailed
from perdure.graph import Graph, all_of, any_of, assign, collect, timer, wait
from perdure.models.graphs import cancellable_tokens
from perdure.models.graphs.machine import Machine
from perdure.testing import Environment, VirtualClock, run_with_crashes
from perdure.testing.environment import StoreSource

UNDER_WAY: dict[str, list[int]] = {}  # by run: how many branches there are now, and how many there were at most


@step(retry=Retry.never())
async def work(value: Any) -> Any:
    now = UNDER_WAY.setdefault(current_step().run_id, [0, 0])
    now[0] += 1
    now[1] = max(now)
    try:
        await resource(VirtualClock).sleep(5)
    finally:
        now[0] -= 1
    if value == "bad":
        raise ValueError("it is bad")
    return value


@step(retry=Retry.never())
async def refuse(value: Any) -> Any:
    if value == "bad":
        raise ValueError("it is bad")
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Loops with a timeout


def looping(**more: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("looping")
    graph.node("lap", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("nap", timer(10))
    graph.node("done", assign({"output.laps": "state.laps"}))
    graph.edge("lap", "nap")
    graph.edge("nap", "lap", **more)
    graph.edge("nap", "done", priority=1)
    return graph


async def test_a_loop_ends_when_its_time_is_over(source: StoreSource) -> None:
    """The edge is first taken after ten seconds; 35 seconds later it is passed over, and the next tier takes over."""
    graph = looping(limit_timeout=35)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"laps": 5}


@pytest.mark.parametrize(("limit", "laps"), [(2, 3), (100, 5), ("unlimited", 5)])
async def test_limit_and_time_both_count(source: StoreSource, limit: Any, laps: int) -> None:
    graph = looping(limit=limit, limit_timeout=35)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"laps": laps}


async def test_the_time_of_a_loop_goes_on_through_its_joins(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("joined")
    graph.node("lap", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("nap", timer(10))
    graph.node("meet", assign({}))
    graph.node("done", assign({"output.laps": "state.laps"}))
    graph.edge("lap", "nap", spawn=3)
    graph.edge("nap", "meet", join=all_of())
    graph.edge("meet", "lap", limit_timeout=25)
    graph.edge("meet", "done", priority=1)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"laps": 4}


async def test_a_loop_whose_time_is_over_and_that_leads_nowhere_says_so(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("stuck")
    graph.node("nap", timer(10))
    graph.edge("nap", "nap", limit_timeout=15)
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
        assert isinstance(failed.value.__cause__, NoMatchingEdge)
        assert "to 'nap' the time of 15 s is over" in str(failed.value.__cause__)


async def test_a_crash_does_not_give_a_loop_more_time(fresh: Callable[[], StoreSource]) -> None:
    graph = looping(limit_timeout=35)

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="r")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == {"laps": 5}


# ---------------------------------------------------------------------------------------------------------------------
# Branches that are under way at once


def spread(join: Any = None, items: str = "input", **more: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("spread")
    graph.node("begin", assign({}))
    graph.node("work", work, input={"value": "branch.item"})
    graph.node("meet", assign({"output.got": "state.got"}))
    graph.edge("begin", "work", foreach=items, **more)
    graph.edge("work", "meet", join=join or all_of(), merge=collect("state.got"))
    return graph


@pytest.mark.parametrize("at_once", [1, 3, 10, 50])
async def test_no_more_branches_are_under_way_than_may_be(source: StoreSource, at_once: int) -> None:
    graph = spread(at_once=at_once)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(list(range(20))))
        assert await run.result() == {"got": list(range(20))}
        assert UNDER_WAY.pop(run.id) == [0, min(at_once, 20)]


async def test_a_branch_has_its_slot_until_it_arrives(source: StoreSource) -> None:
    """Two nodes each: the second branch begins when the first one is at the join, not when it is at its second node."""
    graph: Graph[Any, Any] = Graph("long")
    graph.node("begin", assign({}))
    graph.node("one", wait("go", where={"n": "branch.index"}))
    graph.node("two", wait("on", where={"n": "branch.index"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "one", spawn=3, at_once=2)
    graph.edge("one", "two")
    graph.edge("two", "meet", join=all_of())
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")

        async def standing() -> dict[str, list[int]]:
            await env.settle()
            tokens = (await env.engine.handle("r").tokens()).tokens
            return {
                state: [token.branch_index for token in tokens if token.state == state]
                for state in ("executing", "pending", "waiting_for_siblings")
            }

        assert await standing() == {"executing": [0, 1], "pending": [2], "waiting_for_siblings": []}
        assert (await env.engine.handle("r").tokens()).nodes["one"].standing == 3
        await env.engine.send(NamedEvent("go", {"n": 0}), to="r")
        assert await standing() == {"executing": [0, 1], "pending": [2], "waiting_for_siblings": []}
        await env.engine.send(NamedEvent("on", {"n": 0}), to="r")
        assert await standing() == {"executing": [1, 2], "pending": [], "waiting_for_siblings": [0]}
        await env.restart()
        assert await standing() == {"executing": [1, 2], "pending": [], "waiting_for_siblings": [0]}


async def test_a_join_that_has_enough_ends_those_that_wait(source: StoreSource) -> None:
    graph = spread(any_of(), at_once=2)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(list(range(10))))
        assert (await run.result())["got"] in ([0], [1])
        assert UNDER_WAY.pop(run.id)[1] == 2
        states = [token.state for token in (await env.engine.handle(run.id).tokens()).tokens]
        assert states.count("cancelled") == 9


async def test_each_edge_has_its_own_bound(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("two")
    graph.node("begin", assign({}))
    graph.node("a", work, input={"value": "branch.index"})
    graph.node("b", work, input={"value": "branch.index"})
    graph.node("meet", assign({"output.got": "state.got"}))
    graph.edge("begin", "a", spawn=4, at_once=1)
    graph.edge("begin", "b", spawn=4, at_once=2)
    graph.edge(["a", "b"], "meet", join=all_of(), merge=collect("state.got"))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        assert await run.result() == {"got": list(range(8))}
        assert UNDER_WAY.pop(run.id)[1] == 3


async def test_branches_that_are_cancelled_while_they_wait_leave_no_slot_behind(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("cut")
    graph.node("begin", assign({}))
    graph.node("work", wait("go", where={"n": "branch.index"}))
    graph.node("watch", wait("stop"))
    graph.node("over", assign({}))
    graph.node("meet", assign({}))
    graph.edge("begin", "fan")
    graph.edge("begin", "watch")
    graph.node("fan", assign({}))
    graph.edge("fan", "work", spawn=5, at_once=2)
    graph.edge("work", "meet")
    graph.edge("watch", "over", cancel=["work"])
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        await env.settle()
        await env.engine.send(NamedEvent("stop", 1), to="r")
        await run.result()
        assert (await env.engine.handle("r").tokens()).nodes["work"].cancelled == 2


async def test_a_crash_at_any_commit_keeps_the_bound(fresh: Callable[[], StoreSource]) -> None:
    graph = spread(at_once=2)

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph([1, 2, 3, 4, 5]), id="r")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == {"got": [1, 2, 3, 4, 5]}
    UNDER_WAY.clear()


def test_what_a_bound_costs_does_not_grow_with_the_branches() -> None:
    """Each branch is moved once, however many wait."""
    graph: Graph[Any, Any] = Graph("wide")
    graph.node("begin", assign({}))
    graph.node("work", wait("go"))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=5_000, at_once=3)
    graph.edge("work", "meet", join=all_of())
    machine = Machine(graph.build()._draft.built(), None)
    (first,) = machine.begin().run
    running = {token.id: token for token in machine.completed(first.id, None).run}
    while machine.is_growing:
        assert machine.grow().run == []
    moves = 0
    while running:
        assert len(running) <= 3
        token_id = next(iter(running))
        del running[token_id]
        decided = machine.completed(token_id, None)
        moves += len(decided.run)
        if decided.ended or any(token.node == "meet" for token in decided.run):
            break
        running |= {token.id: token for token in decided.run}
    assert moves == 5_000 - 3 + 1


# ---------------------------------------------------------------------------------------------------------------------
# Failures that are tolerated


def tolerant(tolerate: float, **more: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("tolerant")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"})
    graph.node("meet", assign({"output.got": "state.got"}))
    graph.node("sorry", assign({"output.why": "error.message"}))
    graph.edge("begin", "work", foreach="input", **more)
    graph.edge("work", "meet", join=all_of(tolerate=tolerate), merge=collect("state.got"))
    graph.edge("meet", "sorry", on_error=True)
    return graph


@pytest.mark.parametrize(
    ("tolerate", "bad", "holds"),
    [(0, 0, True), (0, 1, False), (2, 2, True), (2, 3, False), (0.2, 2, True), (0.2, 3, False), (0.05, 1, False)],
)
@pytest.mark.parametrize("at_once", [None, 3])
async def test_so_many_branches_may_fail(
    source: StoreSource, tolerate: Any, bad: int, holds: bool, at_once: int | None
) -> None:
    graph = tolerant(tolerate, at_once=at_once)
    async with Environment([graph], source) as env:
        got = await env.engine.run(graph(["bad"] * bad + ["good"] * (10 - bad)))
        if holds:
            assert [one for one in got["got"] if one == "good"] == ["good"] * (10 - bad)
            assert [one["error"]["message"] for one in got["got"][:bad]] == ["it is bad"] * bad
        else:
            allowed = int(tolerate * 10) if isinstance(tolerate, float) else tolerate
            assert f"of 10 branches have failed, and it tolerates {allowed}" in got["why"]
            assert "ValueError: it is bad" in got["why"]


async def test_with_too_many_failures_the_rest_is_not_begun(source: StoreSource) -> None:
    graph = tolerant(1, at_once=1)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(["bad"] * 10))
        assert "2 of 10 branches have failed" in (await run.result())["why"]
        assert len([e for e in (await env.engine.handle(run.id).history()).journal if e.kind == "step"]) == 2


async def test_nobody_routes_what_is_not_tolerated(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("strict")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=all_of(tolerate=1))
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph(["bad", "good", "bad"]))
        assert isinstance(failed.value.__cause__, JoinFailed)


# ---------------------------------------------------------------------------------------------------------------------
# Errors beyond the first node


def stumbling() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("stumbling")
    graph.node("try", refuse, input={"value": "'bad'"})
    graph.node("first", refuse, input={"value": "error.message"})
    graph.node("second", refuse, input={"value": "error.node"}, output={"state.seen": "error.type"})
    graph.node("each", assign({}))
    graph.node("last", assign({"output.all": ["nodes.first", "nodes.second", "state.seen", "error.message"]}))
    graph.edge("try", "first", on_error=True)
    graph.edge("first", "second", when="error.type == 'ValueError'")
    graph.edge("second", "each", spawn=2)
    graph.edge("each", "last", join=all_of())
    return graph


async def test_an_error_is_seen_by_all_that_follows_it(source: StoreSource) -> None:
    graph = stumbling()
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"all": ["it is bad", "try", "ValueError", "it is bad"]}


async def test_a_later_error_takes_the_place_of_the_earlier(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("again")
    graph.node("one", refuse, input={"value": "'bad'"})
    graph.node("two", refuse, input={"value": "'bad'"})
    graph.node("done", assign({"output.node": "error.node"}))
    graph.edge("one", "two", on_error=True)
    graph.edge("two", "done", on_error=True)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"node": "two"}


async def test_without_a_failure_there_is_no_error(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("well")
    graph.node("one", refuse, input={"value": 1})
    graph.node("done", assign({"output.has": "has(error.type)"}))
    graph.edge("one", "done")
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == {"has": False}


@pytest.mark.parametrize(("rules", "sees"), [(0, None), (1, {"type": "ValueError", "message": "no", "node": "try"})])
def test_a_run_that_began_by_earlier_rules_keeps_to_them(rules: int, sees: Any) -> None:
    machine = Machine(stumbling().build()._draft.built(), None, rules)
    (token,) = machine.begin().run
    about = {"type": "ValueError", "message": "no", "node": "try"}
    (token,) = machine.failed(token.id, ValueError("no"), about).run
    assert (token.node, token.error) == ("first", about)
    if rules == 0:
        assert machine.completed(token.id, 1).ended  # Its edge asks for an error that it does not see.
    else:
        (token,) = machine.completed(token.id, 1).run
    assert token.error == sees


# ---------------------------------------------------------------------------------------------------------------------
# Definitions


def test_texts_fingerprints_and_pictures_have_them() -> None:
    graph: Graph[Any, Any] = Graph("all")
    graph.node("begin", assign({}))
    graph.node("work", refuse, input={"value": 1})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=4, at_once=2)
    graph.edge("work", "meet", join=all_of(tolerate=0.25))
    graph.edge("meet", "begin", limit_timeout=60)
    read = Graph.parse(graph.dump())
    assert read.fingerprint == graph.fingerprint
    drawn = graph.to_mermaid()
    for words in ("2 at once", "for 60 s at most", "25% may fail"):
        assert words in drawn
    others = [
        graph.dump().replace(old, new)
        for old, new in (("at_once: 2", "at_once: 3"), ("tolerate: 0.25", "tolerate: 1"), ("60.0", "61.0"))
    ]
    assert len({Graph.parse(text).fingerprint for text in [graph.dump(), *others]}) == 4


@pytest.mark.parametrize(
    ("edge", "why"),
    [
        ("{from: a, to: b, at_once: 2}", "edge a -> b, at_once: there is one branch"),
        ("{from: a, to: b, foreach: input, at_once: 0}", "at_once"),
        ("{from: a, to: b, limit_timeout: 0}", "limit_timeout"),
        ("{from: a, to: b, join: {need: any, tolerate: 1}}", "join.tolerate: only a join that needs all branches"),
        ("{from: a, to: b, join: {tolerate: 1.5}}", "join.tolerate: a whole number, or a fraction between 0 and 1"),
        ("{from: a, to: b, join: {tolerate: -1}}", "join.tolerate: a whole number, or a fraction between 0 and 1"),
    ],
)
def test_what_is_wrong_is_found_when_the_graph_is_built(edge: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse(f"graph: bad\nnodes:\n  a: {{kind: set}}\n  b: {{kind: set}}\nedges:\n  - {edge}\n")
    assert why in str(wrong.value)


def test_what_an_edge_that_cancels_costs_does_not_grow_with_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the tokens that it may end, not at all that there are."""
    looked = 0
    place = cancellable_tokens._place

    def counted(*args: Any) -> Any:
        nonlocal looked
        looked += 1
        return place(*args)

    monkeypatch.setattr(cancellable_tokens, "_place", counted)
    graph: Graph[Any, Any] = Graph("cancelling")
    graph.node("begin", assign({}))
    graph.node("part", wait("go"))
    graph.node("watch", wait("never"))
    graph.edge("begin", "part", spawn=2_000)
    graph.edge("part", "watch", cancel=["watch"])
    machine = Machine(graph.build()._draft.built(), None)
    (first,) = machine.begin().run
    tokens = machine.completed(first.id, None).run
    while machine.is_growing:
        tokens += machine.grow().run
    watching: list[int] = []
    for token in tokens:
        decided = machine.completed(token.id, None)
        assert decided.cancel == watching  # The one before is ended, and no other.
        watching = [one.id for one in decided.run]
    assert looked == 2_000 - 1
    assert len(machine.tokens.by_id) == 1
