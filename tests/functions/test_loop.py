"""The loop of one run: what an activation asks for, where, and how it ends."""

from __future__ import annotations

import asyncio
import math
import sys
from typing import Any

import pytest

from perdure.errors import InvariantViolated
from perdure.models.functions.loop import Commands, Livelock, WorkflowLoop, running_loop
from tests.functions.loop_driver import SECOND, START, Driver, Step, durable_sleep, step


def positions(commands: Commands) -> list[str]:
    return [request.position for request in commands.steps]


def test_steps_are_asked_for_one_after_the_other() -> None:
    async def program() -> str:
        return f"{await Step('a')} {await Step('b')}"

    with Driver(program) as run:
        assert [(s.position, s.name, s.emitted_at) for s in run.last.steps] == [("1", "a", START)]
        assert run.loop.pending("1") == ("step", "a")
        run.complete("a", "x")
        assert positions(run.last) == ["2"]
        assert run.loop.pending("1") is None
        assert run.last.steps[0].emitted_at == START + SECOND
        run.complete("b", "y")
        assert run.result == "x y"


def test_the_call_is_handed_through_untouched() -> None:
    call = Step("a")

    async def program() -> None:
        await call

    with Driver(program) as run:
        assert run.last.steps[0].call is call


def test_an_activation_that_asks_for_nothing_is_empty_and_falsy_throughout() -> None:
    async def program() -> None:
        await asyncio.gather(Step("a"), Step("b"))

    with Driver(program) as run:
        commands = run.complete("a")
        assert not commands.steps
        assert not commands.steps_cancelled
        assert not commands.timers
        assert not commands.timers_dropped
        assert commands.end is None


def test_tasks_take_a_number_of_their_creator_and_have_a_branch_of_their_own() -> None:
    async def inner(name: str) -> None:
        await step(f"{name}-1")
        await asyncio.create_task(step(f"{name}-2"))

    async def program() -> None:
        await step("before")
        await asyncio.gather(inner("a"), inner("b"))
        await step("after")

    with Driver(program) as run:
        run.complete("before")
        assert run.waiting == {"2.1": "a-1", "3.1": "b-1"}
        run.complete("b-1")
        assert run.waiting == {"2.1": "a-1", "3.2.1": "b-2"}
        run.complete("a-1")
        run.complete("a-2")
        run.complete("b-2")
        assert run.waiting == {"4": "after"}


def test_steps_timers_and_tasks_share_the_counter_of_a_branch() -> None:
    async def program() -> None:
        async with asyncio.timeout(10):
            await step("a")
            await asyncio.create_task(step("b"))
            await durable_sleep(1)

    with Driver(program) as run:
        assert [t.position for t in run.last.timers] == ["1"]
        assert positions(run.last) == ["2"]
        run.complete("a")
        assert positions(run.last) == ["3.1"]
        run.complete("b")
        assert [(t.position, t.name) for t in run.last.timers] == [("4", "sleep")]


def test_plain_callbacks_have_a_branch_of_their_own() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def callback() -> None:
            loop.create_task(step("from-callback")).add_done_callback(lambda _: done.set())
            loop.call_later(5, done.set)

        loop.call_soon(callback)
        await done.wait()
        await step("a")

    with Driver(program) as run:
        assert run.waiting == {"c.1.1": "from-callback"}
        assert [t.position for t in run.last.timers] == ["c.2"]
        run.complete("from-callback")
        assert run.waiting == {"1": "a"}


def test_a_callback_that_is_cancelled_in_time_is_not_called() -> None:
    called: list[str] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        first, second = (loop.call_soon(called.append, name) for name in ("first", "second"))
        first.cancel()
        await asyncio.sleep(0)
        assert (first.cancelled(), second.cancelled()) == (True, False)
        assert "cancelled" in repr(first)

    with Driver(program):
        assert called == ["second"]


def test_an_activation_says_whether_it_asks_for_steps_alone() -> None:
    async def program() -> None:
        await Step("a")
        withdrawn = asyncio.ensure_future(step("withdrawn"))
        await asyncio.sleep(0)
        withdrawn.cancel()
        await Step("b")
        await asyncio.gather(Step("c"), asyncio.sleep(1))

    with Driver(program) as run:
        assert run.last.only_steps
        run.complete("a")
        assert not run.last.only_steps
        assert run.waiting == {"3": "b"}
        run.complete("b")
        assert not run.last.only_steps
        assert (len(run.last.steps), len(run.last.timers)) == (1, 1)
        run.complete("c")
        assert run.last.only_steps


def test_what_is_ready_when_the_main_task_ends_is_left_for_the_closing() -> None:
    order: list[str] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None
        main.add_done_callback(lambda _: order.append("after the end"))
        loop.call_soon(order.append, "before")
        await asyncio.sleep(0)

    with Driver(program) as run:
        assert run.last.end is not None
        assert order == ["before"]


def test_task_names_are_given_or_positions() -> None:
    names = []

    async def program() -> None:
        main = asyncio.current_task()
        assert main is not None
        names.append(main.get_name())
        tasks = asyncio.create_task(step("a")), asyncio.create_task(step("b"), name="bee")
        names.extend(task.get_name() for task in tasks)

    with Driver(program):
        assert names == ["main", "1", "bee"]


def test_a_failed_step_raises_where_it_was_awaited() -> None:
    async def program() -> str:
        try:
            await step("a")
        except KeyError as error:
            return repr(error)
        return "no error"

    with Driver(program) as run:
        run.complete("a", error=KeyError("gone"))
        assert run.result == "KeyError('gone')"


def test_a_step_that_raised_stop_iteration_gives_a_runtime_error() -> None:
    async def program() -> None:
        await step("a")

    with Driver(program) as run:
        run.complete("a", error=StopIteration(3))
        assert isinstance(run.error, RuntimeError)
        assert isinstance(run.error.__cause__, StopIteration)


def test_completions_for_what_is_not_outstanding_are_lookup_errors() -> None:
    async def program() -> None:
        await step("a")

    with Driver(program) as run:
        with pytest.raises(LookupError):
            run.loop.complete_step("2", START)
        with pytest.raises(LookupError):
            run.loop.fire_timer("1", START)
        assert run.loop.pending("2") is None
        run.complete("a")


def test_outstanding_requests_can_be_counted_and_listed_in_order() -> None:
    async def program() -> None:
        await asyncio.gather(step("a"), step("b"), durable_sleep(1), step("c"))

    with Driver(program) as run:
        run.complete("b")
        steps, timers = run.loop.outstanding_steps, run.loop.outstanding_timers
        assert (len(steps), [one.name for one in steps]) == (2, ["a", "c"])
        assert (len(timers), [one.name for one in timers]) == (1, ["sleep"])
        assert "1.1" in steps
        assert "2.1" not in steps


# Withdrawing


def test_a_step_of_an_earlier_activation_that_is_cancelled_is_reported() -> None:
    async def program() -> None:
        task = asyncio.create_task(step("slow"))
        await step("quick")
        task.cancel()
        await step("next")

    with Driver(program) as run:
        run.complete("quick")
        assert run.last.steps_cancelled == ["1.1"]
        assert positions(run.last) == ["3"]
        assert run.loop.pending("1.1") is None


def test_a_step_cancelled_in_its_own_activation_never_shows() -> None:
    async def program() -> None:
        task = asyncio.create_task(step("never"))
        await asyncio.sleep(0)
        task.cancel()
        await step("a")

    with Driver(program) as run:
        assert run.waiting == {"2": "a"}
        assert positions(run.last) == ["2"]
        assert not run.last.steps_cancelled


def test_a_failing_group_cancels_its_other_steps_in_order() -> None:
    async def program() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for name in "abcd":
                    group.create_task(step(name))
        except* KeyError:
            await step("after")

    with Driver(program) as run:
        run.complete("c", error=KeyError())
        assert run.last.steps_cancelled == ["1.1", "2.1", "4.1"]
        assert run.waiting == {"5": "after"}


# Timers and time


def test_a_timer_that_outlives_its_activation_is_asked_for_once() -> None:
    async def program() -> float:
        await asyncio.sleep(2.5)
        return asyncio.get_running_loop().time()

    with Driver(program) as run:
        (timer,) = run.last.timers
        assert (timer.position, timer.name, timer.due_at, timer.since) == ("1", "timer", START + 2_500_000, START)
        assert run.loop.pending("1") == ("timer", "timer")
        run.fire("1")
        assert run.result == (START + 2_500_000) / 1e6
        assert not run.last.timers_dropped


def test_a_timer_that_does_not_outlive_its_activation_is_not_written() -> None:
    async def program() -> None:
        async with asyncio.timeout(5):
            await asyncio.sleep(0)
        await step("a")

    with Driver(program) as run:
        assert not run.last.timers
        assert positions(run.last) == ["2"]


def test_a_timer_that_is_no_longer_needed_is_dropped() -> None:
    async def program() -> None:
        async with asyncio.timeout(5):
            await step("a")
        await step("b")

    with Driver(program) as run:
        assert [t.position for t in run.last.timers] == ["1"]
        run.complete("a")
        assert run.last.timers_dropped == ["1"]
        assert run.loop.pending("1") is None


def test_a_timer_of_perdure_gives_when_it_was_due_and_when_it_fired() -> None:
    async def program() -> Any:
        return await durable_sleep(3)

    with Driver(program) as run:
        assert run.last.timers[0].name == "sleep"
        run.last = run.loop.fire_timer("1", START + 9 * SECOND)
        assert run.result == (START + 3 * SECOND, START + 9 * SECOND)


def test_a_timer_of_perdure_that_is_cancelled_is_dropped() -> None:
    async def program() -> None:
        task = asyncio.create_task(durable_sleep(3))
        await step("a")
        task.cancel()
        await step("b")

    with Driver(program) as run:
        run.complete("a")
        assert run.last.timers_dropped == ["1.1"]


def test_time_stands_still_in_an_activation_and_is_that_of_the_completion() -> None:
    seen = []

    async def program() -> None:
        loop = running_loop()
        assert loop is not None
        for name in "ab":
            seen.append((loop.now(), loop.time()))
            await asyncio.sleep(0)
            seen.append((loop.now(), loop.time()))
            await step(name)

    with Driver(program) as run:
        run.complete("a", after=7)
        later = START + 7 * SECOND
        assert seen == [(START, START / 1e6)] * 2 + [(later, later / 1e6)] * 2


def test_what_is_due_already_runs_in_the_same_activation() -> None:
    async def program() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(0, order.append, "now")
        loop.call_at(loop.time() - 5, order.append, "past")
        loop.call_later(-math.inf, order.append, "long ago")
        loop.call_later(0, order.append, "cancelled").cancel()
        await asyncio.sleep(0)
        return order

    with Driver(program) as run:
        assert run.result == ["now", "past", "long ago"]


@pytest.mark.parametrize("micros", [1, 3, 333_333, 999_999, 1_000_001, 86_400_000_001])
def test_microseconds_survive_the_float(micros: int) -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(micros / 1e6, lambda: None)
        loop.call_at((START + micros) / 1e6, lambda: None)
        await step("a")

    with Driver(program) as run:
        assert [timer.due_at for timer in run.last.timers] == [START + micros] * 2


def test_waiting_for_ever_asks_for_no_timer() -> None:
    async def program() -> None:
        await asyncio.gather(asyncio.sleep(math.inf), step("a"))

    with Driver(program) as run:
        assert not run.last.timers
        assert len(run.loop.outstanding_timers) == 0


def test_nan_is_not_a_time() -> None:
    async def program() -> None:
        asyncio.get_running_loop().call_later(math.nan, print)

    with Driver(program) as run:
        assert isinstance(run.error, ValueError)


# How it ends


def test_with_the_end_nothing_else_is_asked_for() -> None:
    async def program() -> str:
        asyncio.create_task(step("spawned"))  # noqa: RUF006
        await asyncio.sleep(0)
        return "done"

    with Driver(program) as run:
        assert run.result == "done"
        assert not run.last.steps
        with pytest.raises(InvariantViolated):
            run.complete("spawned")


def test_the_end_does_not_wait_for_a_task_that_spins() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def program() -> str:
        asyncio.create_task(spin())  # noqa: RUF006
        return "done"

    with Driver(program) as run:
        assert run.result == "done"


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError("self"), KeyboardInterrupt(), SystemExit(3)])
def test_whatever_workflow_code_raises_ends_the_run(error: BaseException) -> None:
    async def program() -> None:
        await step("a")
        raise error

    with Driver(program) as run:
        run.complete("a")
        assert type(run.error) is type(error)


def test_exiting_in_a_task_that_nobody_awaits_ends_the_run() -> None:
    async def leave() -> None:
        sys.exit(3)

    async def program() -> None:
        asyncio.create_task(leave())  # noqa: RUF006
        await step("a")

    with Driver(program) as run:
        assert isinstance(run.error, SystemExit)


def test_a_function_that_cannot_be_called_or_is_not_async_ends_the_run() -> None:
    async def program(argument: int) -> None: ...

    with Driver(program) as run:  # type: ignore[arg-type]
        assert isinstance(run.error, TypeError)
    with Driver(lambda: 5) as run:  # type: ignore[arg-type,return-value]
        assert "must be async" in str(run.error)


def test_a_workflow_may_cancel_itself() -> None:
    async def program() -> None:
        main = asyncio.current_task()
        assert main is not None
        main.cancel()
        await step("a")

    with Driver(program) as run:
        assert isinstance(run.error, asyncio.CancelledError)


def test_a_livelock_is_raised_with_its_stack() -> None:
    async def program() -> None:
        while True:
            await asyncio.sleep(0)

    loop = WorkflowLoop(run_id="run-1", callbacks_max=100)
    with pytest.raises(Livelock, match="100 callbacks") as caught:
        loop.begin(program, START)
    assert "await asyncio.sleep(0)" in caught.value.stack
    assert caught.value.run_id == "run-1"
    loop.close()


def test_as_many_callbacks_as_allowed_are_no_livelock() -> None:
    async def program() -> None:
        for _ in range(8):
            await asyncio.sleep(0)
        await step("a")

    with Driver(program, callbacks_max=10) as run:
        assert run.waiting == {"1": "a"}


def test_an_exception_in_a_callback_goes_to_the_handler_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def fail() -> None:
        raise ValueError("in callback")

    async def program() -> str:
        loop = asyncio.get_running_loop()
        loop.call_soon(fail)
        await asyncio.sleep(0)
        loop.set_exception_handler(lambda _, context: seen.append(str(context["exception"])))
        loop.call_soon(fail)
        await asyncio.sleep(0)
        return "unharmed"

    with Driver(program) as run:
        assert run.result == "unharmed"
    assert seen == ["in callback"]
    assert [record.name for record in caplog.records] == ["perdure"]


def test_the_stack_says_where_every_task_stands_and_for_what_it_waits() -> None:
    async def deep() -> None:
        await step("charge")

    async def program() -> None:
        task = asyncio.create_task(deep())
        await durable_sleep(5)
        await task

    with Driver(program) as run:
        stack = run.loop.stack()
    main, task = stack.split("\ntask 1")
    assert main.startswith("task main, waits for sleep at 2:")
    assert "await durable_sleep(5)" in main
    assert task.startswith(", waits for step charge at 1.1:")
    assert 'await step("charge")' in task
