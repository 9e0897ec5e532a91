"""Dead letters whose process dies: around their making, their replay and their removal, on memory and on SQLite."""

from __future__ import annotations

from collections.abc import Callable

from perdure import Event, receive, workflow
from perdure.errors import RunFinished
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource


class Late(Event, event_name="dead-letter-crashes.late", on_target_terminated="dead_letter"):
    number: int


@workflow(name="dead-letter-crashes.deaf")
async def deaf() -> None:
    await receive("never")


@workflow(name="dead-letter-crashes.hears")
async def hears() -> int:
    return (await receive(Late)).number


async def test_a_letter_is_replayed_once_or_removed_for_good(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> tuple[int, int]:
        await env.engine.start(deaf(), id="deaf")
        hearing = await env.engine.start(hears(), id="hears")
        for number in (1, 2):
            try:
                await env.engine.send(Late(number=number), to="deaf", key=str(number))
            except RunFinished:
                break  # An earlier life had sent both and come further.
        await env.engine.handle("deaf").cancel()
        for letter in await env.engine.dead_letters.list():
            if letter.value["number"] == 2:
                assert await env.engine.dead_letters.remove(letter.id)
            else:
                await env.engine.dead_letters.replay(letter.id, to="hears")
        return await hearing.result(), len(await env.engine.dead_letters.list())

    report = await run_with_crashes(scenario, workflows=[deaf, hears], store=fresh)
    assert report.result == (1, 0)
    assert report.commits >= 6
