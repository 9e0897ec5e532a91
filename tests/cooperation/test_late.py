"""Handlers that come after a message was emitted, and handlers that are taken out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine
from perdure.cooperation import Historical, Operation, Strategy, TimeWindow
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.testing import Environment, VirtualClock
from perdure.testing.control import kill
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import Diary, agree, run_of, status_of

ROOT, CHILD = topic("root"), topic("child")


def shop(**options: Any) -> tuple[Diary, Operation[Any], Operation[Any]]:
    """An emitter, and a handler that comes late."""
    diary = Diary()
    return diary, diary.operation("root", ROOT, [CHILD], [], **options), diary.operation("late", CHILD, [])


async def handlers(env: Environment) -> dict[str, str]:
    return {run.workflow: run.status for run in (await env.engine.runs.list()).runs if run.workflow != "root"}


async def test_a_handler_that_registers_while_the_emitter_waits_takes_part(source: StoreSource) -> None:
    diary, root, late = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "absent")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await handlers(env) == {"absent": "created"}
    async with Environment([root, late], source, autojump_s=None) as env:
        await env.settle()
        assert await handlers(env) == {"absent": "created", "late": "succeeded"}
        await env.engine.topics.complete(await run_of(env.engine, "absent"))
        await agree(env, root, late)
        assert diary == ["root 0", "late 0", "root 1"]
        assert await env.engine.handle(emitted.id).roll_back()
        await env.settle()
        await env.engine.topics.complete_rollback(await run_of(env.engine, "absent"))
        await agree(env, root, late)
        assert diary[3:] == ["root undo 1", "late undo 0", "root undo 0"]


async def test_the_emitter_waits_for_who_has_joined(source: StoreSource) -> None:
    _, root, _ = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        await env.engine.topics.register(CHILD, "late")
        await env.settle()
        await env.engine.topics.complete(await run_of(env.engine, "absent"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "suspended"
        await env.engine.topics.complete(await run_of(env.engine, "late"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "succeeded"


async def test_it_is_too_late_once_the_emitter_has_gone_on(source: StoreSource) -> None:
    diary, root, late = shop()
    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        await env.engine.topics.register(CHILD, "late")
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
        await env.engine.topics.register(CHILD, "late")
        await agree(env, root)
        assert "late" not in await handlers(env)


class DyingStore(StoreProxy):
    """The process dies when it has registered its handlers, before it can tell anybody."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_registered = asyncio.Event()

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        if batch.shared is not None and batch.shared.handlers:
            self.is_registered.set()
            await asyncio.Event().wait()
        return committed


async def register_and_die(store: DyingStore, late: Operation[Any], clock: VirtualClock) -> None:
    engine = Engine(store, workflows=[late], clock=clock, poll_s=None)
    opening = asyncio.create_task(engine.open())
    await store.is_registered.wait()
    kill(engine)
    opening.cancel()
    await asyncio.wait([opening])


@pytest.mark.parametrize("told_by", ["who lives", "who is opened"])
@pytest.mark.parametrize("strategy", [None, TimeWindow(timedelta(seconds=30))], ids=repr)
async def test_an_engine_that_dies_before_it_tells_who_waits_has_others_do_it(
    make_store: Callable[[], Store], told_by: str, strategy: Strategy | None
) -> None:
    _, root, late = shop(strategy=strategy)
    poll_s = 1.0 if told_by == "who lives" else None
    async with Environment([root], make_store, autojump_s=None, poll_s=poll_s) as env:
        await env.engine.topics.register(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        await register_and_die(DyingStore(make_store()), late, env.clock)
        assert "late" not in await handlers(env)
        if told_by == "who lives":
            await env.advance(5)
        else:
            await env.restart()
        await agree(env, root)
        assert await handlers(env) == {"absent": "created", "late": "created"}
        assert (await env.engine.topics.handlers()) == {"child": ["absent", "late"], "root": ["root"]}


@pytest.mark.parametrize("release", [False, True])
async def test_who_is_taken_out_is_released_if_that_is_asked_for(source: StoreSource, release: bool) -> None:
    diary, root, _ = shop()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        assert await env.engine.topics.retire(CHILD, "absent", release=release)
        await agree(env, root)
        assert diary == (["root 0", "root 1"] if release else ["root 0"])
        assert await status_of(env.engine, "absent") == ("cancelled" if release else "created")
