"""Events whose run ended before it read them, by their own policy; and what can be done with dead letters."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Delivered, NamedEvent, Queued
from perdure.errors import DeadLetterNotFound, PerdureError, RunFinished, RunNotFound
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.listeners import WORKFLOWS, Lost, Open, Ping, Shared, ends, found, shared, sleeper


@pytest.fixture
def opened(source: StoreSource) -> Open:
    return lambda **options: Environment(WORKFLOWS, source, **{"autojump_s": None, **options})


async def end(env: Environment, how: str, run_id: str = "r") -> None:
    if how == "cancelled":
        await env.engine.handle(run_id).cancel()
    else:
        await env.engine.send(NamedEvent("end"), to=run_id)
    await env.quiet()
    assert await env.engine.handle(run_id).status() == how


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("how", ["succeeded", "failed", "cancelled"])
async def test_each_event_goes_where_its_own_policy_says(opened: Open, how: str, restarts: bool) -> None:
    async with opened() as env:
        await env.engine.start(shared(), id="waiting")
        await env.engine.start(ends(how), id="r")
        for number in (1, 2):
            for kind in (Ping, Lost, Shared):
                await env.engine.send(kind(number=number), to="r")
            await env.advance(1)
        if restarts:
            await env.restart()
        await end(env, how)
        assert await env.engine.handle("waiting").result() == 1
        assert [(view.name, view.value["number"]) for view in await env.engine.events.pending()] == [("Shared", 2)]
        letters = await env.engine.dead_letters.list()
        assert [(letter.name, letter.value["number"]) for letter in letters] == [("Lost", 1), ("Lost", 2)]
        assert {(letter.to, str(letter.target_status)) for letter in letters} == {("r", how)}
        assert await env.engine.events.pending(to="r") == []
        await env.check()


async def a_letter(env: Environment, number: int = 1) -> str:
    run = await env.engine.start(sleeper())
    await env.engine.send(Lost(number=number), to=run.id)
    await env.engine.handle(run.id).cancel()
    return (await env.engine.dead_letters.list())[-1].id


async def test_dead_letters_are_listed_page_by_page(opened: Open) -> None:
    async with opened() as env:
        for number in range(5):
            await env.advance(1)
            await a_letter(env, number)
        page = await env.engine.dead_letters.list(name="Lost", limit=3)
        rest = await env.engine.dead_letters.list(after=page[-1].id)
        assert [letter.value["number"] for letter in (*page, *rest)] == [0, 1, 2, 3, 4]
        assert await env.engine.dead_letters.list(name="Other") == []


async def test_a_dead_letter_is_replayed_to_whoever_waits(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        await env.engine.start(found(), id="r")
        await env.quiet()
        assert await env.engine.dead_letters.replay(letter) == Delivered(("r",))
        assert await env.engine.handle("r").result() == 1
        assert await env.engine.dead_letters.list() == []
        with pytest.raises(DeadLetterNotFound):
            await env.engine.dead_letters.replay(letter)


async def test_a_dead_letter_that_nobody_waits_for_is_queued(opened: Open) -> None:
    async with opened() as env:
        assert isinstance(await env.engine.dead_letters.replay(await a_letter(env)), Queued)
        await env.restart()
        assert await env.engine.run(found()) == 1


async def test_a_dead_letter_is_replayed_to_a_run(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        await env.engine.start(found(), id="a")
        await env.engine.start(found(), id="b")
        await env.quiet()
        assert await env.engine.dead_letters.replay(letter, to="b") == Delivered(("b",))
        assert await env.engine.handle("b").result() == 1
        assert await env.engine.handle("a").status() == "suspended"


async def test_a_dead_letter_that_cannot_be_replayed_stays(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        with pytest.raises(RunNotFound):
            await env.engine.dead_letters.replay(letter, to="nobody")
        await env.engine.start(found(), id="over")
        await env.engine.handle("over").cancel()
        with pytest.raises(RunFinished):
            await env.engine.dead_letters.replay(letter, to="over")
        assert [one.id for one in await env.engine.dead_letters.list()] == [letter]


async def test_a_dead_letter_whose_next_run_ends_too_is_one_again(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        await env.engine.start(sleeper(), id="r")
        await env.engine.dead_letters.replay(letter, to="r")
        assert await env.engine.dead_letters.list() == []
        await env.engine.handle("r").cancel()
        assert [(one.id, one.to) for one in await env.engine.dead_letters.list()] == [(letter, "r")]


async def test_a_dead_letter_is_removed_once(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        assert await asyncio.gather(*[env.engine.dead_letters.remove(letter) for _ in range(2)]) == [True, False]
        assert not await env.engine.dead_letters.remove("nothing")


async def test_a_dead_letter_that_is_replayed_by_two_at_once_is_sent_once(opened: Open) -> None:
    async with opened() as env:
        letter = await a_letter(env)
        replies = await asyncio.gather(
            *[env.engine.dead_letters.replay(letter) for _ in range(3)], return_exceptions=True
        )
        assert sum(isinstance(reply, PerdureError) for reply in replies) == 2
        assert len(await env.engine.events.pending()) == 1
