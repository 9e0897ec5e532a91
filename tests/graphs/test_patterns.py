"""The control-flow patterns of van der Aalst and others, by their numbers: docs/patterns.md says what each is.

Each is a graph, or, where that is the natural way, a durable function.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perdure import ChildHandle, Event, NamedEvent, event, first, receive, start, workflow
from perdure.errors import RunCancelled, RunNotWaiting
from perdure.graph import END, TERMINATE, Graph, all_of, any_of, assign, child, collect, m_of, timer, wait
from perdure.testing.environment import StoreSource
from tests.graphs.pattern_tasks import World, add, net, play, task

DOCS = Path(__file__).resolve().parents[2] / "docs" / "patterns.md"
ROWS = re.findall(
    r"^\| (\d+) \| ([^|]+) \| (yes|partly|no) \| [^|]+ \| (?:`(\w+)`)? ?\|$", DOCS.read_text(), re.MULTILINE
)


def test_every_pattern_is_in_the_table_and_those_supported_have_a_test() -> None:
    assert sorted(int(number) for number, *_ in ROWS) == list(range(1, 44))
    for number, name, verdict, test in ROWS:
        if verdict != "no":
            assert test.startswith(f"test_{int(number):02}_"), name
            assert callable(globals().get(test)), f"{test} of {name} is not here"
    assert sum(verdict == "yes" for _, _, verdict, _ in ROWS) >= 34


# ---------------------------------------------------------------------------------------------------------------------
# Basic control flow


async def test_01_sequence(source: StoreSource) -> None:
    graph = net("sequence", "a b c", {"a": 3, "b": 2, "c": 1})
    graph.edge("a", "b")
    graph.edge("b", "c")
    assert await play(graph, source) == ["a", "b", "c"]


async def test_02_parallel_split(source: StoreSource) -> None:
    graph = net("split", "a b c", {"b": 2, "c": 1})
    graph.edge("a", "b")
    graph.edge("a", "c")
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "c", "b"]
        assert world.seconds == 2


async def test_03_synchronization(source: StoreSource) -> None:
    graph = net("synchronization", "a b c d", {"b": 2, "c": 1})
    graph.edge("a", "b")
    graph.edge("a", "c")
    graph.edge(["b", "c"], "d", join=all_of())
    assert await play(graph, source) == ["a", "c", "b", "d"]


def choice(name: str) -> Graph[Any, Any]:
    graph = net(name, "a b c d")
    graph.edge("a", "b", when="input > 10")
    graph.edge("a", "c", priority=1)
    return graph


async def test_04_exclusive_choice(source: StoreSource) -> None:
    graph = choice("choice")
    graph.edge("b", "d")
    graph.edge("c", "d")
    assert await play(graph, source, 11) == ["a", "b", "d"]
    assert await play(graph, source, 10) == ["a", "c", "d"]


async def test_05_simple_merge(source: StoreSource) -> None:
    graph = choice("merge")
    graph.edge(["b", "c"], "d")
    for number in (1, 100):
        assert (await play(graph, source, number)).count("d") == 1


# ---------------------------------------------------------------------------------------------------------------------
# Advanced branching and synchronization


def several(name: str) -> Graph[Any, Any]:
    graph = net(name, "a b c d e", {"b": 3, "c": 2, "d": 1})
    for one in "bcd":
        graph.edge("a", one, when=f"'{one}' in input")
    return graph


async def test_06_multi_choice(source: StoreSource) -> None:
    graph = several("multi_choice")
    graph.edge(["b", "c", "d"], "e", priority=1, when="false")
    for one in "bcd":
        graph.edge(one, END, priority=2)
    assert await play(graph, source, ["b"]) == ["a", "b"]
    assert await play(graph, source, ["b", "d"]) == ["a", "d", "b"]
    assert await play(graph, source, ["b", "c", "d"]) == ["a", "d", "c", "b"]


@pytest.mark.parametrize("chosen", [["b"], ["c", "d"], ["b", "c", "d"]])
async def test_07_structured_synchronizing_merge(chosen: list[str], source: StoreSource) -> None:
    graph = several("synchronizing")
    graph.edge(["b", "c", "d"], "e", join=all_of())
    assert await play(graph, source, chosen) == ["a", *sorted(chosen, reverse=True), "e"]


async def test_08_multi_merge(source: StoreSource) -> None:
    graph = net("multi_merge", "a b c d", {"b": 1, "c": 2})
    graph.edge("a", "b")
    graph.edge("a", "c")
    graph.edge(["b", "c"], "d")
    assert await play(graph, source) == ["a", "b", "d", "c", "d"]


def twice(name: str, join: Any) -> Graph[Any, Any]:
    """Three branches of one, two and three seconds, and what follows them; all of it twice."""
    graph = net(name, "a b c d e", {"b": 1, "c": 2, "d": 3, "e": 10})
    for one in "bcd":
        graph.edge("a", one)
        graph.edge(one, "e", join=join)
    graph.edge("e", "a", limit=1)
    graph.edge("e", END, priority=1)
    return graph


async def test_09_structured_discriminator(source: StoreSource) -> None:
    graph = twice("discriminator", any_of(on_early="let_finish"))
    assert await play(graph, source) == ["a", "b", "c", "d", "e"] * 2


class Arrived(Event, event_name="patterns.arrived"):
    """A thread of control comes in by a branch."""

    branch: str
    number: int


async def first_come(waiting: dict[str, asyncio.Task[Arrived]]) -> list[Arrived]:
    """Those that are the next to come; they are waited for no more."""
    await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
    come = [waiting.pop(branch).result() for branch in [one for one in waiting if waiting[one].done()]]
    return sorted(come, key=lambda one: one.number)


@workflow(name="patterns.blocking_join")
async def blocking_join(branches: list[str], needed: int, laps: int) -> list[list[int]]:
    """Goes on once so many branches have come, and begins anew once all have; until then a branch that comes again has
    to wait, in the queue of events."""
    passed: list[list[int]] = []
    for _ in range(laps):
        waiting = {one: asyncio.create_task(receive(Arrived, where={"branch": one})) for one in branches}
        come: list[int] = []
        has_passed = False
        while waiting:
            come += [one.number for one in await first_come(waiting)]
            if len(come) >= needed and not has_passed:
                has_passed = True
                passed.append(come[:needed])
                await task(f"after {come[:needed]}")
    return passed


async def arrive(world: World, run_id: str, *arrivals: str) -> None:
    for number, branch in enumerate(arrivals):
        await world.engine.send(Arrived(branch=branch, number=number), to=run_id)
        await world.env.quiet()


async def test_28_blocking_discriminator(source: StoreSource) -> None:
    async with World([blocking_join], source, autojump_s=None) as world:
        run = await world.engine.start(blocking_join(["a", "b", "c"], 1, 2))
        await arrive(world, run.id, "a", "a", "b")  # The second of a is blocked: c has not come.
        assert world.ran == ["after [0]"]
        await arrive(world, run.id, "c")
        assert world.ran == ["after [0]", "after [1]"]
        await arrive(world, run.id, "b", "c")
        assert await run.result() == [[0], [1]]


async def test_29_cancelling_discriminator(source: StoreSource) -> None:
    graph = twice("cancelling", any_of())
    assert await play(graph, source) == ["a", "b", "e"] * 2


async def test_30_structured_partial_join(source: StoreSource) -> None:
    graph = twice("partial", m_of(2, on_early="let_finish"))
    assert await play(graph, source) == ["a", "b", "c", "d", "e"] * 2
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.seconds == 2 * (2 + 10)  # It did not wait for the third.


async def test_31_blocking_partial_join(source: StoreSource) -> None:
    async with World([blocking_join], source, autojump_s=None) as world:
        run = await world.engine.start(blocking_join(["a", "b", "c"], 2, 2))
        await arrive(world, run.id, "a", "a", "b", "b")
        assert world.ran == ["after [0, 2]"]
        await arrive(world, run.id, "c")
        assert world.ran == ["after [0, 2]", "after [1, 3]"]
        await arrive(world, run.id, "c")
        assert await run.result() == [[0, 2], [1, 3]]


async def test_32_cancelling_partial_join(source: StoreSource) -> None:
    graph = twice("cancelling_partial", m_of(2))
    assert await play(graph, source) == ["a", "b", "c", "e"] * 2


@workflow(name="patterns.and_join")
async def and_join(branches: list[str], laps: int) -> list[list[int]]:
    """Goes on whenever one thread has come by each branch, however many come by one of them meanwhile."""
    passed: list[list[int]] = []
    for _ in range(laps):
        come = await asyncio.gather(*[receive(Arrived, where={"branch": one}) for one in branches])
        passed.append([one.number for one in come])
        await task(f"after {passed[-1]}")
    return passed


async def test_33_generalized_and_join(source: StoreSource) -> None:
    async with World([and_join], source, autojump_s=None) as world:
        run = await world.engine.start(and_join(["a", "b"], 2))
        await arrive(world, run.id, "a", "a", "a")
        assert world.ran == []
        await arrive(world, run.id, "b", "b")
        assert await run.result() == [[0, 0], [1, 1]]


async def test_37_local_synchronizing_merge(source: StoreSource) -> None:
    graph = net("local", "a b b2 c c2 d", {"b": 1, "b2": 1, "c": 5, "c2": 1})
    graph.edge("a", "b")
    graph.edge("a", "c", when="input != 'only b'")
    graph.edge("b", "b2", when="input != 'b ends'")
    graph.edge("b", END, priority=1)
    graph.edge("c", "c2", when="input == 'c2'")
    graph.edge("c", "d", priority=1, join=all_of("a"))
    graph.edge(["b2", "c2"], "d", join=all_of("a"))
    assert await play(graph, source, "both") == ["a", "b", "b2", "c", "d"]
    assert await play(graph, source, "c2") == ["a", "b", "b2", "c", "c2", "d"]
    assert await play(graph, source, "b ends") == ["a", "b", "c", "d"]
    assert await play(graph, source, "only b") == ["a", "b", "b2", "d"]


async def test_38_general_synchronizing_merge(source: StoreSource) -> None:
    graph = net("general", "a b c d", {"b": 1, "c": 4})
    graph.edge("a", "b")
    graph.edge("a", "c")
    graph.edge("b", "b", limit=2)
    graph.edge("b", "d", priority=1, when="input", join=all_of("a"))
    graph.edge("b", END, priority=2)
    graph.edge("c", "d", join=all_of("a"))
    assert await play(graph, source, True) == ["a", "b", "b", "b", "c", "d"]
    assert await play(graph, source, False) == ["a", "b", "b", "b", "c", "d"]


async def test_41_thread_merge(source: StoreSource) -> None:
    graph = net("thread_merge", "a b c")
    graph.edge("a", "b", spawn=3)
    graph.edge("b", "c", join=all_of())
    assert await play(graph, source) == ["a", "b", "b", "b", "c"]


async def test_42_thread_split(source: StoreSource) -> None:
    graph = net("thread_split", "a b c")
    graph.edge("a", "b", spawn=3)
    graph.edge("b", "c")
    assert Counter(await play(graph, source)) == {"a": 1, "b": 3, "c": 3}


# ---------------------------------------------------------------------------------------------------------------------
# Iteration and ends


async def test_10_arbitrary_cycles(source: StoreSource) -> None:
    """A cycle with two ways in and two ways out."""
    graph = net("cycles", "a b c d e")
    graph.edge("a", "b", when="input == 'b'")
    graph.edge("a", "c", priority=1)
    graph.edge("b", "c", limit=2)
    graph.edge("b", "d", priority=1)
    graph.edge("c", "b", limit=2)
    graph.edge("c", "e", priority=1)
    assert await play(graph, source, "b") == ["a", "b", "c", "b", "c", "b", "d"]
    assert await play(graph, source, "c") == ["a", "c", "b", "c", "b", "c", "e"]


async def test_21_structured_loop(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("while")
    graph.node("test", assign({}))
    add(graph, "body")
    graph.node("count", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    add(graph, "after")
    graph.edge("test", "body", when="(has(state.laps) ? state.laps : 0) < input", limit="unlimited")
    graph.edge("test", "after", priority=1)
    graph.edge("body", "count")
    graph.edge("count", "test")
    assert await play(graph, source, 0) == ["after"]
    assert await play(graph, source, 3) == ["body", "body", "body", "after"]


async def test_22_recursion(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("recursion", input=dict)
    add(graph, "visit", label="'visit ' + string(input.depth)")
    graph.node("deeper", child("recursion"), input={"input": {"depth": "input.depth - 1"}})
    graph.edge("visit", "deeper", when="input.depth > 0")
    graph.edge("visit", END, priority=1)
    assert await play(graph, source, {"depth": 3}) == ["visit 3", "visit 2", "visit 1", "visit 0"]


async def test_11_implicit_termination(source: StoreSource) -> None:
    graph = net("implicit", "a b c", {"b": 1, "c": 5})
    graph.edge("a", "b")
    graph.edge("a", "c")
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "b", "c"]
        assert world.seconds == 5


async def test_43_explicit_termination(source: StoreSource) -> None:
    graph = net("explicit", "a b c", {"b": 1, "c": 5})
    graph.edge("a", "b")
    graph.edge("a", "c")
    graph.edge("b", TERMINATE)
    async with World([graph], source) as world:
        run = await world.engine.start(graph())
        await run.result()
        assert world.ran == ["a", "b"]
        assert world.seconds == 1
        assert await run.status() == "succeeded"


# ---------------------------------------------------------------------------------------------------------------------
# Several instances


async def test_12_multiple_instances_without_synchronization(source: StoreSource) -> None:
    graph = net("unsynchronized", "a b c", {"b": 5, "c": 1})
    graph.edge("a", "b", foreach="[1, 2]")
    graph.edge("a", "c")
    assert await play(graph, source) == ["a", "c", "b1", "b2"]


async def test_13_multiple_instances_known_at_design_time(source: StoreSource) -> None:
    graph = net("design_time", "a b c", {"b": 1})
    graph.edge("a", "b", spawn=3)
    graph.edge("b", "c", join=all_of())
    assert await play(graph, source) == ["a", "b", "b", "b", "c"]


async def test_14_multiple_instances_known_at_run_time(source: StoreSource) -> None:
    graph = net("run_time", "a b c", {"b": 1})
    graph.edge("a", "b", foreach="input")
    graph.edge("b", "c", join=all_of())
    for size in (0, 1, 4):
        ran = await play(graph, source, list(range(size)))
        assert (ran[0], Counter(ran[1:-1]), ran[-1]) == ("a", Counter(f"b{n}" for n in range(size)), "c")


@workflow(name="patterns.bidder")
async def bidder(amount: int) -> int:
    await task(f"bid {amount}", 10)
    return amount


@workflow(name="patterns.auction")
async def auction(enough: int | None = None) -> list[int]:
    """Instances are added while others run; it goes on when enough is bid, or all is in that came before the end."""
    running: list[ChildHandle[int]] = []
    bids: list[int] = []
    is_open = True
    while is_open or running:
        news = await first(*running, *([event("bidder"), event("closed")] if is_open else []))
        if isinstance(news, NamedEvent):
            is_open = news.name != "closed"
            if is_open:
                running.append(await start(bidder(news.value)))
            continue
        running = [one for one in running if one.id != news.run_id]
        bids.append(news.result())
        if enough is not None and sum(bids) >= enough:
            break
    await task("after")
    return bids


async def test_15_multiple_instances_not_known_before(source: StoreSource) -> None:
    async with World([auction, bidder], source, autojump_s=None) as world:
        run = await world.engine.start(auction())
        for amount in (3, 4):
            await world.engine.send(NamedEvent("bidder", amount), to=run.id)
            await world.env.advance(3)
        await world.engine.send(NamedEvent("closed"), to=run.id)
        await world.env.quiet()
        assert world.ran == []
        await world.env.advance(10)
        assert await run.result() == [3, 4]
        assert world.ran == ["bid 3", "bid 4", "after"]


async def test_34_static_partial_join_for_multiple_instances(source: StoreSource) -> None:
    graph = net("static", "a c")
    add(graph, "b", "branch.item")
    graph.edge("a", "b", foreach="[3, 1, 2]")
    graph.edge("b", "c", join=m_of(2, on_early="let_finish"))
    assert await play(graph, source) == ["a", "b1", "b2", "c", "b3"]


async def test_35_cancelling_partial_join_for_multiple_instances(source: StoreSource) -> None:
    graph = net("static", "a c")
    add(graph, "b", "branch.item")
    graph.edge("a", "b", foreach="[3, 1, 2]")
    graph.edge("b", "c", join=m_of(2))
    assert await play(graph, source) == ["a", "b1", "b2", "c"]


async def test_36_dynamic_partial_join_for_multiple_instances(source: StoreSource) -> None:
    async with World([auction, bidder], source, autojump_s=None) as world:
        run = await world.engine.start(auction(enough=10))
        for amount in (3, 8, 5):
            await world.engine.send(NamedEvent("bidder", amount), to=run.id)
            await world.env.advance(2)
        await world.env.advance(10)
        assert await run.result() == [3, 8]
        assert world.ran[:3] == ["bid 3", "bid 8", "after"]


# ---------------------------------------------------------------------------------------------------------------------
# State-based


def deferred() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("deferred")
    graph.node("begin", assign({}))
    graph.node("paid", wait("paid"))
    graph.node("withdrawn", wait("withdrawn"))
    graph.node("late", timer(60))
    for choice in ("paid", "withdrawn", "late"):
        add(graph, f"then_{choice}")
        graph.edge("begin", choice)
        graph.edge(choice, f"then_{choice}", cancel="*")
    return graph


@pytest.mark.parametrize("sent", [["paid"], ["withdrawn"], [], ["paid", "withdrawn"]])
async def test_16_deferred_choice(sent: list[str], source: StoreSource) -> None:
    graph = deferred()
    async with World([graph], source) as world:
        run = await world.engine.start(graph())
        await asyncio.gather(*[world.engine.send(NamedEvent(name), to=run.id) for name in sent])
        await run.result()
        assert world.ran in [[f"then_{name}"] for name in sent or ["late"]]


async def test_17_interleaved_parallel_routing(source: StoreSource) -> None:
    """Two rows of tasks: any order that keeps to the rows, and never two at once."""
    graph = net("interleaved", "a b1 b2 c1 c2 d", dict.fromkeys(("b1", "b2", "c1", "c2"), 1))
    for row in "bc":
        graph.edge("a", f"{row}1")
        graph.edge(f"{row}1", f"{row}2")
        graph.edge(f"{row}2", "d", join=all_of())
    graph.exclusive(["b1", "b2", "c1", "c2"])
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "b1", "c1", "b2", "c2", "d"]
        assert world.trace.at_once_max == 1


async def test_18_milestone(source: StoreSource) -> None:
    """An order can be changed once it is confirmed, and until it is sent; as often as one likes."""
    graph: Graph[Any, Any] = Graph("milestone")
    graph.node("order", timer(10))
    graph.node("confirmed", timer(10))
    graph.node("request", wait("change"))
    add(graph, "change")
    add(graph, "send", 10)
    graph.edge("order", "confirmed")
    graph.edge("order", "request")
    graph.edge("request", "change")
    graph.edge("change", "request", limit="unlimited")
    graph.edge("confirmed", "send", cancel=["request"])
    async with World([graph], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.env.advance(11)
        for _ in range(2):
            await world.engine.send(NamedEvent("change"), to=run.id, strict=True)
            await world.env.quiet()
        assert world.ran == ["change", "change"]
        await world.env.advance(10)
        with pytest.raises(RunNotWaiting):
            await world.engine.send(NamedEvent("change"), to=run.id, strict=True)
        await world.env.advance(10)
        await run.result()
        assert world.ran == ["change", "change", "send"]


async def test_39_critical_section(source: StoreSource) -> None:
    """Two parts of several tasks: once one has begun, it comes to its end before the other."""
    graph = net("section", "a b1 b2 c1 c2 d free", dict.fromkeys(("b1", "b2", "c1", "c2"), 1) | {"free": 0.5})
    for row in "bc":
        graph.edge("a", f"{row}1")
        graph.edge(f"{row}1", f"{row}2")
        graph.edge(f"{row}2", "d", join=all_of())
    graph.edge("a", "free")
    graph.edge("free", "d", join=all_of())
    graph.exclusive(["b1", "b2", "c1", "c2"], keep=True)
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "free", "b1", "b2", "c1", "c2", "d"]


async def test_40_interleaved_routing(source: StoreSource) -> None:
    graph = net("one_at_a_time", "a b c d e", {"b": 3, "c": 2, "d": 1})
    for one in "bcd":
        graph.edge("a", one)
        graph.edge(one, "e", join=all_of())
    graph.exclusive(["b", "c", "d"])
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.ran == ["a", "b", "c", "d", "e"]
        assert world.trace.at_once_max == 1
        assert world.seconds == 6


# ---------------------------------------------------------------------------------------------------------------------
# Cancellation


def watched(name: str, cancel: Any) -> Graph[Any, Any]:
    """Three instances of one, two and three seconds; after a second and a half something else comes between."""
    graph = net(name, "a alarm after", {"alarm": 1.5})
    graph.node("many", assign({}))
    add(graph, "b", "branch.item")
    graph.node("meet", assign({}))
    add(graph, "met", label="'met ' + string(size(state.got))")
    graph.edge("a", "many")
    graph.edge("a", "alarm")
    graph.edge("many", "b", foreach="[1, 2, 3]")
    graph.edge("b", "meet", join=all_of(), merge=collect("state.got"))
    graph.edge("meet", "met")
    graph.edge("alarm", "after", cancel=cancel)
    return graph


async def test_19_cancel_task(source: StoreSource) -> None:
    graph = net("cancel_task", "a b c d", {"b": 5, "c": 1})
    graph.edge("a", "b")
    graph.edge("a", "c")
    graph.edge("b", "d")
    graph.edge("c", END, cancel=["b"])
    async with World([graph], source) as world:
        await world.engine.run(graph())
        assert world.trace.begun == ["a", "b", "c"]
        assert world.ran == ["a", "c"]


async def test_20_cancel_case(source: StoreSource) -> None:
    graph = net("case", "a b c", {"b": 5, "c": 6})
    graph.node("inner", child(bidder), input={"amount": 1})
    for one in ("b", "c", "inner"):
        graph.edge("a", one)
    async with World([graph, bidder], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.env.advance(1)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await world.env.advance(60)
        assert world.ran == ["a"]
        assert {view.status for view in (await world.engine.runs.list()).runs} == {"cancelled"}


async def test_25_cancel_region(source: StoreSource) -> None:
    graph = net("region", "a b b2 c d e", {"b": 1, "b2": 5, "c": 5, "d": 5, "e": 2})
    for one in "bcde":
        graph.edge("a", one)
    graph.edge("b", "b2")
    graph.edge("e", END, cancel=["b", "b2", "c"])
    assert await play(graph, source) == ["a", "b", "e", "d"]


async def test_26_cancel_multiple_instance_task(source: StoreSource) -> None:
    assert await play(watched("cancel_instances", "*"), source) == ["a", "b1", "alarm", "after"]


async def test_27_complete_multiple_instance_task(source: StoreSource) -> None:
    ran = await play(watched("complete_instances", ["b"]), source)
    assert ran[:3] == ["a", "b1", "alarm"]
    assert sorted(ran[3:]) == ["after", "met 1"]


# ---------------------------------------------------------------------------------------------------------------------
# Triggers


class Alarm(Event, event_name="patterns.alarm", consume_on_read=False):
    """Heard by those who listen when it rings, and by nobody else."""


def triggered(name: str, what: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph(name)
    graph.node("busy", timer(10))
    graph.node("listen", wait(what))
    add(graph, "heard")
    graph.edge("busy", "listen")
    graph.edge("listen", "heard")
    return graph


async def test_23_transient_trigger(source: StoreSource) -> None:
    graph = triggered("transient", Alarm)
    async with World([graph], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.engine.send(Alarm())
        with pytest.raises(RunNotWaiting):
            await world.engine.send(NamedEvent("patterns.alarm"), to=run.id, strict=True)
        await world.env.advance(20)
        assert world.ran == []
        await world.engine.send(Alarm())
        await run.result()
        assert world.ran == ["heard"]


async def test_24_persistent_trigger(source: StoreSource) -> None:
    graph = triggered("persistent", "letter")
    async with World([graph], source, autojump_s=None) as world:
        run = await world.engine.start(graph())
        await world.engine.send(NamedEvent("letter"), to=run.id)
        await world.env.advance(9)
        assert world.ran == []
        await world.env.advance(2)
        await run.result()
        assert world.ran == ["heard"]
