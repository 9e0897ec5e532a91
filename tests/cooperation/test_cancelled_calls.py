"""Once a cancellation has been answered with True, no further step begins of what operations and functions have
started, wherever it runs; but for compensations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from perdure import Limits, Workflow, compensate, step, workflow
from perdure.api.fences import Fences
from perdure.client import Client
from perdure.cooperation import Failure, Operation, Scope, Strategy
from perdure.errors import ScopeFailed
from perdure.graph import Graph
from perdure.models.cooperation.failures import Failure as Reason
from perdure.ports import Store
from perdure.testing import Environment, YieldPoints
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cancelling import passing
from tests.cooperation.test_cooperation_engine import agree

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]
OPTIONS: dict[str, Any] = {"autojump_s": None, "poll_s": 1.0}  # An engine looks for mail once a second.


class Steps:
    """A function of three steps, each of which waits until it may end."""

    def __init__(self, name: str = "called", child: Workflow[Any, Any] | None = None) -> None:
        self.begun: list[int] = []
        self.waiting = asyncio.Event()
        self.gate = asyncio.Event()

        @step(name=f"{name}.step")
        async def one(number: int) -> None:
            self.begun.append(number)
            self.waiting.set()
            await self.gate.wait()

        @workflow(name=name)
        async def function() -> None:
            if child is not None:
                await child()
            for number in range(3):
                await one(number)

        self.step = one
        self.workflow = function


def starting(call: Callable[[], Any], name: str = "root", on: Any = ROOT, **options: Any) -> Operation[Message]:
    operation: Operation[Message] = Operation(name, on, **options)

    @operation.step
    async def starts(scope: Scope, message: Message) -> None:
        await scope.start(call())

    return operation


async def unanswered(env: Environment, points: YieldPoints, cancel: Coroutine[Any, Any, bool]) -> bool:
    """Cancel, while another engine reads its mail and decides nothing: there is no answer until it goes on."""
    with points.hold("batch.take") as held:
        cancelling = asyncio.create_task(cancel)
        await passing(env, held.reached())
        await passing(env, _turns())
        assert not cancelling.done()
    return bool(await passing(env, cancelling))


async def _turns() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


async def test_no_step_of_a_called_function_begins_on_another_engine(make_store: Callable[[], Store]) -> None:
    steps, points = Steps(), YieldPoints()
    root = starting(steps.workflow)
    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([steps.workflow], make_store, clock=env.clock, probe=points, **OPTIONS) as other,
    ):
        emitted = await env.engine.emit(ROOT, {})
        await passing(other, steps.waiting.wait())
        assert await unanswered(env, points, emitted.cancel("no longer wanted"))
        (run,) = (await env.engine.runs.list(workflow="called")).runs
        assert run.status == "cancelled"
        steps.gate.set()
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await passing(env, emitted.finished())
        assert steps.begun == [0]
        await agree(env, root)


async def test_no_step_begins_though_the_run_above_was_released_with_mail_unread(
    make_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the top run gets the cancellation as mail, and ends gracefully before it has read it."""
    root: Operation[Message] = Operation("root", ROOT)
    child: Operation[Message] = Operation("child", CHILD)
    begun: list[int] = []
    waiting, gate = asyncio.Event(), asyncio.Event()

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    @child.step
    async def first(scope: Scope, message: Message) -> None:
        begun.append(1)
        waiting.set()
        await gate.wait()

    @child.step
    async def second(scope: Scope, message: Message) -> None:
        begun.append(2)

    async with (
        Environment([child], make_store, autojump_s=None) as env,  # Neither of them looks for mail by itself.
        Environment([root], make_store, clock=env.clock, autojump_s=None) as deaf,
    ):
        emitted = await deaf.engine.emit(ROOT, {})
        await deaf.settle()
        await env.engine.recover()
        await waiting.wait()
        levels = Fences._levels

        async def released(self: Fences, ids: Sequence[str]) -> Any:
            await deaf.engine.shutdown(grace=0)
            return await levels(self, ids)

        monkeypatch.setattr(Fences, "_levels", released)
        assert await env.engine.handle(emitted.id).cancel("no longer wanted")
        gate.set()
        await env.settle()
        assert begun == [1]


async def test_no_step_begins_two_engines_below_the_one_that_is_asked(make_store: Callable[[], Store]) -> None:
    """The operation, the function that it calls, and that one's child have an engine each, and a client cancels."""
    steps = Steps()
    middle = Steps("middle", steps.workflow)
    root = starting(middle.workflow)
    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([middle.workflow], make_store, clock=env.clock, **OPTIONS),
        Environment([steps.workflow], make_store, clock=env.clock, **OPTIONS),
        Client(make_store(), clock=env.clock, poll_s=1.0) as client,
    ):
        emitted = await client.emit(ROOT, {})
        await passing(env, steps.waiting.wait())
        assert await passing(env, client.handle(emitted.id).cancel())
        runs = (await client.runs.list()).runs
        assert {run.status for run in runs if run.workflow != "root"} == {"cancelled"}
        steps.gate.set()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await passing(env, emitted.finished())
        assert (steps.begun, middle.begun) == ([0], [])


async def test_no_step_of_a_child_of_a_function_begins_on_another_engine(make_store: Callable[[], Store]) -> None:
    """Also of a child of the engine that is asked whose parent is elsewhere."""
    steps = Steps()
    middle = Steps("middle", steps.workflow)
    top, later, points = Steps("top", middle.workflow), Steps("later"), YieldPoints()
    later.gate.set()
    async with (
        Environment([steps.workflow, top.workflow, later.workflow], make_store, **OPTIONS) as env,
        Environment([middle.workflow], make_store, clock=env.clock, probe=points, **OPTIONS),
    ):
        run = await env.engine.start(top.workflow())
        await passing(env, steps.waiting.wait())
        assert await unanswered(env, points, env.engine.handle(run.id).cancel())
        assert {one.status for one in (await env.engine.runs.list()).runs} == {"cancelled"}
        steps.gate.set()
        await passing(env, env.engine.run(later.workflow()))  # What was to be committed is committed by then.
        assert (steps.begun, middle.begun, top.begun) == ([0], [], [])


async def test_no_node_of_a_called_graph_begins_nor_of_its_child(make_store: Callable[[], Store]) -> None:
    steps = Steps()
    graph = Graph("graph")
    first = graph.node("first", steps.workflow)
    graph.edge(first, graph.node("second", steps.step, input={"number": "7"}))
    root = starting(graph)
    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([graph], make_store, clock=env.clock, **OPTIONS),
        Environment([steps.workflow], make_store, clock=env.clock, **OPTIONS),
    ):
        emitted = await env.engine.emit(ROOT, {})
        await passing(env, steps.waiting.wait())
        assert await passing(env, emitted.cancel())
        steps.gate.set()
        with pytest.raises(ScopeFailed, match="cancelled"):
            await passing(env, emitted.finished())
        assert steps.begun == [0]


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_no_call_begins_that_was_being_committed(source: StoreSource, turns: int) -> None:
    """The cancellation meets the commits with which functions begin and go on."""
    begun = list[int]()

    @step
    async def one(number: int) -> None:
        begun.append(number)

    @workflow(name="called")
    async def called() -> None:
        for number in range(5):
            await one(number)

    root = starting(called)
    async with Environment([root, called], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        for _ in range(turns):
            await asyncio.sleep(0)
        if await emitted.cancel():
            before = [*begun]
            with pytest.raises(ScopeFailed, match="cancelled"):
                await emitted.finished()
            assert begun == before
        else:
            await emitted.finished()
        await agree(env, root)


async def test_a_call_that_lands_with_the_cancellation_never_begins(source: StoreSource) -> None:
    """Both are in one batch, the cancellation first: the step had ended before its run knew of it."""
    begun, gate, at_work, points = list[int](), asyncio.Event(), asyncio.Event(), YieldPoints()

    @step
    async def one() -> None:
        begun.append(1)

    @workflow(name="called")
    async def called() -> None:
        await one()

    root: Operation[Message] = Operation("root", ROOT)

    @root.step
    async def starts(scope: Scope, message: Message) -> None:
        at_work.set()
        await gate.wait()
        await scope.start(called())

    async with Environment([root, called], source, probe=points) as env:
        emitted = await env.engine.emit(ROOT, {})
        await at_work.wait()
        while not env.engine.session.coordinator.idle:  # Else the next batch is another one than the cancellation's.
            await asyncio.sleep(0)
        with points.hold("batch.take") as held:
            cancelling = asyncio.create_task(emitted.cancel())
            await held.reached()
            gate.set()
            while env.engine.runtime.steps_running:
                await asyncio.sleep(0)
        assert await cancelling
        with pytest.raises(ScopeFailed, match="cancelled"):
            await emitted.finished()
        assert begun == []
        await agree(env, root)


async def test_what_a_rollback_has_called_goes_on(make_store: Callable[[], Store]) -> None:
    """It is no forward step: the hierarchy is cancelled while it rolls back, and while its call runs elsewhere."""
    steps = Steps()
    root: Operation[Message] = Operation("root", ROOT)

    @root.step
    async def works(scope: Scope, message: Message) -> None:
        pass

    @works.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        await scope.start(steps.workflow())

    @root.step
    async def fails(scope: Scope, message: Message) -> None:
        raise ValueError("no money")

    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([steps.workflow], make_store, clock=env.clock, **OPTIONS),
    ):
        emitted = await env.engine.emit(ROOT, {})
        await passing(env, steps.waiting.wait())
        assert await passing(env, emitted.cancel())
        steps.gate.set()
        with pytest.raises(ScopeFailed, match="no money"):
            await passing(env, emitted.finished())
        assert steps.begun == [0, 1, 2]
        await agree(env, root)


async def test_compensations_of_a_called_function_go_on(make_store: Callable[[], Store]) -> None:
    undone, at_work, gate = list[str](), asyncio.Event(), asyncio.Event()

    @step
    async def note(what: str) -> None:
        if what == "work":
            at_work.set()
            await gate.wait()
        undone.append(what)

    @workflow(name="called")
    async def called() -> None:
        await compensate(note("undo 1"))
        await compensate(note("undo 2"))
        await note("work")

    root = starting(called)
    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([called], make_store, clock=env.clock, **OPTIONS),
    ):
        emitted = await env.engine.emit(ROOT, {})
        await passing(env, at_work.wait())
        assert await passing(env, emitted.cancel())
        with pytest.raises(ScopeFailed, match="cancelled"):
            await passing(env, emitted.finished())
        assert undone == ["undo 2", "undo 1"]
        await agree(env, root)


class Stubborn(Strategy):
    """Cannot be cancelled."""

    def heeds(self, reasons: Sequence[Reason]) -> Sequence[Reason]:
        return ()


async def test_what_a_run_calls_that_heeds_no_cancellation_goes_on(make_store: Callable[[], Store]) -> None:
    steps = Steps()
    root = starting(steps.workflow, strategy=Stubborn())
    async with (
        Environment([root], make_store, **OPTIONS) as env,
        Environment([steps.workflow], make_store, clock=env.clock, **OPTIONS) as other,
    ):
        emitted = await env.engine.emit(ROOT, {})
        await passing(other, steps.waiting.wait())
        await passing(env, emitted.cancel())
        steps.gate.set()
        await passing(env, emitted.finished())
        assert steps.begun == [0, 1, 2]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_step_that_waits_for_its_turn_does_not_begin_while_its_end_is_committed(
    source: StoreSource, in_thread: bool
) -> None:
    """Whoever reads the store may know of the end before the run's engine does."""
    begun, points = list[str](), YieldPoints()
    at_work, gate, done = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @step
    def blocks() -> None:
        loop.call_soon_threadsafe(at_work.set)
        gate.wait()
        loop.call_soon_threadsafe(done.set)

    @step(name="works")
    def in_a_thread() -> None:
        begun.append("works")

    @step(name="works")
    async def on_the_loop() -> None:
        begun.append("works")

    @workflow
    async def blocking() -> None:
        await blocks()

    @workflow
    async def working() -> None:
        await (in_a_thread() if in_thread else on_the_loop())

    limits: dict[str, Any] = {"limits": Limits(threads_max=1)} if in_thread else {"limits": Limits(steps_max=1)}
    async with Environment([blocking, working], source, probe=points, **limits) as env:
        first = await env.engine.start(blocking())
        await at_work.wait()
        second = await env.engine.start(working())
        await second.status()
        for _ in range(10):
            await asyncio.sleep(0)
        with points.hold("cancel.committed") as held:
            cancelling = asyncio.create_task(env.engine.handle(second.id).cancel())
            await held.reached()
            gate.set()
            await done.wait()
            for _ in range(200):
                await asyncio.sleep(0)
            assert begun == []
        assert await cancelling
        await first.result()
        assert begun == []


async def test_no_step_of_many_children_begins_after_the_answer(source: StoreSource) -> None:
    """They are stopped in parts, and there is room for one step at a time."""
    children = 600
    begun, at_work, gate = list[int](), asyncio.Event(), asyncio.Event()

    @step
    async def one(number: int) -> None:
        begun.append(number)
        at_work.set()
        await gate.wait()

    @workflow(name="child")
    async def child(number: int) -> None:
        await one(number)

    @workflow(name="parent")
    async def parent() -> None:
        await asyncio.gather(*[child(number) for number in range(children)])

    async with Environment([parent, child], source, limits=Limits(steps_max=1)) as env:
        run = await env.engine.start(parent())
        await at_work.wait()
        cancelling = asyncio.create_task(env.engine.handle(run.id).cancel())
        while not cancelling.done():
            await asyncio.sleep(0)
        assert await cancelling
        gate.set()
        await env.settle()
        assert begun == [0]
