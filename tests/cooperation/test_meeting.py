"""A deadline that meets a child's start, on two engines, in every order: the child never begins, or is undone. And one
that meets its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Limits
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import ScopeRows
from perdure.ports import Store
from perdure.testing import Environment, StoreProxy, YieldPoints, check_store
from perdure.testing.readiness import assert_readiness_agrees
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree

ROOT, CHILD, BUSY = topic("root"), topic("child"), topic("busy")
Message = dict[str, Any]


def impatient() -> Operation[Message]:
    root = Operation("root", ROOT)

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})
        scope.deadline(timedelta(seconds=5))  # Its own, which the child does not share.

    return root


def working(diary: list[str]) -> Operation[Message]:
    child = Operation("child", CHILD)

    @child.step
    async def work(scope: Scope, message: Message) -> None:
        diary.append("work")

    @work.rollback
    async def unwork(scope: Scope, message: Message, cause: Failure) -> None:
        diary.append("unwork")

    child.sleep(timedelta(hours=1))
    return child


@pytest.mark.parametrize(
    "order", ["deadline, claim", "claim, deadline, take", "take, deadline, seen", "seen, deadline"]
)
async def test_a_deadline_that_meets_a_childs_start(make_store: Callable[[], Store], order: str) -> None:
    diary: list[str] = []
    root, child = impatient(), working(diary)
    points = YieldPoints()
    async with Environment([root], make_store, autojump_s=None, poll_s=1.0) as env:
        await env.engine.topics.register(CHILD, "child")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        other = Engine(make_store(), workflows=[child], clock=env.clock, probe=points, poll_s=1.0)
        point = {"claim, deadline, take": "take.before_commit", "take, deadline, seen": "cooperate.before_commit"}
        if order in point:
            with points.hold(point[order]) as held:
                opening = asyncio.create_task(other.open())
                await held.reached()
                await env.advance(6)
            await opening
        elif order == "deadline, claim":
            await env.advance(6)
            await other.open()
        else:
            await other.open()
            await env.advance(6)
        try:
            with pytest.raises(ScopeFailed, match="the deadline of the happy path"):
                await finished(env, emitted)
            # By the word of its emitter it never began, or it did, and was undone. Once SEEN is written, its first step
            # and the word, which is mail, are on their way to each other: whichever is first counts, and the store in
            # memory reads mail at once. The next test has the word first, on every store.
            expected = {"seen, deadline": [["work", "unwork"]], "take, deadline, seen": [[], ["work", "unwork"]]}
            assert diary in expected.get(order, [[]])
            statuses = {run.status for run in (await env.engine.runs.list()).runs}
            assert statuses == {"rolled_back"}
        finally:
            await other.shutdown(grace=0)
        store = make_store()
        await store.open()
        await assert_readiness_agrees(store, [root, child], now=env.clock.now())
        await check_store(store)
        await store.close()


async def finished(env: Environment, emitted: Any) -> None:
    """Both engines look for mail as time passes."""
    waiting = asyncio.create_task(emitted.finished())
    while not waiting.done():
        await env.advance(1)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.01)
    await waiting


async def test_a_deadline_that_meets_a_child_before_its_first_step(make_store: Callable[[], Store]) -> None:
    """SEEN is written, and the step waits for its turn when the emitter's word comes: the step never begins."""
    diary: list[str] = []
    root, child, busy = impatient(), working(diary), Operation("busy", BUSY)
    began, may_end = asyncio.Event(), asyncio.Event()

    @busy.step
    async def take_the_only_turn(scope: Scope, message: Message) -> None:
        began.set()
        await may_end.wait()

    limits = Limits(steps_max=1)
    async with (
        Environment([root], make_store, autojump_s=None, poll_s=1.0) as env,
        Engine(make_store(), workflows=[child, busy], clock=env.clock, poll_s=1.0, limits=limits) as other,
    ):
        await other.emit(BUSY, {})
        await began.wait()
        emitted = await env.engine.emit(ROOT, {})
        try:
            with pytest.raises(ScopeFailed, match="the deadline of the happy path"):
                await finished(env, emitted)
            seen = [run for run in (await env.engine.runs.list()).runs if run.workflow == "child"]
            assert [run.status for run in seen] == ["rolled_back"]
            assert seen[0].started_at is not None
        finally:
            may_end.set()
        assert diary == []


class SlowStore(StoreProxy):
    """What it is asked for of runs while it is slow is what there was then, and comes when it may."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_slow = False
        self.was_read, self.has_ended, self.may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        found = await super().scopes(ids)
        if self.is_slow:
            self.is_slow = False
            self.was_read.set()
            await self.may_answer.wait()
        return found

    async def commit(self, batch: Batch) -> Committed:
        committed = await super().commit(batch)
        if batch.cooperation is not None and any(row.type == "COMMITTED" for row in batch.cooperation.events):
            self.has_ended.set()
        return committed


async def test_a_deadline_that_meets_a_childs_end_while_its_rows_are_read(make_store: Callable[[], Store]) -> None:
    """Its step ends while the run is being read: the run learns first that it is to be undone, so it never commits."""
    diary: list[str] = []
    began, may_end = asyncio.Event(), asyncio.Event()
    child = Operation("child", CHILD)

    @child.step
    async def work(scope: Scope, message: Message) -> None:
        began.set()
        await may_end.wait()
        diary.append("work")

    @work.rollback
    async def unwork(scope: Scope, message: Message, cause: Failure) -> None:
        diary.append("unwork")

    root, store = impatient(), SlowStore(make_store())
    async with Environment([root], make_store, autojump_s=None, poll_s=1.0) as env:
        await env.engine.topics.register(CHILD, "child")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        async with Engine(store, workflows=[child], clock=env.clock, poll_s=1.0):
            await began.wait()
            store.is_slow = True
            while not store.was_read.is_set():  # It reads its rows anew when it hears that it is to be undone.
                await env.advance(1)
                await asyncio.sleep(0)
            may_end.set()
            while not diary:
                await asyncio.sleep(0)
            await env.settle()
            assert diary == ["work"]
            store.may_answer.set()
            with pytest.raises(ScopeFailed, match="the deadline of the happy path"):
                await finished(env, emitted)
            assert diary == ["work", "unwork"]
            assert not store.has_ended.is_set()
            await agree(env, root, child)
