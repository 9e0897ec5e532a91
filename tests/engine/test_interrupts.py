"""KeyboardInterrupt and SystemExit: raised by code in a run they are its failure; raised by Ctrl-C they stop the
process, and the run goes on in the next one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from perdure import Engine, compensate, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import ForbiddenInWorkflow, RunFailed, ScopeFailed, StepFailed
from perdure.graph import Graph
from perdure.models.common.interrupts import is_by_signal
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

EXITS = [KeyboardInterrupt(), SystemExit(3)]


@step
async def exit_async(kind: str) -> None:
    raise KeyboardInterrupt if kind == "interrupt" else SystemExit(3)


@step
def exit_in_thread(kind: str) -> None:
    raise KeyboardInterrupt if kind == "interrupt" else SystemExit(3)


@step
async def exit_later(kind: str) -> None:
    await asyncio.sleep(0)
    raise KeyboardInterrupt if kind == "interrupt" else SystemExit(3)


@step
async def note(text: str) -> str:
    return text


STEPS = {"async": exit_async, "in a thread": exit_in_thread, "after waiting": exit_later}


@workflow
async def in_a_step(how: str, kind: str) -> str:
    try:
        await STEPS[how](kind)
    except StepFailed as error:
        return str(error)
    return "nothing"


@workflow
async def in_the_code(kind: str) -> None:
    await note("before")
    raise KeyboardInterrupt if kind == "interrupt" else SystemExit(3)


@workflow(compensation="continue")
async def in_a_compensation(kind: str) -> None:
    await compensate(note("first"))
    await compensate(exit_async(kind))
    raise ValueError("undo all")


@pytest.mark.parametrize("kind", ["interrupt", "exit"])
@pytest.mark.parametrize("how", STEPS)
async def test_a_step_that_raises_an_exit_has_failed(source: StoreSource, how: str, kind: str) -> None:
    async with Environment([in_a_step], source) as env:
        said = await env.engine.run(in_a_step(how, kind), id="r-1")
        assert "raised KeyboardInterrupt()" in said if kind == "interrupt" else "raised SystemExit(3)" in said
        assert "cannot end the process" in said
        (entry,) = (await env.engine.handle("r-1").history()).journal
        assert entry.attempts == 1  # No second attempt can cure it.
        await env.restart()
        assert await env.engine.handle("r-1").result() == said
        await env.check()


@pytest.mark.parametrize("kind", ["interrupt", "exit"])
async def test_workflow_code_that_raises_an_exit_has_failed(source: StoreSource, kind: str) -> None:
    async with Environment([in_the_code], source) as env:
        with pytest.raises(RunFailed, match="workflow 'in_the_code' raised") as failed:
            await env.engine.run(in_the_code(kind), id="r-1")
        assert isinstance(failed.value.__cause__, ForbiddenInWorkflow)
        await env.restart()
        with pytest.raises(RunFailed, match="workflow 'in_the_code' raised"):
            await env.engine.handle("r-1").result()


@pytest.mark.parametrize("kind", ["interrupt", "exit"])
async def test_a_compensation_that_raises_an_exit_has_failed(source: StoreSource, kind: str) -> None:
    async with Environment([in_a_compensation], source) as env:
        run = await env.engine.start(in_a_compensation(kind), id="r-1")
        with pytest.raises(RunFailed, match="exit_async"):
            await run.result()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert view.status == "rollback_failed"
        names = [
            (entry.name, entry.failure is None) for entry in (await env.engine.handle("r-1").history()).journal[-2:]
        ]
        assert names == [("exit_async", False), ("note", True)]  # The others are done all the same.


@pytest.mark.parametrize("kind", ["interrupt", "exit"])
async def test_a_node_of_a_graph_that_raises_an_exit_has_failed(source: StoreSource, kind: str) -> None:
    graph = Graph("exits")
    graph.node("leave", exit_async, input={"kind": f"'{kind}'"})
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r-1")
        with pytest.raises(RunFailed, match="cannot end the process"):
            await run.result()


async def in_an_operation(source: StoreSource, leave: Callable[..., Any]) -> None:
    topic = Topic("orders", str)
    place = Operation("place", topic)
    undone: list[str] = []

    @place.step
    async def prepare(scope: Scope, order: str) -> None: ...

    @prepare.rollback
    async def put_back(scope: Scope, order: str, cause: Any) -> None:
        undone.append(cause.message)

    place.step(leave)
    async with Environment([place], source) as env:
        root = await env.engine.emit(topic, "o-1")
        with pytest.raises(ScopeFailed):
            await root.finished()
        assert len(undone) == 1
        assert "cannot end the process" in undone[0]


@pytest.mark.parametrize("error", EXITS, ids=["interrupt", "exit"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "in a thread"])
async def test_an_operation_rolls_back_after_a_step_that_raises_an_exit(
    source: StoreSource, error: BaseException, is_async: bool
) -> None:
    async def leave(scope: Scope, order: str) -> None:
        raise error

    def leave_in_thread(scope: Scope, order: str) -> None:
        raise error

    await in_an_operation(source, leave if is_async else leave_in_thread)


# Ctrl-C.


@pytest.fixture
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Another test may have left its own.
    yield
    signal.signal(signal.SIGINT, before)


def by_default() -> None:
    """Ctrl-C with the handler that Python has by default."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def twice() -> None:
    """Ctrl-C with asyncio's handler: the first one asks the program to end, the second one insists."""
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def by_own_handler() -> None:
    """Ctrl-C with a handler of the program's."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    signal.raise_signal(signal.SIGINT)


PRESSES = [by_default, by_own_handler]
Lives = list[str]


@pytest.mark.parametrize("press", [*PRESSES, twice])
@pytest.mark.usefixtures("restored")
def test_an_interrupt_from_outside_is_told_from_one_that_code_raises(press: Callable[[], None]) -> None:
    found: list[bool] = []

    def raise_it() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        for interrupt in (raise_it, press):
            try:
                interrupt()
            except KeyboardInterrupt as error:
                found.append(is_by_signal(error))

    with suppress(KeyboardInterrupt):
        asyncio.run(main())
    assert found == [False, True]
    assert not is_by_signal(KeyboardInterrupt())
    assert not is_by_signal(SystemExit())


def live_twice(definition: Any, start: Callable[[Engine], Awaitable[Any]]) -> Any:
    """The first life is interrupted; what the second one comes to."""
    database = MemoryDatabase()

    async def first_life() -> None:
        async with Engine(MemoryStore(database), workflows=[definition]) as engine:
            await start(engine)
            await asyncio.Event().wait()

    async def second_life() -> Any:
        async with Engine(MemoryStore(database), workflows=[definition]) as engine:
            (run,) = (await engine.runs.list()).runs
            return await engine.handle(run.id).result()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(first_life())
    return asyncio.run(second_life())


@pytest.mark.parametrize("press", PRESSES)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.usefixtures("restored")
def test_a_process_that_is_interrupted_in_a_step_leaves_a_run_that_goes_on(
    press: Callable[[], None], waits: bool
) -> None:
    lives: Lives = []

    @step
    async def interrupted() -> str:
        lives.append("one")
        if waits:
            await asyncio.sleep(0)
        if len(lives) == 1:
            press()
        return "went on"

    @workflow
    async def flow() -> str:
        return await interrupted()

    assert live_twice(flow, lambda engine: engine.start(flow())) == "went on"
    assert lives == ["one", "one"]


@pytest.mark.parametrize("press", PRESSES)
@pytest.mark.usefixtures("restored")
def test_a_process_that_is_interrupted_in_workflow_code_leaves_a_run_that_goes_on(press: Callable[[], None]) -> None:
    lives: Lives = []

    @workflow
    async def flow() -> str:
        lives.append("one")
        if len(lives) == 1:
            press()
        return "went on"

    assert live_twice(flow, lambda engine: engine.start(flow())) == "went on"
    assert lives == ["one", "one"]


@pytest.mark.parametrize("press", PRESSES)
@pytest.mark.usefixtures("restored")
def test_a_process_that_is_interrupted_in_an_operation_leaves_a_run_that_goes_on(press: Callable[[], None]) -> None:
    lives: Lives = []
    topic = Topic("orders", str)
    place = Operation("place", topic)

    @place.step
    async def interrupted(scope: Scope, order: str) -> None:
        lives.append(order)
        if len(lives) == 1:
            press()

    live_twice(place, lambda engine: engine.emit(topic, "o-1"))
    assert lives == ["o-1", "o-1"]


@pytest.mark.parametrize("error", EXITS, ids=["interrupt", "exit"])
def test_a_step_whose_own_task_ends_the_process_at_every_start_is_held(error: BaseException) -> None:
    """asyncio lets such an exception of any task leave the loop, and the process with it."""
    database = MemoryDatabase()
    lives: Lives = []

    @step
    async def leave() -> None:
        lives.append("one")

        async def elsewhere() -> None:
            raise error

        await asyncio.create_task(elsewhere())

    @workflow
    async def flow() -> None:
        await leave()

    async def life() -> None:
        async with Engine(MemoryStore(database), workflows=[flow]) as engine:
            await engine.start(flow(), id="r-1")
            while (view := await engine.runs.get("r-1")) is None or view.hold is None:
                await asyncio.sleep(0.01)
            assert view.hold.kind == "poison"

    for _ in range(6):
        with pytest.raises(type(error)):
            asyncio.run(life())
    asyncio.run(life())
    assert len(lives) == 6
