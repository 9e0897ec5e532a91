"""Many nodes at once are begun slice by slice, so that the process never stands still for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import perdure
from perdure.errors import LimitExceeded, RunFailed
from perdure.graph import END, Graph, GraphLimits, all_of, any_of, assign, collect, timer, wait
from perdure.models.functions.loop import WorkflowLoop
from perdure.models.graphs import runner
from perdure.ports import Journal
from perdure.testing import Environment, StoreProxy, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.graphs.pattern_tasks import World, add

SLICE = 3


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BEGUN_AT_ONCE_MAX", SLICE)


def spread(join: Any, seconds: str = "0") -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("slices")
    graph.node("begin", assign({}))
    graph.node("mark", assign({"state.mark": "branch.item"}))
    add(graph, "work", seconds, label="string(state.mark)")
    graph.node("meet", assign({}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "work")
    graph.edge("work", "meet", join=join, merge=collect("state.got"))
    graph.output("state.got")
    return graph


async def test_all_are_begun_in_their_order(source: StoreSource) -> None:
    graph = spread(all_of())
    async with World([graph], source) as world:
        assert await world.engine.run(graph(list(range(20)))) == [str(number) for number in range(20)]
        assert world.trace.begun == [str(number) for number in range(20)]


async def test_none_waits_for_the_end_of_another(source: StoreSource) -> None:
    """Steps that last, and waits for what never comes, do not keep the others from beginning."""
    graph = spread(all_of(), "60")
    async with World([graph], source) as world:
        await world.engine.run(graph(list(range(20))))
        assert world.seconds == pytest.approx(60, abs=0.01)
        assert world.trace.at_once_max == 20


async def test_those_that_have_not_begun_are_ended_with_the_others(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("ended")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("wait", wait("never"))
    graph.node("meet", assign({"output.met": "true"}))
    graph.edge("begin", "part", foreach="input")
    graph.edge("part", "meet", when="branch.item == 0", join=any_of("begin"))
    graph.edge("part", "wait", priority=1)
    graph.edge("wait", "meet", join=any_of("begin"))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph([1] * 20 + [0] + [1] * 20))
        assert await run.result() == {"met": True}
        await env.check()


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("crashing")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("mark", assign({"state.mark": "branch.item * 2"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[5, 1, 4, 2, 3, 1, 2, 3]")
    graph.edge("nap", "mark")
    graph.edge("mark", "meet", join=all_of(), merge=collect("state.got", source="state.mark"))
    graph.output("state.got")

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == [10, 2, 8, 4, 6, 2, 4, 6]


async def test_as_many_as_fit_into_one_slice_take_no_timer(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("fitting")
    graph.node("begin", assign({}))
    add(graph, "work")
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=all_of())
    async with World([graph], source) as world:
        run = await world.engine.start(graph([1, 2]))
        await run.result()
        assert {entry.kind for entry in (await run.history()).journal} == {"step"}


@pytest.mark.parametrize("tokens", [1, SLICE - 1, 5 * SLICE])
async def test_loops_in_which_nothing_waits_are_ended_all_the_same(
    tokens: int, source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IN_A_ROW_MAX", 200)
    graph: Graph[Any, Any] = Graph("endless")
    graph.node("begin", assign({}))
    graph.node("spin", assign({}))
    graph.edge("begin", "spin", spawn=tokens)
    graph.edge("spin", "spin", limit="unlimited")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, LimitExceeded)


async def test_many_nodes_one_after_the_other_take_no_timer(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("row")
    graph.node("count", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("end", assign({"output.laps": "state.laps"}))
    graph.edge("count", "count", limit=10 * SLICE)
    graph.edge("count", "end", priority=1)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        assert await run.result() == {"laps": 10 * SLICE + 1}
        assert (await env.engine.handle(run.id).history()).journal == []


# Routing: how much of it one activation does.


ROUTED = 7


@pytest.fixture
def little_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ROUTED_AT_ONCE_MAX", ROUTED)


class Turns:
    """Counts the nodes that are begun in one activation of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.all = self._now = 0
        begin, activate = runner.GraphRunner._begin, WorkflowLoop._activate

        def counted(graph: runner.GraphRunner, token: Any) -> None:
            self._now += 1
            self.all += 1
            self.most = max(self.most, self._now)
            begin(graph, token)

        def activated(loop: WorkflowLoop, *args: Any) -> Any:
            self._now = 0
            return activate(loop, *args)

        monkeypatch.setattr(runner.GraphRunner, "_begin", counted)
        monkeypatch.setattr(WorkflowLoop, "_activate", activated)


def spinning(laps: int) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("spinning")
    graph.node("count", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("end", assign({"output.laps": "state.laps"}))
    graph.edge("count", "count", limit=laps)
    graph.edge("count", "end", priority=1)
    return graph


@pytest.mark.usefixtures("little_routing")
async def test_a_loop_in_which_nothing_waits_is_routed_a_little_at_a_time(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, turns = spinning(200), Turns(monkeypatch)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        assert await run.result() == {"laps": 201}
        assert turns.all == 202
        assert turns.most <= ROUTED
        await env.check()


@pytest.mark.usefixtures("little_routing")
async def test_other_runs_have_their_turn_meanwhile(source: StoreSource) -> None:
    """The second run ends while the first one, which has begun before it, still goes round."""
    long, short = spinning(2_000), Graph[Any, Any]("short")
    short.node("only", assign({"output.done": "true"}))
    async with Environment([long, short], source) as env:
        first = await env.engine.start(long())
        second = await env.engine.start(short())
        assert await second.result() == {"done": True}
        view = await env.engine.runs.get(first.id)
        assert view is not None
        assert view.completed_at is None
        assert await first.result() == {"laps": 2_001}


@pytest.mark.usefixtures("little_routing")
async def test_many_branches_are_routed_a_little_at_a_time_and_in_their_order(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BEGUN_AT_ONCE_MAX", 1_000)
    graph: Graph[Any, Any] = Graph("many")
    graph.node("begin", assign({}))
    for number in range(4):
        graph.node(f"n{number}", assign({"state.mark": "branch.item"}))
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    graph.edge("begin", "n0", foreach="input")
    graph.node("meet", assign({}))
    graph.edge("n3", "meet", join=all_of(), merge=collect("state.got", source="state.mark"))
    graph.output("state.got")
    turns = Turns(monkeypatch)
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(list(range(100)))) == list(range(100))
        await env.check()
    assert turns.all == 402
    assert turns.most <= 101  # Those of one fork are begun together, up to a thousand.


@pytest.mark.usefixtures("little_routing")
async def test_what_arrives_while_it_routes_comes_after_in_replays_too(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("between")
    graph.node("begin", assign({}))
    graph.node("count", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("nap", timer("branch.item"))
    graph.node("mark", assign({"state.mark": "branch.item"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[1, 1, 2]")
    graph.edge("nap", "mark")
    graph.edge("mark", "mark", limit=30)
    graph.edge("mark", "meet", priority=1, join=all_of("begin"), merge=collect("state.got", source="state.mark"))
    graph.edge("meet", "count")
    graph.edge("count", "count", limit=30)
    graph.output({"got": "state.got", "laps": "state.laps"})
    graph.edge("count", END, priority=1)

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == {"got": [1, 1, 2], "laps": 31}


async def test_a_great_many_branches_of_several_nodes_stay_below_every_limit(source: StoreSource) -> None:
    """The limit on nodes in a row counts along one way, not over all branches."""
    graph: Graph[Any, Any] = Graph("wide")
    graph.node("begin", assign({}))
    for number in range(6):
        graph.node(f"n{number}", assign({}))
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    graph.edge("begin", "n0", spawn=300)
    graph.node("meet", assign({"output.met": "true"}))
    graph.edge("n5", "meet", join=all_of())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "IN_A_ROW_MAX", 8)
        patched.setattr(runner, "BEGUN_AT_ONCE_MAX", 100)
        async with Environment([graph], source) as env:
            assert await env.engine.run(graph()) == {"met": True}


async def test_a_limit_says_its_name_its_value_and_how_to_raise_it(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("row", limits=GraphLimits(in_a_row=50))
    graph.node("spin", assign({}))
    graph.edge("spin", "spin", limit="unlimited")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed, match=r"limit of in_a_row is 50; raise it .*limits=GraphLimits\(in_a_row=…\)"):
            await run.result()


async def test_a_loop_that_waits_in_one_of_its_branches_may_go_round_for_ever(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("waits", limits=GraphLimits(in_a_row=10))
    graph.node("begin", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("nap", timer(1))
    graph.node("idle", assign({}))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap")
    graph.edge("begin", "idle")
    graph.edge(["nap", "idle"], "meet", join=all_of())
    graph.edge("meet", "begin", when="state.laps < 30", limit="unlimited")
    graph.edge("meet", END, priority=1)
    graph.output("state.laps")
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph()) == 30


async def test_a_run_in_the_midst_of_its_routing_is_not_given_up(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it again for each slice would cost the square of its branches."""
    monkeypatch.setattr(runner, "ROUTED_AT_ONCE_MAX", 10)
    read: list[str] = []

    class Reads(StoreProxy):
        async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
            read.extend(ids)
            return await super().journals(ids)

    graph: Graph[Any, Any] = Graph("long")
    graph.node("begin", assign({}))
    graph.node("mark", assign({"state.mark": "branch.item"}))
    graph.node("meet", assign({"output.got": "size(state.got)"}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "meet", join=all_of(), merge=collect("state.got", source="state.mark"))
    async with Environment([graph], source, limits=perdure.Limits(live_runs_max=1), watch=Reads) as env:
        runs = [await env.engine.start(graph(list(range(200)))) for _ in range(3)]
        assert [await run.result() for run in runs] == [{"got": 200}] * 3
        assert read == []
