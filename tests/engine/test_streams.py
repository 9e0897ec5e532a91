"""Reading what runs say: while they run and after, from this engine and from others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, NamedEvent, Retry, StreamItemView, current_step, publish, receive, step, stream, workflow
from perdure.errors import EngineStopped, InvalidArguments, NotPublished, RunFailed, RunNotFound
from perdure.ports import STREAM_PAGE_CHARS_MAX, Store, StreamPage
from perdure.testing import Environment, Fault, StoreProxy
from perdure.testing.environment import StoreSource


def more(words: list[Any], and_then: str = "go on") -> NamedEvent:
    return NamedEvent("more", {"words": words, "and_then": and_then})


@step(retry=Retry.never())
async def speak(words: list[Any]) -> None:
    for word in words:
        current_step().append("log", word)


@workflow
async def speaker() -> str:
    """Says what it is sent, until it is told to end or to fail."""
    out = stream("log")
    count = 0
    await publish("count", count)
    while True:
        told = await receive("more")
        for word in told["words"]:
            await out.append(word)
        count += len(told["words"])
        await publish("count", count)
        if told["and_then"] == "end":
            return "ended"
        if told["and_then"] == "fail":
            raise ValueError("told to fail")
        if told["and_then"] == "let a step speak":
            await speak(told["words"])


def environment(source: StoreSource, **options: Any) -> Environment:
    return Environment([speaker], source, autojump_s=None, **options)


async def tell(env: Environment, *words: Any, and_then: str = "go on", to: str = "r") -> None:
    await env.engine.send(more(list(words), and_then), to=to)


async def values(items: AsyncIterator[StreamItemView]) -> list[Any]:
    return [item.value async for item in items]


async def take(items: AsyncIterator[StreamItemView], count: int) -> list[Any]:
    return [(await anext(items)).value for _ in range(count)]


# Following.


async def test_a_reader_gets_items_as_they_come_and_ends_with_the_run(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        items = aiter(run.stream("log"))
        await tell(env, "a", "b")
        assert await take(items, 2) == ["a", "b"]
        await tell(env, "c")
        assert await take(items, 1) == ["c"]
        reading = asyncio.ensure_future(anext(items))
        await env.quiet()
        assert not reading.done()
        await tell(env, "d", and_then="end")
        assert (await reading).value == "d"
        assert await values(items) == []
        assert await run.result() == "ended"


async def test_readers_that_come_before_in_the_middle_and_after_the_end_get_the_same(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(speaker(), id="r")
        before = asyncio.ensure_future(values(env.engine.handle("r").stream("log")))
        await tell(env, "a", "b")
        await env.quiet()
        middle = asyncio.ensure_future(values(env.engine.handle("r").stream("log")))
        await tell(env, "c", and_then="let a step speak")
        await tell(env, "d", and_then="end")
        everything = ["a", "b", "c", "c", "d"]
        assert await before == everything
        assert await middle == everything
        assert await values(env.engine.handle("r").stream("log")) == everything
        await env.restart()
        assert await values(env.engine.handle("r").stream("log")) == everything


async def test_a_reader_resumes_after_an_offset(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        await tell(env, *range(10))
        await env.quiet()
        seen: list[Any] = []
        last = 0
        async with aclosing(run.stream("log")) as items:  # type: ignore[type-var]
            async for item in items:
                seen.append(item.value)
                last = item.offset
                if item.value == 4:
                    break
        await tell(env, "x", and_then="end")
        assert last == 5
        assert seen + await values(run.stream("log", after=last)) == [*range(10), "x"]
        assert await values(run.stream("log", after=11)) == []
        assert await values(run.stream("log", after=2**62)) == []


async def test_reading_without_following_ends_with_what_is_there(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        assert await values(run.stream("log", follow=False)) == []
        await tell(env, "a", "b")
        await env.quiet()
        assert await values(run.stream("log", follow=False)) == ["a", "b"]
        assert await values(run.stream("log", after=1, follow=False)) == ["b"]
        assert await values(run.stream("another", follow=False)) == []


@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_readers_end_when_the_run_fails_or_is_cancelled(how: str, source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        reading = asyncio.ensure_future(values(run.stream("log")))
        waiting_in_vain = asyncio.ensure_future(values(run.stream("nobody writes here")))
        await tell(env, "a", and_then="fail" if how == "fail" else "go on")
        await env.quiet()
        if how == "cancel":
            assert not reading.done()
            await run.cancel()
        assert await reading == ["a"]
        assert await waiting_in_vain == []
        assert await run.published("count") == 1


async def test_a_failed_run_that_is_retried_can_be_followed_again(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        await tell(env, "a", and_then="let a step speak")
        await tell(env, "b", and_then="fail")
        assert await values(run.stream("log")) == ["a", "a", "b"]
        with pytest.raises(RunFailed):
            await run.result()
        # Nothing is archived: what failed is the workflow's own code, which fails again and says nothing anew.
        await env.engine.handle("r").retry()
        assert await values(run.stream("log")) == ["a", "a", "b"]


async def test_a_paused_run_is_followed_on_when_it_is_resumed(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        reading = asyncio.ensure_future(values(run.stream("log")))
        await tell(env, "a")
        await env.quiet()
        await env.engine.handle("r").pause()
        await env.engine.handle("r").resume()
        await tell(env, "b", and_then="end")
        assert await reading == ["a", "b"]


async def test_many_readers_each_get_everything(source: StoreSource) -> None:
    async with environment(source) as env:
        runs = [await env.engine.start(speaker(), id=f"r-{n}") for n in range(5)]
        reading = [asyncio.ensure_future(values(run.stream("log"))) for run in runs for _ in range(40)]
        for n in range(5):
            await tell(env, n, "x", to=f"r-{n}")
            await tell(env, "y", and_then="end", to=f"r-{n}")
        found = await asyncio.gather(*reading)
        assert found == [[n, "x", "y"] for n in range(5) for _ in range(40)]
        assert env.engine.session.followers.readers == {}


async def test_a_reader_that_is_cancelled_or_breaks_off_leaves_nothing_behind(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        reading = asyncio.ensure_future(values(run.stream("log")))
        await env.quiet()
        assert len(env.engine.session.followers.readers["r"]) == 1
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert env.engine.session.followers.readers == {}
        await tell(env, "a", "b")
        await env.quiet()
        async for _ in run.stream("log"):
            break
        assert env.engine.session.followers.readers == {}
        items = aiter(run.stream("log"))
        assert await take(items, 1) == ["a"]
        await tell(env, "c", and_then="end")
        assert await values(items) == ["b", "c"]


async def test_the_streams_of_a_run_are_named_with_how_long_they_are(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(speaker(), id="r")
        await env.quiet()
        assert await env.engine.handle("r").streams() == {}
        await tell(env, "a", "b")
        await env.quiet()
        assert await env.engine.handle("r").streams() == {"log": 2}
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").streams()


class Counting(StoreProxy):
    """Counts pages that are read."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.pages = 0

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        self.pages += 1
        return await super().stream(run_id, name, after=after, limit=limit)


async def test_a_reader_of_this_engines_run_asks_the_store_only_when_there_is_news(source: StoreSource) -> None:
    stores: list[Counting] = []

    def watch(inner: Store) -> Store:
        stores.append(Counting(inner))
        return stores[-1]

    async with environment(source, watch=watch) as env:
        await env.engine.start(speaker(), id="r")
        await env.engine.start(speaker(), id="other")
        await env.quiet()
        reading = asyncio.ensure_future(values(env.engine.handle("r").stream("log")))
        await env.quiet()
        assert stores[0].pages == 1
        await tell(env, "not for this reader", to="other")
        await env.advance(3_600)
        assert stores[0].pages == 1
        await tell(env, "a", and_then="end")
        assert await reading == ["a"]
        assert stores[0].pages <= 4


async def test_more_than_a_page_and_large_values_arrive_whole(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(speaker(), id="r")
        reading = asyncio.ensure_future(values(run.stream("log")))
        large = "ä" * 900_000
        numbers = list(range(1_000))
        await tell(env, *numbers)
        for _ in range(5):
            await tell(env, large)
        await tell(env, and_then="end")
        found = await reading
        assert found[:1_000] == numbers
        assert found[1_000:] == [large] * 5
        assert 5 * len(large) > STREAM_PAGE_CHARS_MAX
        assert await values(run.stream("log")) == found


# Other engines, and engines that stop.


async def test_a_run_of_another_engine_can_be_followed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Engine(url, workflows=[speaker]) as owner, Engine(url, workflows=[]) as onlooker:
        await owner.start(speaker(), id="r")
        reading = asyncio.ensure_future(values(onlooker.handle("r").stream("log")))
        await owner.send(more(["a"]), to="r")
        await owner.send(more(["b"], "end"), to="r")
        assert await reading == ["a", "b"]
        assert await onlooker.handle("r").published() == {"count": 2}


@pytest.mark.parametrize("how", ["shutdown", "kill"])
async def test_readers_are_told_when_the_engine_stops(how: str, source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(speaker(), id="r")
        items = aiter(env.engine.handle("r").stream("log"))
        await tell(env, "a")
        assert await take(items, 1) == ["a"]
        reading = asyncio.ensure_future(anext(items))
        await env.quiet()
        if how == "shutdown":
            await env.engine.shutdown()
        else:
            env.kill()
        with pytest.raises(EngineStopped):
            await reading
        with pytest.raises(EngineStopped):
            await env.engine.handle("r").published()
        with pytest.raises(EngineStopped):
            await values(env.engine.handle("r").stream("log"))
        await env.restart()
        await tell(env, "b", and_then="end")
        items = env.engine.handle("r").stream("log", after=1)
        assert await values(items) == ["b"]


async def test_a_follower_whose_process_dies_goes_on_where_it_was(source: StoreSource) -> None:
    fault = Fault("before_effects", when=lambda batch: any(item.value == '"c"' for item in batch.stream_items))
    seen: list[StreamItemView] = []

    async def scenario(env: Environment) -> None:
        run = await env.engine.start(speaker(), id="r")
        seen.extend([item async for item in run.stream("log", after=len(seen), follow=False)])
        for word in ["a", "b", "c", "d"]:
            await env.engine.send(more([word], "end" if word == "d" else "go on"), to="r", key=word)
        seen.extend([item async for item in run.stream("log", after=len(seen))])

    async with environment(source, fault=fault) as env:
        await env.survive(scenario)
        assert env.restarts == 1
        assert [(item.offset, item.value) for item in seen] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


# What is refused, and what is not there.


async def test_runs_and_keys_that_are_not_there(source: StoreSource) -> None:
    async with environment(source) as env:
        with pytest.raises(RunNotFound) as missing:
            await env.engine.handle("unknown").published()
        assert missing.value.run_id == "unknown"
        with pytest.raises(RunNotFound):
            await env.engine.handle("unknown").published("count")
        for follow in (True, False):
            with pytest.raises(RunNotFound):
                await anext(aiter(env.engine.handle("unknown").stream("log", follow=follow)))
        assert env.engine.session.followers.readers == {}
        run = await env.engine.start(speaker(), id="r")
        await env.quiet()
        with pytest.raises(NotPublished, match="nothing under 'progress' so far") as never:
            await run.published("progress")
        assert (never.value.run_id, never.value.key) == ("r", "progress")
        assert isinstance(never.value, LookupError)


BAD_NAMES: list[Any] = ["", "x" * 501, "nul\0", "\ud800", 17, b"bytes"]


@pytest.mark.parametrize("bad", BAD_NAMES)
async def test_bad_ids_keys_and_names_are_refused_at_once(bad: Any) -> None:
    async with environment(None) as env:
        with pytest.raises(InvalidArguments):
            await env.engine.handle(bad).published()
        with pytest.raises(InvalidArguments):
            await env.engine.handle("r").published(bad)
        with pytest.raises(InvalidArguments):
            env.engine.handle(bad).stream("log")
        with pytest.raises(InvalidArguments):
            env.engine.handle("r").stream(bad)
        with pytest.raises(InvalidArguments):
            env.engine.handle("r").stream(bad)


@pytest.mark.parametrize("after", [-1, 2**63, 1.0, "1", None, True])
async def test_an_offset_is_a_whole_number(after: Any) -> None:
    async with environment(None) as env:
        with pytest.raises(InvalidArguments, match=r"offset|stream\(\): after is a whole number"):
            env.engine.handle("r").stream("log", after=after)


async def test_an_engine_that_was_not_opened_reads_nothing() -> None:
    with pytest.raises(EngineStopped):
        await values(Engine("memory://").handle("r").stream("log"))
