"""Who asked for what, with the process dying at every commit: each change is done once, and has its one row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure import Event, Retry, receive, step, workflow
from perdure.api.dead_letters import REMOVAL_RECORD
from perdure.errors import ConcurrentModification, RunFailed, RunFinished
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

Fresh = Callable[[], StoreSource]


class Late(Event, event_name="actor-crashes.late", on_target_terminated="dead_letter"):
    number: int


class Told(Event, event_name="actor-crashes.told"):
    number: int


@workflow(name="actor-crashes.deaf")
async def deaf() -> None:
    await receive("never")


@workflow(name="actor-crashes.hears-two")
async def hears_two() -> int:
    first, second = await receive(Late), await receive(Told)
    return first.number + second.number


class Luck:
    has_come = False


@step(retry=Retry.never())
async def tries() -> str:
    if not Luck.has_come:
        raise ValueError("no luck")
    return "done"


@workflow(name="actor-crashes.fails")
async def fails() -> str:
    return await tries()


async def rows_of(env: Environment, id: str, actor: str = "ann") -> list[str]:
    return [row.became for row in await env.engine.handle(id).audit() if row.actor == actor]


async def test_a_letter_is_never_gone_without_a_record_of_who_removed_it(fresh: Fresh) -> None:
    async def scenario(env: Environment) -> list[tuple[str, str]]:
        await env.engine.start(deaf(), id="deaf")
        try:
            await env.engine.send(Late(number=1), to="deaf", key="1")
        except RunFinished:
            removed = await env.engine.records.list(REMOVAL_RECORD)
            assert len(await env.engine.dead_letters.list()) + len(removed) >= 1
        await env.engine.handle("deaf").cancel()
        for letter in await env.engine.dead_letters.list():
            await env.engine.dead_letters.remove(letter.id, actor="ann")
        assert await env.engine.dead_letters.list() == []
        return [(one.actor, one.body["event"]) for one in await env.engine.records.list(REMOVAL_RECORD)]

    report = await run_with_crashes(scenario, workflows=[deaf], store=fresh)
    assert report.result == [("ann", "actor-crashes.late")]
    assert report.commits >= 4


async def test_named_senders_have_one_row_each(fresh: Fresh) -> None:
    async def scenario(env: Environment) -> tuple[int, list[str], list[str]]:
        run = await env.engine.start(hears_two(), id="r")
        try:
            await env.engine.send(Late(number=1), to="r", key="late", actor="ann")
            await env.engine.send(Told(number=2), key="told", actor="bob")
        except RunFinished:
            pass  # An earlier life had sent both.
        return await run.result(), await rows_of(env, "r"), await rows_of(env, "r", "bob")

    report = await run_with_crashes(scenario, workflows=[hears_two], store=fresh)
    assert report.result == (3, ["sent"], ["received"])


async def test_a_version_that_was_seen_is_changed_once(fresh: Fresh) -> None:
    async def scenario(env: Environment) -> list[str]:
        await env.engine.start(deaf(), id="r")
        await env.quiet()
        run = env.engine.handle("r")
        verbs = [run.pause, run.resume, run.cancel]
        for verb in verbs[len(await rows_of(env, "r")) :]:
            seen = await env.engine.runs.get("r")
            assert seen is not None
            with pytest.raises(ConcurrentModification):
                await verb(expected_version=seen.version + 1, actor="bob")
            await verb(expected_version=seen.version, actor="ann")
        assert await rows_of(env, "r", "bob") == []
        return await rows_of(env, "r")

    report = await run_with_crashes(scenario, workflows=[deaf], store=fresh)
    assert report.result == ["paused", "resumed", "cancelled"]


async def test_a_version_that_was_seen_is_retried_once(fresh: Fresh) -> None:
    async def scenario(env: Environment) -> tuple[str, list[str]]:
        is_retried = await env.engine.runs.get("r") is not None and bool(await rows_of(env, "r"))
        Luck.has_come = is_retried
        run = await env.engine.start(fails(), id="r")
        if not is_retried:
            with pytest.raises(RunFailed):
                await run.result()
            seen = await env.engine.runs.get("r")
            assert seen is not None
            with pytest.raises(ConcurrentModification):
                await env.engine.handle("r").retry(expected_version=seen.version - 1, actor="ann")
            Luck.has_come = True
            await env.engine.handle("r").retry(expected_version=seen.version, actor="ann")
        return await run.result(), await rows_of(env, "r")

    report = await run_with_crashes(scenario, workflows=[fails], store=fresh)
    assert report.result == ("done", ["running"])
