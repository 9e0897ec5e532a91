"""Steps in worker processes: what crosses over, who dies with whom, and who goes when."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Limits, Retry, step, workflow
from perdure.errors import (
    InvalidDefinition,
    MaxRetriesExceeded,
    RunCancelled,
    RunFailed,
    StepFailed,
    StepProcessDied,
    StepTimedOut,
    UnstorableValue,
)
from perdure.kernel.batch import Batch, Committed
from perdure.models.functions import unwritten_items
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.functions import process_steps
from tests.functions.process_steps import Declined, Meetings, Order, call, call_all


def engine(**options: Any) -> Engine:
    return Engine("memory://", workflows=[call, call_all], **options)


async def failure_of(what: str) -> BaseException:
    async with engine(limits=Limits(processes_max=1)) as one:
        with pytest.raises(RunFailed) as caught:
            await one.run(call("perform", what))
        assert caught.value.__cause__ is not None
        return caught.value.__cause__


async def let_time_pass(env: Environment, until: Coroutine[Any, Any, None]) -> None:
    """The engine hears from a process when it does, and counts the time from there."""
    task = asyncio.ensure_future(until)
    while not task.done():
        await env.advance(1)


# What crosses over.


async def test_a_step_runs_in_another_process_which_serves_many() -> None:
    async with engine(limits=Limits(processes_max=1)) as one:
        results = await one.run(call_all("perform", "a", "b", "c"))
        assert results == ["a", "b", "c"]
        places = [await one.run(call("whereabouts")) for _ in range(3)]
        assert len({pid for pid, _ in places}) == 1
        assert places[0][0] != os.getpid()


async def test_arguments_and_results_keep_their_types() -> None:
    @workflow
    async def flow() -> bool:
        order = Order("o-1", [1, 2])
        return await process_steps.total(order, 3, 4, factor=10) == Order("o-1", [100], order.at)

    async with Engine("memory://", workflows=[flow]) as one:
        assert await one.run(flow()) is True


async def test_large_values_cross_both_ways() -> None:
    text = "ü" * 400_000
    async with engine(limits=Limits(processes_max=2)) as one:
        assert await one.run(call_all("repeat", text, "x")) == [text * 2, "xx"]


async def test_a_plain_function_and_an_option_make_process_steps_too() -> None:
    @workflow
    async def flow() -> list[int]:
        moved = process_steps.threaded.options(process=True)
        back = process_steps.wrapped.options(process=False)
        return [await process_steps.wrapped(1), await moved(), await process_steps.threaded(), await back(1)]

    async with Engine("memory://", workflows=[flow], limits=Limits(processes_max=1)) as one:
        there, too, here, again = await one.run(flow())
        assert there == too != os.getpid()
        assert here == again == os.getpid()


async def test_outside_a_workflow_it_is_the_plain_function() -> None:
    assert await process_steps.wrapped(1) == os.getpid()


async def test_a_process_step_knows_its_attempt() -> None:
    async with engine() as one:
        found = await one.run(call("describe"), id="r-1")
        assert found == ["r-1", "1", "describe", 1, "r-1:1", None]


async def test_what_a_process_appends_can_be_read_while_it_runs_and_stays_when_it_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unwritten_items, "UNWRITTEN_BYTES_MAX", 1_000)  # The process is made to wait, time and again.
    async with engine(limits=Limits(processes_max=1)) as one, Meetings() as meetings:
        run = await one.start(call("speak", meetings.port, 100))
        items = aiter(run.stream("log"))
        for attempt in (1, 2):
            found = [await anext(items) for _ in range(100)]
            assert [item.value for item in found] == list(range(100))
            assert {(item.position, item.attempt) for item in found} == {("1", attempt)}
            (await meetings.next()).say("go on")
        assert [item.value async for item in items] == ["go on", "refused"]
        assert await run.result() == "go on"


async def test_resources_stay_in_the_engines_process() -> None:
    async with engine(resources={Order: lambda: Order("o", [])}) as one:
        run = await one.start(call("use_resource"))
        with pytest.raises(RunFailed, match="resources live in the engine's: make a Order here"):
            await run.result()
        assert [entry.attempts for entry in (await one.handle(run.id).history()).journal] == [1]


# Errors.


async def test_an_error_comes_back_as_its_own_class_with_the_stack_of_there() -> None:
    async with engine() as one:
        run = await one.start(call("perform", "raise"))
        with pytest.raises(RunFailed) as caught:
            await run.result()
        error = caught.value.__cause__
        assert isinstance(error, Declined)
        assert (error.card, error.cents) == ("c-1", 100)
        assert isinstance(error.__cause__, MaxRetriesExceeded)
        (entry,) = (await one.handle(run.id).history()).journal
        assert entry.failure is not None
        assert entry.attempts == 3
        assert 'raise Declined("c-1", 100)' in entry.failure.stack
        assert [one.message for one in entry.failure.history] == ["card c-1 was declined for 100"] * 3


async def test_what_cannot_be_rebuilt_is_told_as_for_other_steps() -> None:
    async with engine() as one:
        run = await one.start(call("perform", "raise locally"))
        with pytest.raises(RunFailed) as caught:
            await run.result()
        assert type(caught.value.__cause__) is MaxRetriesExceeded
        (entry,) = (await one.handle(run.id).history()).journal
        failure = entry.failure
        assert failure is not None
        assert failure.type == "tests.functions.process_steps:perform.<locals>.Local"
        assert failure.cause is not None
        assert failure.cause.type == "builtins:KeyError"
        assert [(one.type, one.message) for one in failure.history] == [(failure.type, "here")] * 3


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("stop", RuntimeError, "StopIteration"),
        ("exit", StepFailed, "step 'perform' raised SystemExit(3): code in a run cannot end the process"),
        ("interrupt", StepFailed, "step 'perform' raised KeyboardInterrupt(): code in a run cannot end the process"),
        ("cancel", StepFailed, "cancelled from inside"),
        ("return an object", UnstorableValue, "the result of step 'perform' cannot be stored: builtins.object at"),
    ],
)
async def test_whatever_is_raised_there_fails_the_step(what: str, kind: type[BaseException], says: str) -> None:
    error = await failure_of(what)
    assert type(error) is kind
    assert says in str(error)


@pytest.mark.parametrize("what", ["exit", "interrupt"])
async def test_a_step_that_wants_to_end_the_process_is_not_tried_again(what: str) -> None:
    async with engine() as one:
        run = await one.start(call("perform", what))
        with pytest.raises(RunFailed):
            await run.result()
        (entry,) = (await one.handle(run.id).history()).journal
        assert entry.attempts == 1


async def test_a_result_that_does_not_fit_its_annotation_fails_the_step() -> None:
    async with engine() as one:
        with pytest.raises(RunFailed, match="the result of step 'wrong' does not fit its annotation int"):
            await one.run(call("wrong"))


# Death.


async def test_a_process_that_dies_fails_its_attempt_and_the_next_has_another() -> None:
    async with engine(limits=Limits(processes_max=1)) as one:
        before = await one.run(call("whereabouts"))
        run = await one.start(call("perform", "die once"))
        assert await run.result() not in (before[0], os.getpid())
        (entry,) = (await one.handle(run.id).history()).journal
        assert entry.attempts == 2


@pytest.mark.parametrize(
    ("what", "says", "code"),
    [
        ("die", "died in attempt 3: it ended with exit code 7", 7),
        ("be killed", "died in attempt 3: it was killed by signal 9 (SIGKILL)", -9),
    ],
)
async def test_a_process_that_always_dies_fails_the_step_and_says_how(what: str, says: str, code: int) -> None:
    error = await failure_of(what)
    assert isinstance(error, StepProcessDied)
    assert isinstance(error.__cause__, MaxRetriesExceeded)
    assert says in str(error)
    assert error.exit_code == code


async def test_a_process_is_known_to_be_dead_though_a_child_of_it_lives_on() -> None:
    async with Meetings() as meetings, engine() as one:
        run = await one.start(call("leave_a_child", meetings.port))
        child = await meetings.next()
        with pytest.raises(RunFailed, match="died in attempt 1: it ended with exit code 7"):
            await run.result()
        child.say("goodbye")
        await child.gone()


async def test_a_killed_process_takes_no_other_step_with_it() -> None:
    async with Meetings() as meetings, engine(limits=Limits(processes_max=2)) as one:
        victim = await one.start(call("visit", meetings.port), id="victim")
        first = await meetings.next()
        other = await one.start(call("visit", meetings.port), id="other")
        second = await meetings.next()
        os.kill(first.pid, signal.SIGKILL)
        again = await meetings.next()
        assert again.word == "2"
        assert again.pid not in (first.pid, second.pid)
        second.say("well")
        again.say("better")
        assert await other.result() == "well"
        assert await victim.result() == "better"
        assert [entry.attempts for entry in (await one.handle("other").history()).journal] == [1]


async def test_a_process_that_died_while_it_had_nothing_to_do_is_replaced_unnoticed() -> None:
    async with Meetings() as meetings, engine(limits=Limits(processes_max=1)) as one:
        for word in ("one", "two", "three"):
            run = await one.start(call("visit", meetings.port))
            guest = await meetings.next()
            assert guest.word == "1"
            guest.say(word)
            assert await run.result() == word
            os.kill(guest.pid, signal.SIGKILL)
            await guest.gone()


async def test_signals_to_the_whole_group_are_left_to_the_engine() -> None:
    async with Meetings() as meetings, engine() as one:
        run = await one.start(call("visit", meetings.port))
        guest = await meetings.next()
        os.kill(guest.pid, signal.SIGINT)
        os.kill(guest.pid, signal.SIGTERM)
        guest.say("still here")
        assert await run.result() == "still here"


# Bounds.


async def test_no_more_processes_than_there_may_be_and_first_come_first_served() -> None:
    async with Meetings() as meetings, engine(limits=Limits(processes_max=2)) as one:
        words = [str(number) for number in range(6)]
        runs = [await one.start(call("visit", meetings.port, word)) for word in words]
        pids: set[int] = set()
        guests = [await meetings.next(), await meetings.next()]
        seen = sorted(guest.word for guest in guests)
        for _ in range(4):
            assert meetings.nobody
            guests.pop(0).say("next")
            guests.append(await meetings.next())
            seen.append(guests[-1].word)
        for guest in guests:
            guest.say("next")
            pids.add(guest.pid)
        assert [await run.result() for run in runs] == ["next"] * 6
        assert seen == words
        assert len(pids) == 2


async def test_an_attempt_that_takes_too_long_is_killed_and_tried_again_in_another_process() -> None:
    @workflow
    async def flow(port: int) -> str:
        return await process_steps.visit.options(timeout=5)(port)

    async with Meetings() as meetings, Environment([flow], autojump_s=None) as env:
        run = await env.engine.start(flow(meetings.port))
        first = await meetings.next()
        await let_time_pass(env, first.gone())
        second = await meetings.next()
        assert (second.word, second.pid != first.pid) == ("2", True)
        second.say("in time")
        assert await run.result() == "in time"


async def test_the_total_timeout_counts_the_wait_for_a_process() -> None:
    @workflow
    async def flow(port: int) -> str:
        hurried = process_steps.visit.options(total_timeout=5)
        hog = asyncio.create_task(process_steps.visit(port))
        await asyncio.sleep(1)
        with pytest.raises(StepTimedOut):
            await hurried(port)
        return await hog

    async with Meetings() as meetings, Environment([flow], autojump_s=None, limits=Limits(processes_max=1)) as env:
        run = await env.engine.start(flow(meetings.port))
        guest = await meetings.next()
        await env.advance(10)
        guest.say("done")
        assert await run.result() == "done"
        assert meetings.nobody


async def test_a_cancelled_runs_process_is_killed_and_its_place_is_free() -> None:
    async with Meetings() as meetings, engine(limits=Limits(processes_max=1)) as one:
        run = await one.start(call("visit", meetings.port), id="r")
        waiting = await one.start(call("visit", meetings.port), id="waiting")
        next_one = await one.start(call("visit", meetings.port), id="next")
        guest = await meetings.next()
        await one.handle("waiting").cancel()
        await one.handle("r").cancel()
        await guest.gone()
        other = await meetings.next()
        other.say("hello")
        assert await next_one.result() == "hello"
        for cancelled in (run, waiting):
            with pytest.raises(RunCancelled):
                await cancelled.result()


async def test_a_workflow_that_gives_up_waiting_has_the_process_killed() -> None:
    @workflow
    async def flow(port: int) -> str:
        try:
            async with asyncio.timeout(5):
                return await process_steps.visit(port)
        except TimeoutError:
            return "gave up"

    async with Meetings() as meetings, Environment([flow], autojump_s=None) as env:
        run = await env.engine.start(flow(meetings.port))
        guest = await meetings.next()
        await env.advance(5)
        assert await run.result() == "gave up"
        await guest.gone()


# Heartbeats.


async def test_a_process_that_falls_silent_is_killed_and_the_next_knows_what_it_said() -> None:
    async with Meetings() as meetings, Environment([call], autojump_s=None) as env:
        run = await env.engine.start(call("fall_silent", meetings.port))
        guest = await meetings.next()
        await let_time_pass(env, guest.gone())
        assert await run.result() == "2 after alive"


@pytest.mark.parametrize(("word", "details"), [("die", 9999), ("raise", "the last word")])
async def test_of_ten_thousand_heartbeats_the_last_one_counts(word: str, details: object) -> None:
    is_stored = asyncio.Event()

    class Watched(MemoryStore):
        async def commit(self, batch: Batch) -> Committed:
            committed = await super().commit(batch)
            if any(wait.details == "9999" for wait in batch.waits.values()):
                is_stored.set()
            return committed

    async with Meetings() as meetings, Engine(Watched(), workflows=[call]) as one:
        run = await one.start(call("chatter", meetings.port))
        guest = await meetings.next()
        await is_stored.wait()
        guest.say(word)
        assert await run.result() == [2, details]
        assert one.engines.stats.commits < 10


async def test_what_a_process_said_survives_a_long_pause_and_a_crash_of_the_engine(source: StoreSource) -> None:
    async with Meetings() as meetings, Environment([call], source, autojump_s=None) as env:
        await env.engine.start(call("visit_patiently", meetings.port), id="r")
        first = await meetings.next()
        assert first.word == "None"
        first.say("one")
        await env.quiet()
        await env.restart()
        await env.advance(timedelta(hours=1))
        second = await meetings.next()
        assert second.word == "{'heard': 'one'}"
        second.say("two")
        assert await env.engine.handle("r").result() == "two"


# Ends.


async def test_a_shutdown_waits_for_process_steps_and_ends_all_processes() -> None:
    async with Meetings() as meetings:
        one = engine(limits=Limits(processes_max=2))
        await one.open()
        idle = await one.start(call("visit", meetings.port))
        busy = await one.start(call("visit", meetings.port))
        first, second = await meetings.next(), await meetings.next()
        first.say("done")
        await asyncio.wait(
            [asyncio.ensure_future(idle.result()), asyncio.ensure_future(busy.result())],
            return_when=asyncio.FIRST_COMPLETED,
        )
        stopping = asyncio.ensure_future(one.shutdown(grace=60))
        await asyncio.sleep(0)
        second.say("done too")
        await stopping
        await first.gone()
        await second.gone()


async def test_a_process_step_that_outlasts_the_grace_period_is_killed_and_runs_again(source: StoreSource) -> None:
    async with Meetings() as meetings, Environment([call], source, autojump_s=None) as env:
        await env.engine.start(call("visit", meetings.port), id="r")
        guest = await meetings.next()
        await env.engine.shutdown(grace=0)
        await guest.gone()
        env.kill()
        await env.restart()
        again = await meetings.next()
        assert again.word == "1"
        again.say("hello")
        assert await env.engine.handle("r").result() == "hello"


async def test_killing_the_engine_kills_its_processes(source: StoreSource) -> None:
    async with Meetings() as meetings, Environment([call], source, autojump_s=None) as env:
        await env.engine.start(call("visit", meetings.port), id="r")
        guest = await meetings.next()
        await env.restart()
        await guest.gone()
        (await meetings.next()).say("hello")
        assert await env.engine.handle("r").result() == "hello"


async def test_the_pool_is_not_there_before_it_is_needed() -> None:
    async with engine() as one:
        assert await one.run(call("threaded")) == os.getpid()
        assert "pool" not in vars(one.runtime.functions._executor.processes)
        await one.run(call("whereabouts"))
        assert "pool" in vars(one.runtime.functions._executor.processes)


# Definitions.


def test_an_async_step_cannot_have_a_process() -> None:
    with pytest.raises(InvalidDefinition, match="is async, and process=True is for plain functions"):

        @step(process=True)
        async def work() -> None: ...


def test_a_step_that_no_other_process_finds_is_refused_at_once() -> None:
    def local() -> None: ...

    with pytest.raises(InvalidDefinition, match=r"cannot find .*local' again: define it at the top level of a module"):
        step(process=True)(local)
    with pytest.raises(InvalidDefinition, match="at the top level"):
        step(process=True, name="lambda")(lambda: None)
    with pytest.raises(InvalidDefinition, match="at the top level"):
        step(local).options(process=True)


async def test_a_step_whose_name_was_given_to_another_is_refused_when_called() -> None:
    async with engine() as one:
        with pytest.raises(RunFailed, match=r"process_steps\.replaced is not it, so a worker process would not find"):
            await one.run(call("first_of_that_name"))
        assert await one.run(call("replaced")) == "the second of that name"


async def test_arguments_that_do_not_fit_are_refused_before_anything_starts() -> None:
    @workflow
    async def flow() -> None:
        await process_steps.visit.options(retry=Retry.never())("no port")  # type: ignore[arg-type]

    async with Engine("memory://", workflows=[flow]) as one:
        with pytest.raises(RunFailed, match="the input of step 'visit' does not fit its parameters"):
            await one.run(flow())
