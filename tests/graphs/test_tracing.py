"""Where the tokens of a run are and were, told from its journal: while it lives, when it waits, and after its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Client, NamedEvent, Retry, step, workflow
from perdure.errors import Misuse, RunFailed, RunNotFound
from perdure.graph import Graph, JoinTokens, NodeTokens, all_of, any_of, assign, collect, human, terminate, timer, wait
from perdure.models.functions import replay
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    if value == "bad":
        raise ValueError("bad")
    return value


@workflow
async def plain() -> int:
    return 1


def waiting() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("waiting")
    graph.node("begin", same, input={"value": "input"})
    graph.node("nap", timer("branch.item * 10"))
    graph.node("meet", same, input={"value": "state.got"})
    graph.node("more", wait("told"))
    graph.edge("begin", "nap", foreach="nodes.begin")
    graph.edge("nap", "meet", join=all_of(), merge=collect("state.got", source="branch.item"))
    graph.edge("meet", "more")
    return graph


async def test_tokens_are_told_while_a_run_lives_and_after(source: StoreSource) -> None:
    graph = waiting()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph([1, 2, 3]), id="r")
        await env.quiet()
        await env.advance(15)
        seen = await env.engine.handle("r").tokens()
        assert (seen.run_id, seen.workflow, seen.status) == ("r", "waiting", "suspended")
        assert seen.nodes == {
            "begin": NodeTokens(completed=1),
            "nap": NodeTokens(standing=2, completed=1),
            "meet": NodeTokens(),
            "more": NodeTokens(),
        }
        assert seen.joins == (JoinTokens(target="meet", fork="begin", arrived=1, branches=3),)
        await env.restart()
        assert await env.engine.handle("r").tokens() == seen
        await env.advance(15)
        seen = await env.engine.handle("r").tokens()
        assert (seen.nodes["nap"], seen.nodes["more"]) == (NodeTokens(completed=3), NodeTokens(standing=1))
        assert seen.joins == ()
        await env.engine.send(NamedEvent("told", 1), to="r")
        await env.engine.handle("r").result()
        seen = await env.engine.handle("r").tokens()
        assert seen.status == "succeeded"
        assert seen.nodes["more"] == NodeTokens(completed=1)


async def test_looking_changes_nothing(source: StoreSource) -> None:
    graph = waiting()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph([1]), id="r")
        await env.quiet()
        before = await env.engine.handle("r").history()
        for _ in range(3):
            await env.engine.handle("r").tokens()
        assert await env.engine.handle("r").history() == before
        await env.advance(10)
        await env.engine.send(NamedEvent("told", 1), to="r")
        await env.engine.handle("r").result()
        await env.check()


async def test_what_failed_and_what_was_cancelled_is_told(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("race")
    graph.node("begin", assign({}))
    graph.node("ask", human("{{ branch.item }}"))
    graph.node("meet", same, input={"value": "'bad'"})
    graph.node("rescue", assign({}))
    graph.node("slow", timer(60))
    graph.node("end", terminate())
    graph.edge("begin", "ask", foreach="['a', 'b', 'c']")
    graph.edge("ask", "meet", join=any_of())
    graph.edge("meet", "rescue", on_error=True)
    graph.edge("rescue", "slow")
    graph.edge("rescue", "end")
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        await env.quiet()
        tasks = await env.engine.tasks.list(run="r")
        await env.engine.tasks.answer(tasks[1].id, 1)
        await env.engine.handle("r").result()
        seen = await env.engine.handle("r").tokens()
        assert seen.nodes["ask"] == NodeTokens(completed=1, cancelled=2)
        assert seen.nodes["meet"] == NodeTokens(failed=1)
        assert seen.nodes["slow"] == NodeTokens(cancelled=1)
        assert seen.nodes["end"] == NodeTokens(completed=1)


async def test_a_run_that_failed_or_was_cancelled_has_no_token_anywhere(source: StoreSource) -> None:
    graph = waiting()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph("bad"), id="failed")
        with pytest.raises(RunFailed):
            await env.engine.handle("failed").result()
        assert (await env.engine.handle("failed").tokens()).nodes["begin"] == NodeTokens(failed=1)
        await env.engine.start(graph([1, 2]), id="cancelled")
        await env.quiet()
        await env.engine.handle("cancelled").cancel()
        assert (await env.engine.handle("cancelled").tokens()).nodes["nap"] == NodeTokens(cancelled=2)


async def test_a_client_may_be_given_the_graph(source: StoreSource, make_store: Callable[[], Store]) -> None:
    graph = waiting()
    other = Graph[Any, Any]("other")
    other.node("begin", assign({}))
    async with Environment([graph, plain], source, autojump_s=None) as env:
        await env.engine.start(graph([1]), id="r")
        await env.engine.run(plain(), id="f")
        await env.quiet()
        async with Client(make_store() if source is not None else env.engine.session.store, poll_s=None) as client:
            assert (
                await client.handle("r").tokens() == await env.engine.handle("r").tokens()
            )  # by the definition that the run has
            with pytest.raises(Misuse, match="not of <graph 'other'"):
                await client.handle("r").tokens(graph=other)
            assert (await client.handle("r").tokens(graph=graph)).nodes["nap"] == NodeTokens(standing=1)
            with pytest.raises(Misuse, match="run 'f' has the model 'function': only runs of graphs have tokens"):
                await client.handle("f").tokens()
            with pytest.raises(RunNotFound):
                await client.handle("nobody").tokens()
            await client.start("waiting", {"input": [1, 2]}, version="", id="by-name")
            await env.engine.recover()
            await env.quiet()
            assert (await client.handle("by-name").tokens(graph=graph)).nodes["nap"] == NodeTokens(standing=2)
            assert (await env.engine.handle("by-name").tokens()).nodes["nap"] == NodeTokens(standing=2)


async def test_another_graph_of_the_same_name_does_not_fit(source: StoreSource) -> None:
    graph = waiting()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph([1]), id="r")
        await env.quiet()
        changed: Graph[Any, Any] = Graph("waiting")
        changed.node("first", timer(5))
        with pytest.raises(Misuse, match="run 'r' does not fit this graph: at position"):
            await env.engine.handle("r").tokens(graph=changed)


async def test_others_have_their_turn_while_a_long_journal_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PIECE_ITEMS_MAX", 10)
    graph: Graph[Any, Any] = Graph("traced_in_pieces")
    graph.node("begin", assign({}))
    graph.node("nap", timer(1))
    graph.node("meet", assign({}))
    graph.edge("begin", "nap", spawn=200)
    graph.edge("nap", "meet", join=all_of())
    turn, handed = 0, Counter[int]()
    hand_over = replay._hand_over

    def counted(live: Any, entry: Any, entries: Any) -> Any:
        handed[turn] += 1
        return hand_over(live, entry, entries)

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with Environment([graph]) as env:
        run = await env.engine.start(graph())
        await run.result()
        monkeypatch.setattr(replay, "_hand_over", counted)
        beside = asyncio.create_task(others())
        view = await env.engine.handle(run.id).tokens()
        beside.cancel()
    assert view.nodes["nap"].completed == 200
    assert sum(handed.values()) >= 200
    assert max(handed.values()) <= 10
