"""Closing a run's loop: `finally` runs, nothing is asked for, nothing is left behind, nothing is printed."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure.errors import ForbiddenInWorkflow, InvariantViolated
from perdure.models.functions.loop import Livelock, WorkflowLoop, running_loop
from tests.functions.loop_driver import START, Driver, durable_sleep, step


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Warnings are errors; those of finalizers only show when the garbage is collected within the test."""
    yield
    gc.collect()


def test_finally_blocks_run_in_the_order_of_creation() -> None:
    order = []

    async def task(name: str) -> None:
        try:
            await step(name)
        finally:
            order.append(name)

    async def program() -> None:
        tasks = [asyncio.create_task(task(name)) for name in "abc"]
        try:
            await asyncio.wait(tasks)
        finally:
            order.append("main")

    run = Driver(program)
    run.loop.close()
    assert order == ["main", "a", "b", "c"]
    assert run.loop.closed
    run.loop.close()
    assert order == ["main", "a", "b", "c"]


def test_every_request_in_the_clean_up_raises() -> None:
    errors = []

    async def attempt(what: Any) -> None:
        try:
            await what
        except ForbiddenInWorkflow as error:
            errors.append(str(error))

    async def program() -> None:
        try:
            await step("a")
        finally:
            await attempt(step("b"))
            await attempt(durable_sleep(1))
            await attempt(asyncio.sleep(1))
            try:
                asyncio.create_task(step("c"))  # noqa: RUF006
            except ForbiddenInWorkflow as error:
                errors.append(str(error))

    run = Driver(program)
    run.loop.close()
    assert len(errors) == 4
    assert {error.split(":")[0] for error in errors} == {"the run is being closed"}
    assert len(run.loop.outstanding_steps) == 0


def test_asyncio_clean_up_that_waits_for_nothing_outside_works() -> None:
    log = []

    async def child(lock: asyncio.Lock) -> None:
        async with lock:
            try:
                await step("a")
            finally:
                await asyncio.sleep(0)
                log.append("child")

    async def program() -> None:
        lock = asyncio.Lock()
        async with asyncio.TaskGroup() as group, asyncio.timeout(5):
            group.create_task(child(lock))
            group.create_task(child(lock))
            await step("b")

    run = Driver(program)
    run.loop.close()
    assert log == ["child"]


def test_errors_in_the_clean_up_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async def child() -> None:
        try:
            await step("b")
        finally:
            raise KeyError("child")

    async def program() -> None:
        asyncio.create_task(child())  # noqa: RUF006
        try:
            await step("a")
        finally:
            raise ValueError("main")

    with caplog.at_level(logging.DEBUG, "perdure"):
        run = Driver(program)
        run.loop.close()
        gc.collect()
    assert {record.levelname for record in caplog.records} == {"DEBUG"}
    assert "ValueError: main" in caplog.text
    assert "KeyError: 'child'" in caplog.text


def test_a_task_that_was_never_started_is_closed_without_a_warning() -> None:
    async def program() -> str:
        asyncio.create_task(step("a"))  # noqa: RUF006
        return "done"

    run = Driver(program)
    assert run.result == "done"
    run.loop.close()


def test_a_loop_that_never_began_can_be_closed() -> None:
    loop = WorkflowLoop(run_id="run-1")
    loop.close()
    assert loop.is_closed()
    with pytest.raises(InvariantViolated):
        loop.begin(lambda: step("a"), START)


def test_a_loop_can_be_closed_after_a_livelock_or_an_exit() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def leave() -> None:
        asyncio.create_task(step("a"))  # noqa: RUF006
        raise SystemExit

    loop = WorkflowLoop(run_id="run-1", callbacks_max=50)
    with pytest.raises(Livelock):
        loop.begin(spin, START)
    loop.close()
    Driver(leave).loop.close()


def test_a_task_that_waits_in_its_clean_up_is_cancelled_again() -> None:
    log = []

    async def program() -> None:
        for attempt in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                log.append(attempt)
        await asyncio.Event().wait()

    Driver(program).loop.close()
    assert log == [0, 1, 2]


def test_code_that_swallows_every_cancellation_is_closed() -> None:
    log = []

    async def program() -> None:
        try:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    log.append("swallowed")
        finally:
            log.append("closed")

    Driver(program).loop.close()
    assert log[-1] == "closed"
    assert 1 < len(log) < 20


@pytest.mark.parametrize("what", ["step", "sleep", "turn", "timer"])
def test_code_that_swallows_everything_and_goes_on_is_set_aside(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def wait() -> None:
        match what:
            case "step":
                await step("a")
            case "sleep":
                await asyncio.sleep(5)
            case "timer":
                await durable_sleep(5)
            case _:
                await asyncio.sleep(0)

    is_over = False  # Without it, the interpreter's own attempt to close it at its exit would never end.

    async def program() -> None:
        await step("first")
        while not is_over:
            try:
                await wait()
            except BaseException:  # noqa: BLE001
                pass

    async def spin_later() -> None:
        await program()

    run = Driver(spin_later)
    if what == "turn":
        with pytest.raises(Livelock):
            run.complete("first")
    else:
        run.complete("first")
    run.loop.close()
    is_over = True
    assert "re-raise CancelledError" in caplog.text


def test_code_that_was_set_aside_does_not_keep_the_process_from_ending() -> None:
    """Python ends what is suspended when the process exits, too: without a loop, this one would never stop trying."""
    program = """
import asyncio, gc
from tests.functions.loop_driver import Driver, step
async def program():
    while True:
        try:
            await step("a")
            await asyncio.sleep(1)
        except BaseException:
            pass
for _ in range(3):
    run = Driver(program)
    run.loop.close()
    del run
    gc.collect()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, stderr=subprocess.PIPE)


def test_suspended_generators_are_closed_in_the_order_they_were_started() -> None:
    log = []
    kept: list[Any] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            log.append(name)
            try:
                await step("never")
            except ForbiddenInWorkflow:
                log.append("refused")

    async def program() -> None:
        for name in "ab":
            generator = numbers(name)
            kept.append(generator)
            await anext(generator)
        await step("a")

    run = Driver(program)
    run.loop.close()
    assert log == ["a", "refused", "b", "refused"]


def test_a_generator_that_refuses_to_end_is_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    is_over = False  # As above.

    async def stubborn() -> AsyncIterator[int]:
        while not is_over:
            try:
                yield 1
            except BaseException:  # noqa: BLE001
                while not is_over:
                    try:
                        await asyncio.Event().wait()
                    except BaseException:  # noqa: BLE001
                        pass

    async def program() -> None:
        generator = stubborn()
        await anext(generator)
        await step("a")

    run = Driver(program)
    run.loop.close()
    is_over = True
    assert "re-raise CancelledError" in caplog.text


def test_nothing_is_scheduled_on_the_process_loop() -> None:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async def program() -> None:
        async for _ in numbers():
            await step("a")

    async def main() -> None:
        process: Any = asyncio.get_running_loop()
        run = Driver(program)
        run.loop.close()
        del run
        gc.collect()
        assert not process._ready
        assert not process._scheduled
        assert not process._asyncgens
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_closing_inside_an_activation_is_a_bug() -> None:
    async def program() -> None:
        asyncio.get_running_loop().close()

    with Driver(program) as run:
        assert isinstance(run.error, InvariantViolated)


def test_a_closed_loop_and_all_that_it_held_go_without_the_garbage_collector() -> None:
    class Witness: ...

    witnesses: list[weakref.ref[Witness]] = []

    async def task() -> None:
        witness = Witness()
        witnesses.append(weakref.ref(witness))
        await step("a")

    async def program() -> None:
        other = asyncio.create_task(task())
        await task()
        await other

    gc.collect()
    gc.disable()
    try:
        run = Driver(program)
        assert all(witness() is not None for witness in witnesses)
        run.loop.close()
        assert [witness() for witness in witnesses] == [None, None]
    finally:
        gc.enable()
    assert running_loop() is None
