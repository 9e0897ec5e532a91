"""Once a cancellation has been answered with True, no further step begins, wherever the runs are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest

from perdure import Engine, Limits
from perdure.api.hierarchies import hierarchy_rows
from perdure.client import Client
from perdure.cooperation import CancellationToken, Failure, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.rows import Mail
from perdure.ports import Store
from perdure.session import Session
from perdure.testing import Environment, StoreProxy, YieldPoints
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]


class Gated:
    """An operation of three steps, each of which waits until it may end."""

    def __init__(self, name: str = "root", on: Any = ROOT, *emits: Any, steps: int = 3) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()  # the step that runs now
        self.gate = asyncio.Event()
        self.operation: Operation[Message] = Operation(name, on)
        for number in range(steps):
            self._add(number, emits if number == 0 else ())

    def _add(self, number: int, emits: tuple[Any, ...]) -> None:
        async def invoke(scope: Scope, message: Message) -> None:
            for one in emits:
                await scope.emit(one, {})
            self.done.append(f"step {number}")
            self.begun.set()
            await self.gate.wait()

        step = self.operation.step(name=f"s{number}")(invoke)

        @step.rollback
        async def undo(scope: Scope, message: Message, cause: Failure) -> None:
            self.done.append(f"undo {number}")

    async def at(self, number: int) -> None:
        """Go on until this step runs."""
        for _ in range(number):
            await self.begun.wait()
            self.begun.clear()
            self.gate.set()
            await asyncio.sleep(0)
            self.gate = asyncio.Event()
        await self.begun.wait()
        assert self.done[-1] == f"step {number}"


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("by", ["root", "run"])
async def test_no_step_begins_after_the_answer(source: StoreSource, number: int, by: Literal["root", "run"]) -> None:
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {})
        await gated.at(number)
        assert await env.engine.handle(root.id if by == "root" else root.run_ids[0]).cancel()
        gated.gate.set()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await root.finished()
        steps = [f"step {n}" for n in range(number + 1)]
        assert gated.done == [*steps, *(f"undo {n}" for n in reversed(range(number + 1)))]
        assert not await env.engine.handle(root.id).cancel()
        await agree(env, gated.operation)


@pytest.mark.parametrize("number", [0, 1])
async def test_no_step_of_another_engine_begins_after_the_answer(make_store: Callable[[], Store], number: int) -> None:
    """It looks for mail once a second."""
    root, child = Gated("root", ROOT, CHILD, steps=2), Gated("child", CHILD)
    root.gate.set()
    async with Environment([root.operation, child.operation], make_store, autojump_s=None, poll_s=1.0) as env:
        async with Client(make_store(), clock=env.clock, poll_s=1.0) as client:
            emitted = await client.emit(ROOT, {})
            await passing(env, child.at(number))
            assert await passing(env, client.handle(emitted.id).cancel())
            child.gate.set()
            with pytest.raises(ScopeFailed, match="cancelled"):
                await passing(env, emitted.finished())
        assert child.done == [*(f"step {n}" for n in range(number + 1)), *(f"undo {n}" for n in range(number, -1, -1))]
        assert root.done == ["step 0", "undo 0"]
        await agree(env, root.operation, child.operation)


async def test_no_step_of_another_engine_begins_after_a_token_was_cancelled(make_store: Callable[[], Store]) -> None:
    """It looks for mail once a second, and has the run's next step ready at once."""
    gated = Gated()
    async with Environment([gated.operation], make_store, autojump_s=None, poll_s=1.0) as env:
        async with Client(make_store(), clock=env.clock, poll_s=1.0) as client:
            token = CancellationToken("evening")
            emitted = await client.emit(ROOT, {}, tokens=[token])
            await passing(env, gated.at(0))
            assert await passing(env, client.topics.cancel_token(token))
            gated.gate.set()
            with pytest.raises(ScopeFailed, match="cancelled"):
                await passing(env, emitted.finished())
        assert gated.done == ["step 0", "undo 0"]
        await agree(env, gated.operation)


class Desk:
    """The mail of an engine, which does not get it while the desk is closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self.letters = 0


class Unread(StoreProxy):
    def __init__(self, inner: Store, desk: Desk) -> None:
        super().__init__(inner)
        self._desk = desk

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        letters = await self.inner.mail(engine_id, limit)
        self._desk.letters = len(letters)
        return [] if self._desk.is_closed else letters


async def test_a_token_is_cancelled_once_the_other_engine_has_read_its_mail(make_store: Callable[[], Store]) -> None:
    """Until then that engine begins steps. So the caller waits for the letter that comes after the notification."""
    gated, desk = Gated(), Desk()
    token = CancellationToken("evening")
    async with (
        Environment([gated.operation], lambda: Unread(make_store(), desk), autojump_s=None, poll_s=1.0) as env,
        Client(make_store(), clock=env.clock, poll_s=1.0) as client,
    ):
        emitted = await client.emit(ROOT, {}, tokens=[token])
        await passing(env, gated.at(0))
        desk.is_closed = True
        cancelling = asyncio.create_task(client.topics.cancel_token(token))
        while not cancelling.done() and desk.letters < 2:
            await env.advance(1)
            await asyncio.wait({cancelling}, timeout=0.01)
        if not cancelling.done():
            desk.is_closed = False
        assert await passing(env, cancelling)
        gated.gate.set()
        while env.engine.runtime.steps_running:
            await asyncio.sleep(0.001)
        desk.is_closed = False
        with pytest.raises(ScopeFailed, match="cancelled"):
            await passing(env, emitted.finished())
        assert gated.done == ["step 0", "undo 0"]
        await agree(env, gated.operation)


async def test_no_step_of_a_run_here_begins_whose_parent_is_elsewhere(make_store: Callable[[], Store]) -> None:
    """The engine that is asked has the child, and hears of the cancellation from the engine of the parent, too."""
    root, child = Gated("root", ROOT, CHILD, steps=1), Gated("child", CHILD)
    root.gate.set()
    options: dict[str, Any] = {"autojump_s": None, "poll_s": 1.0}
    async with (
        Environment([child.operation], make_store, **options) as env,
        Environment([root.operation], make_store, clock=env.clock, **options) as other,
    ):
        emitted = await other.engine.emit(ROOT, {})
        await passing(env, child.at(0))
        assert await passing(env, env.engine.handle(emitted.id).cancel())
        child.gate.set()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await passing(env, emitted.finished())
        assert child.done == ["step 0", "undo 0"]
        await agree(env, root.operation, child.operation)


async def test_a_cancellation_that_meets_the_end(source: StoreSource) -> None:
    """Both are decided in one batch, the cancellation first."""
    gated, points = Gated(steps=1), YieldPoints()
    async with Environment([gated.operation], source, probe=points) as env:
        root = await env.engine.emit(ROOT, {})
        await gated.at(0)
        with points.hold("batch.take") as held:
            cancelling = asyncio.create_task(root.cancel())
            await held.reached()
            gated.gate.set()
            while env.engine.runtime.steps_running:
                await asyncio.sleep(0)
        assert await cancelling
        with pytest.raises(ScopeFailed, match="cancelled"):
            await root.finished()
        assert gated.done == ["step 0", "undo 0"]
        await agree(env, gated.operation)


async def test_a_child_that_is_emitted_while_its_parent_is_read_again(source: StoreSource) -> None:
    """One batch has the news of a handler, for which the parent's rows must be read again, then the cancellation, which
    the parent therefore finds in its rows, and then the emission. The child begins before the rows are read."""
    other, points = topic("other"), YieldPoints()
    gated, begun, gate = Gated("child", CHILD, steps=1), asyncio.Event(), asyncio.Event()
    gated.gate.set()
    root, quick = Operation[Message]("root", ROOT), Operation[Message]("quick", other)

    @root.step
    async def first(scope: Scope, message: Message) -> None:
        await scope.emit(other, {})

    @root.step
    async def second(scope: Scope, message: Message) -> None:
        begun.set()
        await gate.wait()
        await scope.emit(CHILD, {})

    @quick.step
    async def works(scope: Scope, message: Message) -> None: ...

    async with Environment([root, quick, gated.operation], source, probe=points) as env:
        emitted = await env.engine.emit(ROOT, {})
        await begun.wait()
        with points.hold("notify.submit") as news:
            registering = asyncio.create_task(env.engine.topics.register(other, "late"))
            await news.reached()
            with points.hold("batch.take") as held:
                news.release()
                await held.reached()
                asked = asyncio.create_task(points.passed("cancelscope.submit"))
                cancelling = asyncio.create_task(emitted.cancel())
                await asked
                gate.set()
                while env.engine.runtime.steps_running:
                    await asyncio.sleep(0)
        await registering
        assert await cancelling
        with pytest.raises(ScopeFailed, match="cancelled"):
            await emitted.finished()
        assert gated.done == []
        await agree(env, root, quick, gated.operation)


async def test_a_step_that_waits_for_its_turn_never_begins(source: StoreSource) -> None:
    first, second = Gated("first", ROOT, steps=1), Gated("second", CHILD, steps=1)
    async with Environment([first.operation, second.operation], source, limits=Limits(steps_max=1)) as env:
        one = await env.engine.emit(ROOT, {})
        await first.at(0)
        other = await env.engine.emit(CHILD, {})
        await env.engine.runs.get(other.run_ids[0])
        assert await other.cancel()
        first.gate.set()
        second.gate.set()
        await one.finished()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await other.finished()
        assert second.done == []
        await agree(env, first.operation, second.operation)


async def test_a_step_that_waits_for_a_thread_never_begins(source: StoreSource) -> None:
    begun, gate, done = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()
    first, second = Operation[Message]("first", ROOT), Operation[Message]("second", CHILD)

    @first.step
    def blocks(scope: Scope, message: Message) -> None:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()

    @second.step
    def works(scope: Scope, message: Message) -> None:
        done.append("second")

    async with Environment([first, second], source, limits=Limits(threads_max=1)) as env:
        try:
            one = await env.engine.emit(ROOT, {})
            await begun.wait()
            other = await env.engine.emit(CHILD, {})
            while env.engine.runtime.steps_running < 2:
                await asyncio.sleep(0)
            assert await other.cancel()
        finally:
            gate.set()
        await one.finished()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await other.finished()
        assert done == []
        await agree(env, first, second)


async def test_what_has_ended_is_not_cancelled_and_nothing_is_written(source: StoreSource) -> None:
    gated = Gated(steps=1)
    gated.gate.set()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {})
        await root.finished()
        nobody = await env.engine.emit(CHILD, {})
        for id in (root.id, root.run_ids[0], nobody.id, "unknown"):
            assert not await env.engine.handle(id).cancel()
        for id in (root.id, nobody.id):
            assert "CANCELLATION_REQUESTED" not in await row_types(env.engine.session, id)
        assert gated.done == ["step 0"]
        await agree(env, gated.operation)


async def test_a_cancellation_that_the_end_was_faster_than(make_store: Callable[[], Store]) -> None:
    """The cancellation is stored while the end of the run is being committed by another engine."""
    gated, points = Gated(steps=1), YieldPoints()
    async with (
        Environment([gated.operation], make_store, autojump_s=None, poll_s=1.0, probe=points) as env,
        Client(make_store(), clock=env.clock, poll_s=1.0) as client,
    ):
        emitted = await client.emit(ROOT, {})
        await passing(env, gated.at(0))
        with points.hold("cooperate.before_commit") as held:
            gated.gate.set()
            await held.reached()
            cancelling = asyncio.create_task(client.handle(emitted.id).cancel())
            while "CANCELLATION_REQUESTED" not in await row_types(client.session, emitted.id):
                await asyncio.sleep(0)
        await env.engine.handle(emitted.run_ids[0]).result()
        assert not await passing(env, cancelling)
        assert gated.done == ["step 0"]
        await agree(env, gated.operation)


@pytest.mark.parametrize("by", ["root", "run"])
async def test_a_cancellation_that_is_decided_after_the_end(source: StoreSource, by: Literal["root", "run"]) -> None:
    """Its caller has read rows of a run that had not ended yet."""
    gated, points = Gated(steps=1), YieldPoints()
    async with Environment([gated.operation], source, probe=points) as env:
        root = await env.engine.emit(ROOT, {})
        (run_id,) = root.run_ids
        await gated.at(0)
        with points.hold("cancelscope.submit") as held:
            cancelling = asyncio.create_task(env.engine.handle(root.id if by == "root" else run_id).cancel())
            await held.reached()
            gated.gate.set()
            await root.finished()
        assert not await cancelling
        assert "CANCELLATION_REQUESTED" not in await row_types(env.engine.session, root.id)
        assert gated.done == ["step 0"]
        await agree(env, gated.operation)


@pytest.mark.parametrize("by", ["root", "run"])
async def test_a_cancellation_whose_commit_comes_after_the_end(
    make_store: Callable[[], Store], by: Literal["root", "run"]
) -> None:
    """It was decided before another engine committed the end."""
    gated, points = Gated(steps=1), YieldPoints()
    async with (
        Environment([gated.operation], make_store, autojump_s=None, poll_s=1.0) as env,
        Client(make_store(), clock=env.clock, poll_s=1.0, probe=points) as client,
    ):
        emitted = await client.emit(ROOT, {})
        await passing(env, gated.at(0))
        with points.hold("cancelscope.before_commit") as held:
            id = emitted.id if by == "root" else emitted.run_ids[0]
            cancelling = asyncio.create_task(client.handle(id).cancel())
            await held.reached()
            gated.gate.set()
            await env.engine.handle(emitted.run_ids[0]).result()
        assert not await passing(env, cancelling)
        assert "CANCELLATION_REQUESTED" not in await row_types(client.session, emitted.id)
        assert gated.done == ["step 0"]
        await agree(env, gated.operation)


async def row_types(session: Session, id: str) -> set[str]:
    return {row.type for row in (await hierarchy_rows(session, id)).events}


async def passing(env: Environment, work: Awaitable[Any]) -> Any:
    """Let time pass until something is done."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await env.advance(1)
        await asyncio.wait({task}, timeout=0.01)
    return task.result()


def _two_steps(name: str, on: Any, done: list[str], *emits: Any) -> Operation[Message]:
    operation: Operation[Message] = Operation(name, on)

    @operation.step
    async def one(scope: Scope, message: Message) -> None:
        done.append(f"{name}: one")
        for each in emits:
            await scope.emit(each, {})

    @operation.step
    async def two(scope: Scope, message: Message) -> None:
        done.append(f"{name}: two")

    return operation


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_no_step_begins_that_was_being_committed(source: StoreSource, turns: int) -> None:
    """The cancellation meets the commits after which the next steps of children would begin."""
    done = list[str]()
    leaf, other = topic("leaf"), topic("other")
    operations = [
        _two_steps("root", ROOT, done, CHILD, other),
        _two_steps("child", CHILD, done, leaf),
        _two_steps("other", other, done),
        _two_steps("leaf", leaf, done),
    ]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {})
        for _ in range(turns):
            await asyncio.sleep(0)
        if await root.cancel():
            begun = [*done]
            with pytest.raises(ScopeFailed, match="cancelled"):
                await root.finished()
            assert done == begun
        else:
            await root.finished()
        await agree(env, *operations)


class Held(StoreProxy):
    """A store that can keep answers back: the causes that it has read, and that a commit has landed. It gives the two
    letters of a cancellation together: that the run is to give up, and the question whether its engine knows."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.has_read, self.may_read = asyncio.Event(), asyncio.Event()
        self.may_land = asyncio.Event()
        self.may_land.set()
        self.reads = 0

    async def events_at(self, places: Sequence[tuple[str, int]]) -> list[MessageEventRow]:
        found = await self.inner.events_at(places)
        self.has_read.set()
        await self.may_read.wait()
        self.reads += 1
        return found

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        letters = await self.inner.mail(engine_id, limit)
        return [] if len(letters) == 1 and not self.may_land.is_set() else letters

    async def commit(self, batch: Batch) -> Committed:
        committed = await self.inner.commit(batch)
        await self.may_land.wait()
        return committed


async def test_no_answer_to_a_failure_begins_whose_causes_were_being_read(make_store: Callable[[], Store]) -> None:
    """Its engine has stored that the run is to give up, so the caller is answered, and does not know so yet."""
    leaf_topic, done = topic("leaf"), list[str]()
    root, child = Operation[Message]("root", ROOT), Operation[Message]("child", CHILD)
    leaf = Operation[Message]("leaf", leaf_topic)

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    @emits.on_child_failure
    async def answers(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
        done.append("answer")

    @emits.rollback
    async def undoes(scope: Scope, message: Message, cause: Failure) -> None:
        done.append("undo")

    @child.step
    async def hands_on(scope: Scope, message: Message) -> None:
        await scope.emit(leaf_topic, {})

    @leaf.step
    async def fails(scope: Scope, message: Message) -> None:
        raise ValueError("the leaf fails")

    held = Held(make_store())
    async with (
        Engine(held, workflows=[root], poll_s=0.05),
        Engine(make_store(), workflows=[child, leaf], poll_s=0.05) as other,
    ):
        emitted = await other.emit(ROOT, {})
        await held.has_read.wait()
        held.may_land.clear()
        assert await emitted.cancel()
        held.may_read.set()
        while held.reads < 2:  # The failure of the child, and that of the leaf.
            await asyncio.sleep(0.001)
        for _ in range(100):
            await asyncio.sleep(0)
        held.may_land.set()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await emitted.finished()
        assert done == ["undo"]
