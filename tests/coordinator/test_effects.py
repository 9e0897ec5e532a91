"""Effects: performed in the order of committing, in bounded turns, before more is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from perdure import Event, To, receive, workflow
from perdure.coordinator.effects import Effects
from perdure.kernel.effects import Effect, Proceed
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.runtime import Runtime
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class Performer:
    """Performs effects with a function."""

    def __init__(self, perform: Callable[[Iterable[Effect]], object]) -> None:
        self._perform = perform

    def perform(self, effects: Iterable[Effect]) -> None:
        self._perform(effects)

    def performed(self) -> None:
        """Nobody waits for that."""


def some(first: int, count: int) -> list[Effect]:
    return [Proceed(str(number)) for number in range(first, first + count)]


async def test_effects_are_performed_in_order_and_in_parts() -> None:
    performed: list[list[Effect]] = []
    effects = Effects(Performer(lambda part: performed.append([*part])))
    effects.add(some(0, 1_000))
    effects.add([])
    effects.add(some(1_000, 3))
    assert not performed  # Never at once: whoever adds them may be a task.
    await effects.performed()
    assert [one for part in performed for one in part] == some(0, 1_003)
    assert max(map(len, performed)) == PIECE_ITEMS_MAX


async def test_each_part_has_a_turn_of_its_own() -> None:
    turn = 0
    turns: list[int] = []

    async def tick() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    ticking = asyncio.ensure_future(tick())
    effects = Effects(Performer(lambda _: turns.append(turn)))
    effects.add(some(0, 5 * PIECE_ITEMS_MAX))
    await effects.performed()
    ticking.cancel()
    assert len({*turns}) == 5


async def test_what_is_added_meanwhile_comes_after_what_is_left() -> None:
    performed: list[Effect] = []

    def perform(part: Iterable[Effect]) -> None:
        if not performed:
            effects.add(some(600, 1))
        performed.extend(part)

    effects = Effects(Performer(perform))
    effects.add(some(0, 600))
    await effects.performed()
    assert performed == some(0, 601)


async def test_a_part_that_fails_does_not_keep_the_others() -> None:
    performed: list[int] = []
    wrong: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context["exception"]))

    def perform(part: Iterable[Effect]) -> None:
        performed.append(len([*part]))
        if len(performed) == 1:
            raise ValueError("broken")

    effects = Effects(Performer(perform))
    effects.add(some(0, PIECE_ITEMS_MAX + 1))
    await effects.performed()
    assert performed == [PIECE_ITEMS_MAX, 1]
    assert [str(error) for error in wrong] == ["broken"]


async def test_after_the_end_at_most_the_next_part_is_performed() -> None:
    performed: list[Effect] = []
    effects = Effects(Performer(performed.extend))
    effects.add(some(0, 1_000))
    effects.stop()
    await effects.performed()
    assert performed == some(0, PIECE_ITEMS_MAX)
    effects.add(some(0, 1))
    await effects.performed()
    assert len(performed) == PIECE_ITEMS_MAX + 1


class Goes(Event, event_name="effects.goes"):
    pass


@workflow(name="effects.waits")
async def waits(number: int) -> int:
    await receive(Goes)
    return number


@workflow(name="effects.gathers")
async def gathers(count: int) -> int:
    return sum(await asyncio.gather(*[waits(number) for number in range(count)]))


async def test_many_children_are_begun_and_ended_in_many_turns(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit begins them all. While they are begun, others have their turn, and nothing else is decided."""
    sizes: list[int] = []
    perform = Runtime.perform

    def counted(self: Runtime, effects: Iterable[Effect]) -> None:
        part = [*effects]
        sizes.append(len(part))
        perform(self, part)

    monkeypatch.setattr(Runtime, "perform", counted)
    async with Environment([gathers, waits], source) as env:
        run = await env.engine.start(gathers(1_000), id="r")
        children: list[str] = []
        await env.quiet()
        cursor = None
        while cursor is not None or not children:
            page = await env.engine.runs.list(workflow="effects.waits", limit=500, cursor=cursor)
            children += [child.id for child in page.runs]
            cursor = page.cursor
        assert len(children) == 1_000
        await env.engine.send_many([To(Goes(), id) for id in children])
        assert await run.result() == sum(range(1_000))
        assert await env.engine.handle((await env.engine.start(gathers(1_000), id="other")).id).cancel()
        await env.settle()
        assert max(sizes) <= PIECE_ITEMS_MAX
        await env.check()
