"""Each token of a run with its path and state, and the events of a run: told from the journal, the same each time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from perdure import Client, NamedEvent, Retry, RunHandle, sleep, step, workflow
from perdure.errors import Misuse, RunFailed, RunNotFound
from perdure.graph import (
    END,
    Graph,
    GraphEvent,
    GraphToken,
    TokensView,
    all_of,
    any_of,
    assign,
    child,
    collect,
    m_of,
    timer,
    wait,
)
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.graphs.behaviours import BEHAVIOURS, Behaviour, Jitter, double
from tests.graphs.programs import PROGRAMS
from tests.graphs.test_behaviours import outcome

OVER = {"completed", "failed", "timed_out", "cancelled"}
ENDS = {"token_merged", *(f"token_{state}" for state in OVER)}


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    if value == "bad":
        raise ValueError("it is bad")
    return value


@workflow
async def slow(value: int) -> int:
    await sleep(value)
    return value


def nested(**more: Any) -> Graph[Any, Any]:
    """Two rows of two, each of which waits: paths have two forks in them."""
    graph: Graph[Any, Any] = Graph("nested", **more)
    graph.node("A", assign({}))
    graph.node("B", assign({}))
    graph.node("nap", timer("branch.parent.item * 10 + branch.item"))
    graph.node("row", assign({}))
    graph.node("done", assign({}))
    graph.edge("A", "B", foreach="[1, 2]")
    graph.edge("B", "nap", foreach="[1, 2, 3]")
    graph.edge("nap", "row", join=all_of(), merge=collect("state.row", source="branch.item"))
    graph.edge("row", "done", join=all_of(), merge=collect("state.rows", source="state.row"))
    return graph


def by_path(view: TokensView) -> dict[str, list[GraphToken]]:
    found: dict[str, list[GraphToken]] = {}
    for token in view.tokens:
        found.setdefault(token.path, []).append(token)
    return found


async def test_a_token_has_its_path_and_its_place_among_its_branches(source: StoreSource) -> None:
    graph = nested()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        await env.quiet()
        await env.advance(12.5)
        view = await env.engine.handle("r").tokens()
        paths = by_path(view)
        rows = [f"root.A.{a}" for a in (0, 1)]
        assert set(paths) == {"root", *rows, *(f"{row}.B.{b}" for row in rows for b in (0, 1, 2))}
        (first,) = paths["root"]
        assert (first.id, first.parent, first.node, first.state) == (1, None, "A", "completed")
        row = paths["root.A.0"][0]
        assert (row.parent, row.branch_index, row.branch_total, row.state) == (1, 0, 2, "completed")
        states = [paths[f"root.A.0.B.{b}"][0] for b in (0, 1, 2)]
        assert [token.state for token in states] == ["waiting_for_siblings", "waiting_for_siblings", "executing"]
        assert [token.awaiting for token in states] == [1, 1, None]
        assert {token.parent for token in states} == {row.id}
        assert [(token.branch_index, token.branch_total) for token in states] == [(0, 3), (1, 3), (2, 3)]
        assert [token.node for token in states] == ["nap"] * 3
        assert (states[1].since - states[0].since).total_seconds() == 1
        assert view.tokens_total == len(view.tokens) == 9

        await env.restart()
        assert await env.engine.handle("r").tokens() == view

        await env.advance(1)  # The first row has met: what goes on is a branch of the outer fork again.
        view = await env.engine.handle("r").tokens()
        last = by_path(view)["root.A.0"][-1]
        assert (last.node, last.state, last.awaiting) == ("row", "waiting_for_siblings", 1)
        assert (last.parent, last.branch_index, last.branch_total) == (row.id, 0, 2)

        await env.advance(60)
        assert await env.engine.handle("r").status() == "succeeded"
        view = await env.engine.handle("r").tokens()
        assert {token.state for token in view.tokens} == {"completed"}
        assert (view.tokens[-1].path, view.tokens[-1].parent, view.tokens[-1].branch_total) == ("root", 1, 1)


async def test_a_fork_of_one_branch_is_no_part_of_the_path(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("single")
    graph.node("A", assign({}))
    graph.node("stay", wait("never"))
    graph.edge("A", "stay", foreach="[1]")
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")
        await env.settle()
        last = (await env.engine.handle("r").tokens()).tokens[-1]
        assert (last.path, last.branch_index, last.branch_total, last.state) == ("root", 0, 1, "executing")


async def test_states_say_what_a_token_waits_for_and_how_it_ended(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("states")
    graph.node("begin", assign({}))
    graph.node("kid", child(slow), input={"value": 100})
    graph.node("one", wait("go"))
    graph.node("two", wait("go"))
    graph.node("bad", same, input={"value": "'bad'"}, on_error="branch_error")
    graph.node("meet", assign({}))
    graph.exclusive(["one", "two"])
    for name in ("kid", "one", "two", "bad"):
        graph.edge("begin", name)
    graph.edge(["kid", "one", "two", "bad"], "meet", join=m_of(2))
    async with Environment([graph, slow], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        await env.quiet()
        states = {token.node: token for token in (await env.engine.handle("r").tokens()).tokens}
        assert {name: token.state for name, token in states.items()} == {
            "begin": "completed",
            "kid": "waiting_for_child",
            "one": "executing",
            "two": "pending",
            "bad": "failed",
        }
        error = states["bad"].error
        assert error is not None
        assert (error["type"], error["message"], error["node"]) == ("ValueError", "it is bad", "bad")
        await env.engine.send(NamedEvent("go", 1), to="r")
        await env.engine.send(NamedEvent("go", 2), to="r")
        await env.quiet()
        states = {token.node: token for token in (await env.engine.handle("r").tokens()).tokens}
        assert [states[name].state for name in ("one", "two", "kid", "meet")] == [
            "completed",
            "completed",
            "cancelled",
            "completed",
        ]
        assert states["kid"].reason == "the join at 'meet' went on without it"


async def test_laps_are_counted_by_edge(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("lapping")
    graph.node("lap", same, input={"value": 1})
    graph.node("stay", wait("never"))
    graph.edge("lap", "lap", limit=3)
    graph.edge("lap", "stay", priority=1)
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")
        await env.settle()
        (token,) = (await env.engine.handle("r").tokens()).tokens
        assert token.iterations == {"lap -> lap": 3}
        assert (token.node, token.state) == ("stay", "executing")


@pytest.mark.parametrize("on_timeout", ["fail", "proceed"])
async def test_a_join_that_times_out_says_so_of_its_tokens(source: StoreSource, on_timeout: Any) -> None:
    graph: Graph[Any, Any] = Graph("hurry")
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", foreach="[1, 100]")
    graph.edge("nap", "meet", join=all_of(timeout=5, on_timeout=on_timeout))
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        try:
            await run.result()
        except RunFailed:
            assert on_timeout == "fail"
        view = await env.engine.handle("r").tokens()
        early, late = (token for token in view.tokens if token.branch_total == 2)
        assert late.state == "timed_out"
        assert early.state == ("timed_out" if on_timeout == "fail" else "completed")
        kinds = [event.kind for event in (await env.engine.handle("r").graph_events()).events]
        assert ("join_failed" in kinds) is (on_timeout == "fail")


async def test_a_run_that_is_cancelled_has_no_tokens_left(source: StoreSource) -> None:
    graph = nested()
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph(), id="r")
        await env.quiet()
        await env.advance(12.5)
        before = (await env.engine.handle("r").graph_events()).events
        await run.cancel()
        view = await env.engine.handle("r").tokens()
        assert {token.state for token in view.tokens} == {"completed", "cancelled"}
        events = (await env.engine.handle("r").graph_events()).events
        assert list(events[: len(before)]) == list(before)
        assert events[-1].kind == "run_cancelled"


async def test_events_tell_the_story_of_a_run(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("story")
    graph.node("plan", same, input={"value": ["'a'", "'bad'"]})
    graph.node("work", same, input={"value": "branch.item"}, on_error="branch_error")
    graph.node("meet", assign({"state.done": True}))
    graph.edge("plan", "work", foreach="nodes.plan")
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.edge("meet", END)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        await run.result()
        page = await env.engine.handle("r").graph_events()
        assert page.cursor is None
        events = list(page.events)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        told = [(event.entry, event.kind, event.node, event.token, event.edge) for event in events]
        assert told[:13] == [
            (0, "run_started", "plan", None, None),
            (0, "token_spawned", None, 1, None),
            (0, "node_started", "plan", 1, None),
            (1, "node_completed", "plan", 1, None),
            (1, "token_spawned", None, 2, None),
            (1, "token_spawned", None, 3, None),
            (1, "token_completed", "plan", 1, None),
            (1, "transition_taken", "plan", 2, "plan -> work"),
            (1, "transition_taken", "plan", 3, "plan -> work"),
            (1, "node_started", "work", 2, None),
            (1, "node_started", "work", 3, None),
            (2, "node_completed", "work", 2, None),
            (2, "transition_taken", "work", 2, "work -> meet"),
        ]
        assert told[13:] == [
            (2, "token_arrived", "work", 2, None),
            (3, "node_failed", "work", 3, None),
            (3, "token_failed", "work", 3, None),
            (3, "token_merged", "work", 2, None),
            (3, "join_completed", "meet", None, None),
            (3, "context_updated", "meet", None, None),
            (3, "token_spawned", None, 4, None),
            (3, "node_started", "meet", 4, None),
            (3, "node_completed", "meet", 4, None),
            (3, "context_updated", "meet", 4, None),
            (3, "transition_taken", "meet", 4, "meet -> END"),
            (3, "token_completed", "meet", 4, None),
            (3, "run_completed", None, None, None),
        ]
        assert events[4].details == {"path": "root.plan.0", "index": 0, "total": 2, "parent": 1}
        assert all(earlier.at <= later.at for earlier, later in pairwise(events))


async def test_events_come_in_pages(source: StoreSource) -> None:
    graph = nested()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        await run.result()
        whole = list((await env.engine.handle("r").graph_events()).events)
        paged: list[GraphEvent] = []
        after: int | None = 0
        while after is not None:
            page = await env.engine.handle("r").graph_events(after=after, limit=7)
            assert len(page.events) <= 7
            paged += page.events
            after = page.cursor
        assert paged == whole
        assert (await env.engine.handle("r").graph_events(after=len(whole))).events == []
        for after, limit in ((0, 0), (0, 10_001), (-1, 1)):
            with pytest.raises(Misuse, match="limit must be between 1 and 10,000"):
                await env.engine.handle("r").graph_events(after=after, limit=limit)
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").graph_events()


async def all_pages(run: RunHandle[Any], limit: int, graph: Graph[Any, Any] | None = None) -> list[GraphEvent]:
    paged: list[GraphEvent] = []
    after: int | None = 0
    while after is not None:
        page = await run.graph_events(after=after, limit=limit, graph=graph)
        paged += page.events
        after = page.cursor
    return paged


def counting_replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    replays: list[str] = []
    trace = Graph.trace

    def counted(self: Graph[Any, Any], run: Run, *rest: Any) -> Any:
        replays.append(run.id)
        return trace(self, run, *rest)

    monkeypatch.setattr(Graph, "trace", counted)
    return replays


async def test_all_pages_together_take_one_replay(source: StoreSource, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = nested()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        await run.result()
        whole = list((await run.graph_events()).events)
        replays = counting_replays(monkeypatch)
        for handed in (None, graph):
            assert await all_pages(env.engine.handle("r"), 3, handed) == whole
        assert replays == ["r", "r"]


async def test_pages_of_several_runs_may_be_read_at_once(source: StoreSource, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = nested()
    async with Environment([graph], source) as env:
        ids = [f"r-{number}" for number in range(3)]
        for run_id in ids:
            await env.engine.run(graph(), id=run_id)
        replays = counting_replays(monkeypatch)
        told = await asyncio.gather(*[all_pages(env.engine.handle(run_id), 5) for run_id in ids])
        assert sorted(replays) == ids
        assert [len(events) for events in told] == [len(told[0])] * 3


async def test_pages_of_a_run_that_goes_on_meanwhile_are_those_of_the_whole(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = nested()
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph(), id="r")
        replays = counting_replays(monkeypatch)
        read: list[GraphEvent] = []
        for _ in range(30):
            await env.quiet()
            before = len(replays)
            for _ in range(3):  # The second time nothing has happened since, and a page before the end is known.
                page = await run.graph_events(after=len(read), limit=1_000)
                assert [event.seq for event in page.events] == [*range(len(read) + 1, len(read) + len(page.events) + 1)]
                read += page.events
                assert (await run.graph_events(after=0, limit=1)).events == read[:1]
            assert len(replays) <= before + (1 if await run.status() != "succeeded" else 6)
            await env.advance(1)
        monkeypatch.undo()
        assert read == list((await run.graph_events()).events)
        assert read[-1].kind == "run_completed"


async def test_pages_of_a_retried_run_are_those_of_the_retry(source: StoreSource) -> None:
    broken = True

    @step(name="may_fail", retry=Retry.never())
    async def may_fail() -> int:
        if broken:
            raise ValueError("broken")
        return 1

    graph: Graph[Any, Any] = Graph("may fail")
    graph.node("work", may_fail)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        assert [event.kind for event in (await run.graph_events(limit=3)).events][-1] == "node_started"
        broken = False
        await (await run.retry()).result()
        assert [event.kind for event in await all_pages(run, 2)][-1] == "run_completed"


async def test_events_of_a_part_of_the_journal_are_the_first_of_all(source: StoreSource) -> None:
    graph = nested()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        seen: list[GraphEvent] = []
        for _ in range(30):
            await env.quiet()
            now = list((await env.engine.handle("r").graph_events()).events)
            assert now[: len(seen)] == seen
            seen = now
            await env.advance(1)
        assert seen[-1].kind == "run_completed"


async def test_a_client_is_given_the_graph(source: StoreSource, make_store: Callable[[], Store]) -> None:
    graph = nested()
    async with Environment([graph], source) as env, Client(make_store()) as client:
        run = await env.engine.start(graph(), id="r")
        await run.result()
        told = await client.handle("r").graph_events(graph=graph)
        assert told == await env.engine.handle("r").graph_events()
        assert await client.handle("r").tokens(graph=graph) == await env.engine.handle("r").tokens()


def check_story(view: TokensView, events: list[GraphEvent]) -> None:
    """What is true of every run: each token comes to be once and ends once, nodes end that began, numbers go on."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    spawned = [event.token for event in events if event.kind == "token_spawned"]
    assert spawned == list(range(1, view.tokens_total + 1))
    ended = Counter(event.token for event in events if event.kind in ENDS)
    assert set(ended.values()) <= {1}
    assert {token.id for token in view.tokens if token.state in OVER} == set(ended)
    started = Counter((event.token, event.node) for event in events if event.kind == "node_started")
    left = Counter(
        (event.token, event.node)
        for event in events
        if event.kind in ("node_completed", "node_failed", "node_cancelled")
    )
    assert not left - started
    assert {token.parent for token in view.tokens} <= {None, *spawned}
    for token in view.tokens:
        assert token.parent is None or token.parent < token.id
        assert 0 <= token.branch_index < max(1, token.branch_total)
    if view.status in FINISHED:
        assert events[-1].kind == ("run_completed" if view.status == "succeeded" else "run_failed")
        assert {token.state for token in view.tokens} <= OVER


@pytest.mark.parametrize(("make", "expected"), PROGRAMS)
async def test_every_program_has_a_whole_story(make: Callable[[], Graph[Any, Any]], expected: Any) -> None:
    graph = make().build()
    async with Environment([graph]) as env:
        assert await (await env.engine.start(graph(), id="r")).result() == expected
        check_story(
            await env.engine.handle("r").tokens(),
            list((await env.engine.handle("r").graph_events(limit=10_000)).events),
        )


@pytest.mark.parametrize("one", BEHAVIOURS, ids=lambda one: f"{one.number}-{one.name}")
async def test_every_behaviour_has_a_whole_story(one: Behaviour) -> None:
    graph = one.graph()
    for seed in range(3):
        async with Environment([graph, double], resources={Jitter: lambda seed=seed: Jitter(seed)}) as env:
            one.check(await outcome(env, one, graph, "one"))
            await env.settle()
            events = list((await env.engine.handle("one").graph_events(limit=10_000)).events)
            check_story(await env.engine.handle("one").tokens(), events)


async def test_thousands_of_tokens_are_told_of_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.models.graphs.trace.TOKENS_LISTED_MAX", 50)
    graph: Graph[Any, Any] = Graph("wide")
    graph.node("begin", assign({}))
    graph.node("work", wait("go", where={"n": "branch.index"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=100)
    graph.edge("work", "meet", join=any_of())
    async with Environment([graph]) as env:
        await env.engine.start(graph(), id="r")
        await env.settle()
        view = await env.engine.handle("r").tokens()
        assert (len(view.tokens), view.tokens_total) == (50, 101)
        assert {token.state for token in view.tokens} == {"executing"}
        await env.engine.send(NamedEvent("go", {"n": 7}), to="r")
        await env.settle()
        view = await env.engine.handle("r").tokens()
        assert (len(view.tokens), view.tokens_total) == (50, 102)
        assert view.tokens[-1].id == 102
