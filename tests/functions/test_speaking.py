"""What steps say: in order, once, with the commit and never before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Retry,
    current_step,
    resource,
    step,
    stream,
    workflow,
)
from perdure.errors import (
    QueueFull,
    UnstorableValue,
)
from perdure.models.functions import unwritten_items
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger
from tests.functions.words import Odd, Reversed, World, said, work


@step(retry=Retry.never())
async def tokens(*words: str) -> int:
    me = current_step()
    for word in words:
        me.append("log", word)
        await asyncio.sleep(0)
    return len(words)


@step(retry=Retry.never())
def lines(*words: str) -> int:
    for word in words:
        current_step().append("log", word)
    return len(words)


@workflow
async def speaking_steps() -> int:
    out = stream("log")
    await out.append("first")
    count = await tokens("a", "b", "c")
    await out.append("then")
    count += await lines("d", "e", "f")
    await out.append("last")
    return count


async def test_steps_append_between_the_words_of_their_workflow(source: StoreSource) -> None:
    async with Environment([speaking_steps], source) as env:
        assert await env.engine.run(speaking_steps(), id="r") == 6
        items = [item async for item in env.engine.handle("r").stream("log")]
        assert [item.value for item in items] == ["first", "a", "b", "c", "then", "d", "e", "f", "last"]
        writers = [(item.position, item.attempt) for item in items]
        assert writers == [(None, None), *[("1", 1)] * 3, (None, None), *[("2", 1)] * 3, (None, None)]
        assert all(item.at == env.clock.time for item in items)


async def test_a_crash_at_any_commit_leaves_what_steps_said_in_order(fresh: Callable[[], StoreSource]) -> None:
    """A step that is cut short runs and speaks again; the workflow's words are there once, and all of them."""

    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(speaking_steps(), id="r")).result()
        return await said(env)

    def check(words: list[str]) -> None:
        text = "".join(words)
        before, rest = text.split("first")
        middle, rest = rest.split("then")
        late, after = rest.split("last")
        assert (before, after) == ("", "")
        assert middle.endswith("abc")
        assert late.endswith("def")
        assert middle.removesuffix("abc") in ("", "a", "ab", "abc")
        assert late.removesuffix("def") in ("", "d", "de", "def")

    report = await run_with_crashes(scenario, workflows=[speaking_steps], store=fresh, check=check)
    assert report.trials >= 20


async def test_what_a_failed_attempt_said_stays_and_the_next_says_its_own(source: StoreSource) -> None:
    @step(retry=Retry(attempts=4, initial=timedelta(seconds=0.1), multiplier=40))
    async def stubborn() -> str:
        me = current_step()
        me.append("log", f"attempt {me.attempt}")
        me.append("log", "going")
        if me.attempt < 4:
            raise ConnectionError
        return "done"

    @workflow
    async def flow() -> str:
        return await stubborn()

    async with Environment([flow], source) as env:
        assert await env.engine.run(flow(), id="r") == "done"
        items = [item async for item in env.engine.handle("r").stream("log")]
        assert [item.value for item in items] == [w for n in (1, 2, 3, 4) for w in (f"attempt {n}", "going")]
        assert [item.attempt for item in items] == [1, 1, 2, 2, 3, 3, 4, 4]


async def test_what_was_flushed_can_be_read(source: StoreSource) -> None:
    @step(retry=Retry.never())
    async def careful() -> list[Any]:
        found = []
        for number in range(3):
            current_step().append("log", number)
            await current_step().flush()
            found.append(await said(environments[0]))
        return found

    @workflow
    async def flow() -> list[Any]:
        return await careful()

    environments: list[Environment] = []
    async with Environment([flow], source) as env:
        environments.append(env)
        assert await env.engine.run(flow(), id="r") == [[0], [0, 1], [0, 1, 2]]


async def test_a_thread_may_flush_on_a_loop_of_its_own(source: StoreSource) -> None:
    @step(retry=Retry.never())
    def with_a_loop() -> str:
        async def speak() -> None:
            for number in range(3):
                current_step().append("log", number)
                await current_step().flush()

        asyncio.run(speak())
        return "done"

    @workflow
    async def flow() -> str:
        return await with_a_loop()

    async with Environment([flow], source, autojump_s=None) as env:
        assert await env.engine.run(flow(), id="r") == "done"
        assert await said(env) == [0, 1, 2]


async def test_a_step_that_says_too_much_is_told_and_a_thread_waits(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unwritten_items, "UNWRITTEN_BYTES_MAX", 2_000)

    @step(retry=Retry.never())
    async def hasty() -> int:
        number = 0
        with suppress(QueueFull):
            for number in range(1_000):
                current_step().append("log", number)
        with pytest.raises(QueueFull, match=r"await current_step\(\).flush\(\)"):
            current_step().append("log", "still too much")
        return number

    @step(retry=Retry.never())
    async def patient() -> None:
        for number in range(30):
            current_step().append("log", number)
            await current_step().flush()

    @step(retry=Retry.never())
    def in_a_thread() -> None:
        for number in range(30):
            current_step().append("log", number)

    @workflow
    async def flow() -> int:
        count = await hasty()
        await patient()
        await in_a_thread()
        return count

    async with Environment([flow], source, autojump_s=None) as env:
        count = await env.engine.run(flow(), id="r")
        assert 5 <= count <= 10
        assert await said(env) == [*range(count), *range(30), *range(30)]


async def test_one_item_may_be_larger_than_all_that_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwritten_items, "UNWRITTEN_BYTES_MAX", 100)

    @workflow
    async def flow() -> int:
        return await tokens("x" * 1_000_000)

    async with Environment([flow]) as env:
        assert await env.engine.run(flow(), id="r") == 1
        assert [len(word) for word in await said(env)] == [1_000_000]


async def test_many_items_of_a_step_share_commits(source: StoreSource) -> None:
    @step(retry=Retry.never())
    async def chatty() -> None:
        for number in range(5_000):
            current_step().append("log", number)

    @workflow
    async def flow() -> None:
        await chatty()

    ledger = Ledger()
    async with Environment([flow], source, watch=ledger.watch) as env:
        await env.engine.run(flow(), id="r")
        assert await said(env) == [*range(5_000)]
    assert len(ledger.batches) <= 10


async def test_a_thread_whose_time_was_up_says_nothing_more(source: StoreSource) -> None:
    go_on, over = threading.Event(), threading.Event()

    @step(retry=Retry.never(), timeout=timedelta(seconds=1))
    def slow() -> None:
        me = current_step()
        me.append("log", "in time")
        go_on.wait(60)
        me.append("log", "too late")
        over.set()

    @workflow
    async def flow() -> str:
        try:
            await slow()
        except TimeoutError:
            await stream("log").append("gave up")
        return await work("a", 1)

    async with Environment([flow], source, autojump_s=0.05) as env:
        run = await env.engine.start(flow(), id="r")
        async for item in run.stream("log"):
            if item.value == "gave up":
                break
        go_on.set()
        await asyncio.to_thread(over.wait, 60)
        assert await run.result() == "A"
        assert await said(env) == ["in time", "gave up"]


async def test_a_step_of_a_cancelled_run_says_nothing_more(source: StoreSource) -> None:
    world = World()

    @step(retry=Retry.never())
    async def deaf() -> None:
        me = current_step()
        me.append("log", "before")
        try:
            await asyncio.Event().wait()
        finally:
            me.append("log", "after")
            await me.flush()
            resource(World).log.append("ended")

    @workflow
    async def flow() -> None:
        await deaf()

    async with Environment([flow], source, autojump_s=None, resources={World: lambda: world}) as env:
        run = await env.engine.start(flow(), id="r")
        assert (await anext(aiter(run.stream("log")))).value == "before"
        await env.engine.handle("r").cancel()
        assert [item.value async for item in run.stream("log")] == ["before"]
        await env.quiet()
        assert world.log == ["ended"]
        assert await said(env) == ["before"]


async def test_a_task_that_outlives_its_step_says_nothing_more(source: StoreSource) -> None:
    left: list[asyncio.Task[None]] = []
    ended = asyncio.Event()

    @step(retry=Retry.never())
    async def careless() -> None:
        me = current_step()

        async def late() -> None:
            await ended.wait()
            me.append("log", "late")
            await me.flush()

        me.append("log", "in time")
        left.append(asyncio.create_task(late()))

    @workflow
    async def flow() -> None:
        await careless()

    async with Environment([flow], source) as env:
        await env.engine.run(flow(), id="r")
        ended.set()
        await left[0]
        assert await said(env) == ["in time"]


async def test_what_a_step_cannot_say_is_refused_where_it_says_it(source: StoreSource) -> None:
    @step(retry=Retry.never())
    def wrong() -> str:
        try:
            current_step().append("log", {"x": Odd()})
        except UnstorableValue as error:
            return str(error)
        return ""

    @workflow
    async def flow() -> str:
        return await wrong()

    async with Environment([flow], source, autojump_s=None) as env:
        told = await env.engine.run(flow(), id="r")
        assert "an item of stream 'log' cannot be stored" in told
        assert "Odd at $['x']" in told


class Broken(Reversed):
    def encode(self, text: str) -> str:
        if "unspeakable" in text:
            raise ValueError("this codec does not like it")
        return super().encode(text)


async def test_an_item_that_the_codec_refuses_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    @step(retry=Retry.never())
    async def speak() -> str:
        await current_step().flush()  # Nothing was said yet.
        current_step().append("log", "unspeakable")
        await current_step().flush()
        current_step().append("log", "fine")
        return "done"

    @workflow
    async def flow() -> str:
        return await speak()

    async with Environment([flow], codec=Broken()) as env:
        assert await env.engine.run(flow(), id="r") == "done"
        assert await said(env) == ["fine"]
    assert caplog.text.count("could not be encoded") == 1


async def test_a_shutdown_in_grace_keeps_what_a_step_says(source: StoreSource) -> None:
    async with Environment([speaking_steps], source) as env:
        run = await env.engine.start(speaking_steps(), id="r")
        async for _ in run.stream("log"):
            break
        await env.engine.shutdown(grace=60)
        env.kill()
        await env.restart()
        assert await env.engine.handle("r").result() == 6
        words = "".join(await said(env))
        assert words.startswith("first")
        assert words.endswith("last")
