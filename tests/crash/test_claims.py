"""Claims of runs and of tasks: the process dies around one, its outcome stays unknown, or two of them race.

A run of a graph that was started by its name alone is taken for a function until an engine that knows better has it:
the claim says what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from perdure import Client, step, task, workflow
from perdure.errors import OutcomeUnknown, TaskLost
from perdure.graph import Graph
from perdure.kernel.runs import Run
from perdure.ports import Offer, Store
from perdure.testing import CRASH_POINTS, Environment, Point
from perdure.testing.conformance.base import Author, a_run, insert, update
from perdure.testing.environment import StoreSource
from perdure.testing.faults import DEADLY
from tests.crash.requests import FaultyRequest

FUNCTION, GRAPH = Offer("drawn", "", "f"), Offer("drawn", "", "f", "graph")


@step
async def shout(text: str) -> str:
    return text.upper()


drawn: Graph[Any, Any] = Graph("drawn")
drawn.node("shout", shout, input={"text": "input.text"})
drawn.output({"said": "nodes.shout"})


@workflow(name="claims.asks")
async def asks() -> int:
    return await task(queue="gpu", kind="remote", schema=int)


class FirstLife:
    """Has the store of an environment's first engine fail at a request of a name."""

    env: Environment

    def __init__(self, name: str, point: Point) -> None:
        self._name = name
        self._point: Point = point
        self._store: FaultyRequest | None = None

    def __call__(self, inner: Store) -> Store:
        if self._store is not None:
            return inner
        self._store = FaultyRequest(inner, self._name, self._point, self._die)
        return self._store

    def _die(self) -> None:
        self.env._die()

    @property
    def struck(self) -> int:
        return 0 if self._store is None else self._store.struck


async def stored(make_store: Callable[[], Store]) -> Run:
    store = make_store()
    await store.open()
    try:
        return (await store.get(["r"]))["r"].run
    finally:
        await store.close()


@pytest.mark.parametrize("point", sorted(DEADLY))
async def test_a_crash_around_a_claim_leaves_a_run_that_says_what_it_is_to_whoever_has_it(
    point: Point, source: StoreSource, make_store: Callable[[], Store]
) -> None:
    async with Client(make_store(), poll_s=None) as client:
        await client.start("drawn", {"input": {"text": "a"}}, id="r", version="")
    assert ((await stored(make_store)).model, (await stored(make_store)).claim) == ("function", 0)
    doom = FirstLife("claim", point)
    doom.env = env = Environment([drawn], source, watch=doom)
    async with env:
        await env.death()
        left = await stored(make_store)
        # Whoever sees the one sees the other.
        assert (left.model, left.claim) == (("function", 0) if point == "before" else ("graph", 1))
        assert (left.owner is None) == (point == "before")

        result = await env.survive(lambda env: env.engine.handle("r").result())

        assert result == {"said": "A"}
        assert (doom.struck, env.restarts) == (1, 1)
        view = await env.engine.runs.get("r")
        assert view is not None
        assert (view.model, view.status) == ("graph", "succeeded")
        await env.engine.handle("r").tokens()  # It can be drawn.
        assert await env.check() == 1
    assert (await stored(make_store)).claim == (1 if point == "before" else 2)


class Crowd:
    """Engines that have different code, each with a store of its own on the same data."""

    def __init__(self, make_store: Callable[[], Store], stack: AsyncExitStack) -> None:
        self._make_store = make_store
        self._stack = stack

    async def author(self, engine_id: str) -> Author:
        store = self._make_store()
        await store.open()
        self._stack.push_async_callback(store.close)
        return await Author.enroll(store, engine_id)


async def claims(author: Author, *offers: Offer) -> list[Run]:
    found = await author.store.claim(engine_id=author.id, epoch=author.engine.epoch, offers=offers, limit=10)
    return [one.run for one in found]


@pytest.mark.parametrize("codes", [(GRAPH, GRAPH), (FUNCTION, GRAPH), (GRAPH, FUNCTION)])
async def test_of_claims_that_race_one_has_the_run_and_says_what_it_is(
    codes: Sequence[Offer], make_store: Callable[[], Store]
) -> None:
    async with AsyncExitStack() as stack:
        crowd = Crowd(make_store, stack)
        one, other = await crowd.author("e-1"), await crowd.author("e-2")
        await one.commit(insert(a_run("r", workflow="drawn")))
        got = await asyncio.gather(claims(one, codes[0]), claims(other, codes[1]))
        [(winner, run)] = [(number, runs[0]) for number, runs in enumerate(got) if runs]
        assert (run.owner, run.claim, run.model) == (f"e-{winner + 1}", 1, codes[winner].model)
        found = (await one.store.get(["r"]))["r"].run
        assert (found.owner, found.claim, found.model) == (run.owner, 1, run.model)


async def test_a_claim_and_a_commit_of_what_was_read_before_it_do_not_undo_each_other(
    make_store: Callable[[], Store],
) -> None:
    async with AsyncExitStack() as stack:
        crowd = Crowd(make_store, stack)
        one, other = await crowd.author("e-1"), await crowd.author("e-2")
        was = a_run("r", workflow="drawn")
        await one.commit(insert(was))
        changed, claimed = await asyncio.gather(
            other.commit(update(was, tags={"a": "b"})), claims(one, GRAPH), return_exceptions=True
        )
        assert isinstance(claimed, list)
        if not claimed:  # Postgres passes over a row that somebody else is just writing.
            claimed = await claims(one, GRAPH)
        found = (await one.store.get(["r"]))["r"].run
        assert (found.model, found.owner, found.claim) == ("graph", "e-1", 1)
        assert claimed == [found]
        assert found.tags == ({} if isinstance(changed, Exception) else {"a": "b"})


async def test_what_is_known_to_be_a_graph_is_not_for_a_function_of_its_name(make_store: Callable[[], Store]) -> None:
    async with AsyncExitStack() as stack:
        crowd = Crowd(make_store, stack)
        one, other = await crowd.author("e-1"), await crowd.author("e-2")
        await one.commit(insert(a_run("r", workflow="drawn")))
        [run] = await claims(one, GRAPH)
        await one.commit(update(run, owner=None))
        assert await claims(other, FUNCTION) == []
        [again] = await claims(other, GRAPH)
        assert (again.model, again.claim) == ("graph", 2)


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_task_whose_claim_was_never_answered_is_open_again_when_its_lease_has_passed(
    point: Point, source: StoreSource
) -> None:
    async def scenario(env: Environment) -> tuple[int, int, str | None]:
        run = await env.engine.start(asks(), id="r")
        await env.quiet()
        with suppress(OutcomeUnknown):
            await env.engine.tasks.claim("gpu", "w-1", lease=60, actor="ann")
        await env.advance(60)
        [one] = await env.engine.tasks.claim("gpu", "w-2", lease=60, actor="bob")
        with pytest.raises(TaskLost):
            await env.engine.tasks.release(one.id, "w-1")
        await env.engine.tasks.answer(one.id, 7, worker="w-2")
        return await run.result(), one.claims, one.actor

    doom = FirstLife("claim_tasks", point)
    async with Environment([asks], source, autojump_s=None, watch=doom) as doom.env:
        assert await doom.env.survive(scenario) == (7, 1 if point == "unknown_lost" else 2, "bob")
        assert (doom.struck, doom.env.restarts) == (1, point in DEADLY)
