"""Handlers that come after a message was emitted, and handlers that are taken out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure.cooperation import Historical, Operation, TimeWindow
from perdure.errors import Misuse, RunFinished
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import Diary, agree, run_of, status_of

ROOT, CHILD = topic("root"), topic("child")


def shop(**options: Any) -> tuple[Diary, Operation[Any], Operation[Any]]:
    """An emitter, and a handler that comes late."""
    diary = Diary()
    return diary, diary.operation("root", ROOT, [CHILD], [], **options), diary.operation("late", CHILD, [])


async def handlers(env: Environment) -> dict[str, str]:
    return {run.workflow: run.status for run in (await env.engine.runs()).runs if run.workflow != "root"}


async def test_a_handler_that_registers_while_the_emitter_waits_takes_part(source: StoreSource) -> None:
    diary, root, late = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.register_handler(CHILD, "absent")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await handlers(env) == {"absent": "created"}
    async with Environment([root, late], source, autojump_s=None) as env:
        await env.settle()
        assert await handlers(env) == {"absent": "created", "late": "succeeded"}
        await env.engine.complete_handler(await run_of(env.engine, "absent"))
        await agree(env, root, late)
        assert diary == ["root 0", "late 0", "root 1"]
        assert await env.engine.roll_back(emitted.id)
        await env.settle()
        await env.engine.complete_rollback(await run_of(env.engine, "absent"))
        await agree(env, root, late)
        assert diary[3:] == ["root undo 1", "late undo 0", "root undo 0"]


async def test_the_emitter_waits_for_who_has_joined(source: StoreSource) -> None:
    _, root, _ = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.register_handler(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        await env.engine.register_handler(CHILD, "late")
        await env.settle()
        await env.engine.complete_handler(await run_of(env.engine, "absent"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "suspended"
        await env.engine.complete_handler(await run_of(env.engine, "late"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "succeeded"


async def test_it_is_too_late_once_the_emitter_has_gone_on(source: StoreSource) -> None:
    diary, root, late = shop()
    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        await env.engine.register_handler(CHILD, "late")
        await agree(env, root)
    async with Environment([root, late], source) as env:
        await agree(env, root, late)
        assert diary == ["root 0", "root 1"]
        assert await handlers(env) == {}


async def test_a_window_is_open_to_those_who_come_while_it_is(source: StoreSource) -> None:
    diary, root, late = shop(strategy=TimeWindow(timedelta(seconds=30)))
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {})
        await env.settle()
    async with Environment([root, late], source, clock=env.clock, autojump_s=None) as env:
        await env.settle()
        assert diary == ["root 0", "late 0"]
        await env.advance(31)
        await agree(env, root, late)
        assert diary == ["root 0", "late 0", "root 1"]


async def test_who_has_no_history_does_not_join(source: StoreSource) -> None:
    _, root, _ = shop(strategy=Historical())
    async with Environment([root, Diary().operation("known", CHILD, [])], source) as env:
        await (await env.engine.emit(CHILD, {})).finished()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {})
        await env.settle()
        await env.engine.register_handler(CHILD, "late")
        await agree(env, root)
        assert "late" not in await handlers(env)


async def test_joining_late_survives_crashes(fresh: Callable[[], StoreSource]) -> None:
    """Whether it is told before the process dies or not: it takes part as a whole, or not at all."""
    _, root, _ = shop()

    async def scenario(env: Environment) -> str:
        await env.engine.register_handler(CHILD, "absent")
        emitted = await env.engine.emit(ROOT, {}, id="m")
        await env.settle()
        await env.engine.register_handler(CHILD, "late")
        await env.settle()
        for name in ("absent", "late"):
            for run in (await env.engine.runs(workflow=name)).runs:
                with suppress(RunFinished, Misuse):
                    await env.engine.complete_handler(run.id)
        await emitted.finished()
        await agree(env, root)
        return await status_of(env.engine, "root")

    report = await run_with_crashes(scenario, workflows=[root], store=fresh, autojump_s=None)
    assert report.result == "succeeded"
    assert report.restarts > 10


@pytest.mark.parametrize("release", [False, True])
async def test_who_is_taken_out_is_released_if_that_is_asked_for(source: StoreSource, release: bool) -> None:
    diary, root, _ = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.register_handler(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        assert await env.engine.retire_handler(CHILD, "absent", release=release)
        await agree(env, root)
        assert diary == (["root 0", "root 1"] if release else ["root 0"])
        assert await status_of(env.engine, "absent") == ("cancelled" if release else "created")
