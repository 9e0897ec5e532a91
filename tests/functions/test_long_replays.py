"""Runs with long journals come back to life in pieces: others have their turn in between, and nothing is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Event, Retry, compensate, receive, step, workflow
from perdure.errors import RunFailed
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.models.functions import replay
from perdure.models.functions.revival import Revival
from perdure.models.functions.runner import LiveRun
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

STEPS = 60


class Goes(Event, event_name="long_replays.goes"):
    number: int


@step(name="long_replays.count")
async def count(number: int) -> int:
    return number


@step(name="long_replays.undo", retry=Retry.never())
async def undo(number: int) -> None:
    pass


@workflow(name="long_replays.counts")
async def counts(steps: int) -> list[int]:
    total = sum([await count(number) for number in range(steps)])
    return [total, (await receive(Goes)).number]


@workflow(name="long_replays.undoes")
async def undoes(steps: int) -> None:
    for number in range(steps):
        await count(number)
        await compensate(undo(number))
    await receive(Goes)
    raise ValueError("to be undone")


async def turns_of(work: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In which turn of the loop each entry of a journal was handed over, meanwhile."""
    turn, turns = 0, []
    hand_over = replay._hand_over

    def counted(self: LiveRun, *args: Any) -> Any:
        turns.append(turn)
        return hand_over(self, *args)

    async def tick() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(replay, "_hand_over", counted)
    ticking = asyncio.ensure_future(tick())
    try:
        await work()
    finally:
        ticking.cancel()
    return turns


@pytest.mark.parametrize("flow", [counts, undoes])
async def test_a_long_journal_is_replayed_in_many_turns(
    source: StoreSource, flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Environment([flow], source) as env:
        await env.engine.start(flow(2_000 if flow is counts else 1_000), id="r")
        await env.quiet()
        await env.restart()

        async def go_on() -> None:
            await env.engine.send(Goes(number=7), to="r")
            if flow is counts:
                assert await env.engine.handle("r").result() == [1_999_000, 7]
            else:
                with pytest.raises(RunFailed):
                    await env.engine.handle("r").result()

        turns = await turns_of(go_on, monkeypatch)
        assert len(turns) >= 2_000
        assert all(turns.count(turn) <= PIECE_ITEMS_MAX for turn in {*turns})
        assert turns == sorted(turns)
        await env.check()


async def in_the_middle(
    env: Environment, monkeypatch: pytest.MonkeyPatch, happening: Callable[[], Awaitable[Any]]
) -> list[Any]:
    """Have something happen to the run `r` in the middle of its replay, which waits there until it has happened. What
    goes wrong in callbacks of the loop from then on."""
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context))
    monkeypatch.setattr(replay, "PIECE_ITEMS_MAX", 10)
    replay_on = Revival._replay_on
    reached, happened = asyncio.Event(), asyncio.Event()
    pieces = 0

    def held_up(self: Revival, *args: Any) -> None:
        nonlocal pieces
        pieces += 1
        if pieces < 3 or happened.is_set():
            replay_on(self, *args)
            return
        reached.set()
        asyncio.get_running_loop().call_soon(held_up, self, *args)
        pieces -= 1

    monkeypatch.setattr(Revival, "_replay_on", held_up)
    waking = asyncio.ensure_future(env.engine.send(Goes(number=1), to="r"))
    await reached.wait()
    await happening()
    happened.set()
    await waking
    return wrong


async def asleep(env: Environment) -> None:
    await env.engine.start(counts(STEPS), id="r")
    await env.quiet()
    await env.restart()


async def test_an_event_that_comes_in_the_middle_of_a_replay_is_kept(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Environment([counts], source) as env:
        await asleep(env)
        wrong = await in_the_middle(env, monkeypatch, lambda: env.engine.send(Goes(number=2), to="r"))
        assert await env.engine.handle("r").result() == [sum(range(STEPS)), 1]
        await env.check()
        assert not wrong


async def test_a_run_that_is_cancelled_in_the_middle_of_its_replay_is_cancelled(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Environment([counts], source) as env:
        await asleep(env)
        wrong = await in_the_middle(env, monkeypatch, lambda: env.engine.handle("r").cancel())
        await env.quiet()
        assert await env.engine.handle("r").status() == "cancelled"
        await env.check()
        assert not wrong


async def test_a_run_that_is_paused_in_the_middle_of_its_replay_goes_on_when_it_is_resumed(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pause_and_resume() -> None:
        assert await env.engine.handle("r").pause()
        assert await env.engine.handle("r").resume()

    async with Environment([counts], source) as env:
        await asleep(env)
        wrong = await in_the_middle(env, monkeypatch, pause_and_resume)
        assert await env.engine.handle("r").result() == [sum(range(STEPS)), 1]
        await env.check()
        assert not wrong


async def test_an_engine_that_stops_in_the_middle_of_a_replay_leaves_the_run_to_the_next(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Environment([counts], source) as env:
        await asleep(env)
        wrong = await in_the_middle(env, monkeypatch, lambda: env.engine.shutdown(grace=0))
        await env.restart()
        assert await env.engine.handle("r").result() == [sum(range(STEPS)), 1]
        await env.check()
        assert not wrong


async def test_an_engine_that_dies_in_the_middle_of_a_replay_leaves_the_run_to_the_next(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Environment([counts], source) as env:
        await asleep(env)
        wrong = await in_the_middle(env, monkeypatch, env.restart)
        assert await env.engine.handle("r").result() == [sum(range(STEPS)), 1]
        await env.check()
        assert not wrong


async def test_code_that_does_not_fit_is_found_in_any_piece(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow(name="long_replays.counts")
    async def counts_otherwise(steps: int) -> list[int]:
        total = sum([await count(number if number < 47 else 0) for number in range(steps)])
        return [total, (await receive(Goes)).number]

    monkeypatch.setattr(replay, "PIECE_ITEMS_MAX", 10)
    async with Environment([counts], source) as env:
        await asleep(env)
        await env.restart([counts_otherwise])
        await env.engine.send(Goes(number=1), to="r")
        await env.quiet()
        view = await env.engine.runs.get("r")
        assert view is not None
        assert view.hold is not None
        assert "at position 48 the code calls" in view.hold.reason
        await env.restart([counts])
        assert await env.engine.handle("r").result() == [sum(range(STEPS)), 1]
        await env.check()
