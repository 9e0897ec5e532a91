"""What workflow code says: in order, once, with the commit and never before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from perdure import (
    Limits,
    NamedEvent,
    Retry,
    Stream,
    Workflow,
    compensate,
    continue_as,
    current_step,
    publish,
    receive,
    resource,
    sleep,
    start,
    step,
    stream,
    workflow,
)
from perdure.errors import (
    InvalidArguments,
    Misuse,
    NotInStep,
    NotInWorkflow,
    RunCancelled,
    RunFailed,
    UnstorableValue,
)
from perdure.kernel.batch import Batch, Committed
from perdure.models.functions import publications
from perdure.ports import Store
from perdure.testing import Environment, StoreProxy, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger
from tests.functions.words import Odd, Reversed, World, said, work


@step(retry=Retry.never())
async def fragile() -> str:
    if not resource(World).is_mended:
        raise ConnectionError("down")
    return "up"


# Workflow code.


@workflow
async def talkative() -> str:
    out = stream("log")
    await publish("progress", 0)
    await out.append("began")
    first = await work("a")
    await publish("progress", 0.5)
    await out.append(first)
    await sleep(60)
    await out.append({"slept": 60})
    await publish("note", None)
    second, _ = await asyncio.gather(work("b", 2), aside(out))
    await out.append(second)
    await publish("progress", 1)
    await out.append("done")
    return second


async def aside(out: Stream) -> None:
    await out.append("aside")
    await work("c", 1)
    await out.append("aside again")


SAID = ["began", "A", {"slept": 60}, "aside", "aside again", "B", "done"]


async def test_values_and_items_can_be_read_when_the_run_has_ended(source: StoreSource) -> None:
    async with Environment([talkative], source) as env:
        await env.engine.run(talkative(), id="r")
        assert await said(env) == SAID
        assert await env.engine.handle("r").published() == {"note": None, "progress": 1}
        assert await env.engine.handle("r").published("note") is None
        assert await env.engine.handle("r").published("progress") == 1
        items = [item async for item in env.engine.handle("r").stream("log", follow=False)]
        assert {(item.position, item.attempt) for item in items} == {(None, None)}


async def test_a_crash_at_any_commit_neither_repeats_nor_loses_a_word(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(talkative(), id="r")).result()
        return await said(env), await env.engine.handle("r").published()

    report = await run_with_crashes(scenario, workflows=[talkative], store=fresh)
    assert report.result == (SAID, {"note": None, "progress": 1})
    assert report.restarts == report.commits * 3


async def test_a_restart_in_every_pause_says_nothing_again(source: StoreSource) -> None:
    async with Environment([talkative], source, autojump_s=None) as env:
        await env.engine.start(talkative(), id="r")
        for _ in range(200):
            await env.quiet()
            if await env.engine.handle("r").status() == "succeeded":
                break
            await env.restart()
            await env.quiet()
            await env.advance(7)
        assert env.restarts > 8
        assert await said(env) == SAID


class Gate(StoreProxy):
    """A store that holds back commits that say something."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def commit(self, batch: Batch) -> Committed:
        if batch.published or batch.stream_items:
            self.reached.set()
            await self.opened.wait()
        return await super().commit(batch)


async def test_nothing_can_be_read_before_its_commit(source: StoreSource) -> None:
    gates: list[Gate] = []

    def watch(inner: Store) -> Store:
        gates.append(Gate(inner))
        return gates[-1]

    async with Environment([talkative], source, watch=watch) as env:
        run = await env.engine.start(talkative(), id="r")
        (gate,) = gates
        await gate.reached.wait()
        reading = asyncio.ensure_future(anext(aiter(run.stream("log"))))
        await asyncio.sleep(0)
        assert await run.published() == {}
        assert await said(env) == []
        assert not reading.done()
        gate.opened.set()
        assert (await reading).value == "began"
        assert await run.published("progress") in (0, 0.5, 1)
        await run.result()


@workflow
async def after_a_step() -> None:
    await work("a")
    await publish("progress", 1)
    await stream("log").append("x")


@workflow
async def before_a_step() -> None:
    await publish("progress", 1)
    await work("a")


@workflow
async def without_steps() -> None:
    await publish("progress", 1)


@pytest.mark.parametrize(("flow", "commits"), [(after_a_step, 2), (without_steps, 2), (before_a_step, 3)])
async def test_what_is_said_rides_along_where_something_is_committed_anyway(
    flow: Any, commits: int, source: StoreSource
) -> None:
    ledger = Ledger()
    async with Environment([flow], source, watch=ledger.watch) as env:
        run = await env.engine.start(flow())
        await run.result()
        await env.settle()
        assert len(ledger.batches) == commits
        assert await run.published() == {"progress": 1}


async def test_saying_something_takes_no_position_in_the_program(source: StoreSource) -> None:
    async with Environment([talkative], source) as env:
        await env.engine.run(talkative(), id="r")
        positions = [entry.position for entry in (await env.engine.handle("r").history()).journal]
        assert positions == ["1", "2", "4.1", "3.1"]


async def test_code_that_says_more_than_before_still_fits_its_journal(source: StoreSource) -> None:
    @workflow(name="flow")
    async def silent() -> str:
        await sleep(60)
        return await work("a")

    @workflow(name="flow")
    async def loud() -> str:
        await publish("state", "asleep")
        await sleep(60)
        await publish("state", "awake")
        return await work("a")

    async with Environment([silent], source, autojump_s=None) as env:
        await env.engine.start(silent(), id="r")
        await env.quiet()
    async with Environment([loud], source) as env:
        await env.engine.recover()
        await env.clock.sleep(120)
        assert await env.engine.handle("r").result() == "A"
        assert await env.engine.handle("r").published() == {"state": "awake"}


async def test_a_run_that_wakes_before_its_first_entry_says_nothing_again(source: StoreSource) -> None:
    @workflow
    async def flow() -> int:
        await stream("log").append("waiting")
        number: int = await receive("go")
        await stream("log").append(number)
        return number

    async with Environment([flow], source) as env:
        await env.engine.start(flow(), id="r")
        await env.quiet()
        for _ in range(3):
            await env.restart()
            await env.quiet()
        await env.engine.send(NamedEvent("go", 3), to="r")
        assert await env.engine.handle("r").result() == 3
        assert await said(env) == ["waiting", 3]


async def test_words_between_children_that_are_started_are_said_once(source: StoreSource) -> None:
    @workflow
    async def child() -> None: ...

    @workflow
    async def flow() -> None:
        out = stream("log")
        for number in range(3):
            await out.append(number)
            await start(child())
        await out.append("all")

    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(flow(), id="r")).result()
        return await said(env)

    report = await run_with_crashes(scenario, workflows=[flow, child])
    assert report.result == [0, 1, 2, "all"]


# Retries of runs.


@workflow
async def retried() -> str:
    out = stream("log")
    await out.append("began")
    await publish("state", "began")
    await work("a")
    await publish("state", "trying")
    try:
        result = await fragile()
    except ConnectionError:
        await out.append("it is down")
        await publish("state", "down")
        raise
    await out.append(f"it is {result}")
    await publish("state", result)
    return result


async def test_a_retry_keeps_what_was_said_and_says_what_happens_anew(source: StoreSource) -> None:
    world = World()
    async with Environment([retried], source, resources={World: lambda: world}) as env:
        run = await env.engine.start(retried(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        assert await run.published() == {"state": "down"}
        with pytest.raises(RunFailed):
            await (await env.engine.handle("r").retry()).result()
        assert await said(env) == ["began", "it is down", "it is down"]
        world.is_mended = True
        await env.restart()
        assert await (await env.engine.handle("r").retry()).result() == "up"
        assert await said(env) == ["began", "it is down", "it is down", "it is up"]
        assert await env.engine.handle("r").published() == {"state": "up"}


async def test_a_retry_from_the_first_entry_says_the_beginning_once(source: StoreSource) -> None:
    @workflow
    async def flow() -> str:
        await stream("log").append("began")
        await publish("state", "began")
        try:
            return await fragile()
        finally:
            await publish("state", "over")

    world = World()
    async with Environment([flow], source, resources={World: lambda: world}) as env:
        run = await env.engine.start(flow(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        world.is_mended = True
        reading = asyncio.ensure_future(_states(run))
        assert await (await env.engine.handle("r").retry()).result() == "up"
        assert await said(env) == ["began"]
        assert await reading == ["over"]


async def _states(run: Any) -> list[Any]:
    """All that a run shows while it is retried."""
    states = [await run.published("state")]
    while await run.status() != "succeeded":
        states.append(await run.published("state"))
        await asyncio.sleep(0)
    return sorted(set(states))


async def test_mended_code_says_after_a_retry_what_broken_code_never_came_to(source: StoreSource) -> None:
    @workflow(name="flow")
    async def broken() -> str:
        await work("a")
        await stream("log").append("counting")
        await publish("state", "counting")
        raise ZeroDivisionError

    @workflow(name="flow")
    async def mended() -> str:
        await work("a")
        await stream("log").append("counting")
        await publish("state", "counting")
        await stream("log").append("counted")
        await publish("state", "counted")
        return await work("b", 60)

    async with Environment([broken], source) as env:
        await env.engine.start(broken(), id="r")
        with pytest.raises(RunFailed):
            await env.engine.handle("r").result()
    async with Environment([mended], source, autojump_s=None) as env:
        run = await env.engine.handle("r").retry()
        await env.quiet()
        assert await run.published() == {"state": "counted"}
        await env.restart()
        await env.quiet()
        assert await said(env) == ["counting", "counted"]


# Runs that continue, and runs that undo.


@workflow
async def rounds(number: int) -> str:
    out = stream("log")
    await out.append(f"round {number}")
    await publish("round", number)
    if number == 1:
        await continue_as(rounds(2))
    await work("a")
    await out.append("worked")
    await publish("round", number + 0.5)
    if number < 4:
        await continue_as(rounds(number + 1))
    return "done"


ROUNDS = ["round 1", "round 2", "worked", "round 3", "worked", "round 4", "worked"]


async def test_a_run_that_continues_keeps_what_it_said_and_goes_on(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(rounds(1), id="r")).result()
        return await said(env), await env.engine.handle("r").published()

    report = await run_with_crashes(scenario, workflows=[rounds], store=fresh)
    assert report.result == (ROUNDS, {"round": 4.5})


@step(retry=Retry.never())
async def undo(what: str) -> None:
    current_step().append("log", f"undoing {what}")


@workflow
async def undone() -> None:
    await stream("log").append("began")
    await work("a")
    await compensate(undo("a"))
    await stream("log").append("failing")
    await publish("state", "failing")
    raise ValueError("no good")


async def test_what_a_rollback_says_comes_after_what_the_run_said(source: StoreSource) -> None:
    async with Environment([undone], source) as env:
        run = await env.engine.start(undone(), id="r")
        items = [item async for item in run.stream("log")]
        assert [item.value for item in items] == ["began", "failing", "undoing a"]
        assert [item.position for item in items] == [None, None, "undo.1"]
        assert await run.published() == {"state": "failing"}
        assert await run.status() == "rolled_back"


async def test_a_crash_at_any_commit_of_a_rollback_leaves_what_was_said(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> Any:
        run = await env.engine.start(undone(), id="r")
        with suppress(Exception):
            await run.result()
        words = await said(env)
        return words[:3], set(words[3:]) <= {"undoing a"}  # The step that undoes may have been cut short.

    report = await run_with_crashes(scenario, workflows=[undone], store=fresh)
    assert report.result == (["began", "failing", "undoing a"], True)


# Where it is refused.


async def test_it_belongs_into_a_workflow() -> None:
    @step(retry=Retry.never())
    async def misplaced() -> list[str]:
        told = []
        for word in (publish("progress", 1), stream("log").append(1)):
            with pytest.raises(NotInWorkflow) as caught:
                await word
            told.append(str(caught.value))
        return told

    @workflow
    async def flow() -> list[str]:
        with pytest.raises(NotInStep):
            current_step()
        return await misplaced()

    for outside in (publish("progress", 1), stream("log").append(1)):
        with pytest.raises(NotInWorkflow):
            await outside
    async with Environment([flow]) as env:
        first, second = await env.engine.run(flow(), id="r")
        assert "was called in a step" in first
        assert "current_step().append('log', …)" in second
        assert await env.engine.handle("r").published() == {}


async def test_nothing_is_said_in_the_clean_up_of_a_run_that_is_closed(source: StoreSource) -> None:
    refused: list[str] = []

    @workflow
    async def flow() -> None:
        try:
            await work("long", 1_000)
        finally:
            for _ in range(3):
                try:
                    await publish("progress", "cleaned up")
                except Misuse as error:
                    refused.append(type(error).__name__)
            with suppress(Misuse):
                await stream("log").append("cleaned up")

    async with Environment([flow], source, autojump_s=None) as env:
        run = await env.engine.start(flow(), id="r")
        await env.quiet()
        await env.engine.handle("r").cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        await env.quiet()
        assert refused == ["ForbiddenInWorkflow"] * 3
        assert await run.published() == {}
        assert await said(env) == []


@pytest.mark.parametrize("value", [{"deep": [Odd()]}, float("nan"), "\ud800", "x" * 2_000])
async def test_a_value_that_cannot_be_stored_is_refused_where_it_is_said(value: Any) -> None:
    @workflow
    async def flow() -> list[str]:
        told = []
        for word in (publish("progress", value), stream("log").append(value)):
            try:
                await word
            except UnstorableValue as error:
                told.append(str(error))
        return told

    async with Environment([flow], limits=Limits(payload_bytes_max=1_000)) as env:
        first, second = await env.engine.run(flow(), id="r")
        assert "published under 'progress'" in first
        assert "an item of stream 'log'" in second
        if isinstance(value, dict):
            assert "Odd at $['deep'][0]" in first
        assert await said(env) == []


@pytest.mark.parametrize("name", ["", "x" * 501, "nul\0", 17, None])
async def test_bad_names_are_refused(name: Any) -> None:
    @step(retry=Retry.never())
    async def speak() -> None:
        current_step().append(name, 1)

    @workflow
    async def flow() -> int:
        refused = 0
        attempts: list[Callable[[], Awaitable[None]]] = [
            lambda: publish(name, 1),
            lambda: Stream(name).append(1),
            speak,
        ]
        for attempt in attempts:
            try:
                await attempt()
            except InvalidArguments:
                refused += 1
        return refused

    async with Environment([flow]) as env:
        assert await env.engine.run(flow()) == 3


async def test_keys_and_words_between_two_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publications, "KEYS_MAX", 3)
    monkeypatch.setattr(publications, "OUTPUTS_MAX", 5)
    monkeypatch.setattr(publications, "OUTPUT_CHARS_MAX", 20_000)

    @workflow
    async def keys() -> None:
        for number in range(4):
            await publish(f"key {number}", number)
            await work("a")

    @workflow
    async def words() -> int:
        out = stream("log")
        for number in range(20):
            await out.append(number)
            if number % 5 == 4:
                await work("a")
        while True:
            await out.append("for ever")

    @workflow
    async def long_words() -> None:
        for _ in range(3):
            await stream("log").append("x" * 9_000)

    async with Environment([keys, words, long_words], limits=Limits(payload_bytes_max=10_000)) as env:
        flows: list[tuple[Workflow[[], Any], str]] = [
            (keys, "at most 3 keys"),
            (words, "5 times"),
            (long_words, "20,000 characters"),
        ]
        for flow, complaint in flows:
            run = await env.engine.start(flow(), id=flow.name)
            with pytest.raises(RunFailed, match=complaint):
                await run.result()
        assert await env.engine.handle(keys.name).published() == {f"key {n}": n for n in range(3)}
        assert await said(env, words.name) == [*range(20), *["for ever"] * 5]


async def test_what_is_said_goes_through_the_codec(source: StoreSource) -> None:
    @step
    async def speak() -> None:
        current_step().append("log", "from the step")

    @workflow
    async def flow() -> None:
        await publish("key", "value")
        await speak()
        await stream("log").append("from the workflow")

    ledger = Ledger()
    async with Environment([flow], source, watch=ledger.watch, codec=Reversed()) as env:
        await env.engine.run(flow(), id="r")
        assert await said(env) == ["from the step", "from the workflow"]
        assert await env.engine.handle("r").published("key") == "value"
    stored = [item.value for batch in ledger.batches for item in batch.stream_items]
    assert stored == ['"pets eht morf"', '"wolfkrow eht morf"']


async def test_an_event_that_is_waited_for_beside_a_first_step_reaches_the_run(source: StoreSource) -> None:
    @workflow
    async def flow() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(work("a", 3_600))
            await receive("ping")
            await publish("state", "pinged")
        return "done"

    async with Environment([flow], source, autojump_s=None) as env:
        run = await env.engine.start(flow(), id="r")
        await env.quiet()
        await env.engine.send(NamedEvent("ping"), to="r", strict=True)
        await env.quiet()
        assert await run.published() == {"state": "pinged"}
