"""Values that runs publish and items that they append. They are stored in order and only once, and are read in
pages.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import CommitConflict, CommitRefused, RunNotFound
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.kernel.status import Status
from perdure.ports import STREAM_PAGE_CHARS_MAX, Store
from perdure.testing.conformance.base import Author, Rules, a_run, an_entry, insert, update

Mark = tuple[int, int]


def an_item(value: object, mark: Mark | None = None, *, run_id: str = "r-1", stream: str = "log", **more: Any) -> Any:
    return StreamItem(run_id=run_id, stream=stream, value=str(value), at=5, mark=mark, **more)


def a_value(value: object, mark: Mark, *, run_id: str = "r-1", key: str = "progress") -> dict[tuple[str, str], Any]:
    """Return a published value in the form that a batch has."""
    return {(run_id, key): PublishedValue(run_id=run_id, key=key, value=str(value), at=5, mark=mark)}


async def _items(store: Store, run_id: str = "r-1", stream: str = "log", after: int = 0) -> list[tuple[int, str]]:
    page = await store.stream(run_id, stream, after=after, limit=10_000)
    return [(item.offset, item.value) for item in page.items]


async def _values(store: Store, run_id: str = "r-1", key: str | None = None) -> dict[str, str]:
    return {one.key: one.value for one in await store.published(run_id, key)}


class StreamRules(Rules):
    async def test_reading_of_runs_that_are_not_there_and_of_runs_that_say_nothing(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()))
            assert await author.store.published("r-1") == []
            assert await author.store.published("r-1", "progress") == []
            page = await author.store.stream("r-1", "log", after=0, limit=10)
            assert (page.items, page.has_ended) == ((), False)
            with pytest.raises(RunNotFound):
                await author.store.published("unknown")
            with pytest.raises(RunNotFound):
                await author.store.stream("unknown", "log", after=0, limit=10)
            assert await author.store.streams("r-1") == {}
            with pytest.raises(RunNotFound):
                await author.store.streams("unknown")

    async def test_items_of_all_streams_get_offsets_in_the_order_of_commits(self) -> None:
        async with self.author() as author:
            items = [
                an_item("a", (0, 1)),
                an_item("x", (0, 2), stream="other"),
                an_item("b", position="1", attempt=2),
                an_item("elsewhere", (0, 1), run_id="r-2"),
            ]
            await author.commit(insert(a_run()), insert(a_run("r-2")), stream_items=items)
            await author.commit(stream_items=[an_item("c", (1, 1)), an_item("y", stream="other")])
            assert await author.store.streams("r-1") == {"log": 3, "other": 2}
            page = await author.store.stream("r-1", "log", after=0, limit=10)
            assert page.items == (
                StreamItem(run_id="r-1", stream="log", offset=1, value="a", at=5),
                StreamItem(run_id="r-1", stream="log", offset=2, value="b", at=5, position="1", attempt=2),
                StreamItem(run_id="r-1", stream="log", offset=3, value="c", at=5),
            )
            assert await _items(author.store, stream="other") == [(1, "x"), (2, "y")]
            assert await _items(author.store, "r-2") == [(1, "elsewhere")]

    async def test_pages_begin_after_an_offset_and_are_bounded(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), stream_items=[an_item(n) for n in range(1, 301)])
            page = await author.store.stream("r-1", "log", after=298, limit=10)
            assert [item.value for item in page.items] == ["299", "300"]
            assert len((await author.store.stream("r-1", "log", after=7, limit=100)).items) == 100
            assert (await author.store.stream("r-1", "log", after=0, limit=0)).items == ()
            assert (await author.store.stream("r-1", "log", after=2**62, limit=1)).items == ()

    async def test_a_page_of_large_items_is_cut_but_never_empty(self) -> None:
        async with self.author() as author:
            large = '"' + "ä" * (STREAM_PAGE_CHARS_MAX // 2 + 1) + '"'
            await author.commit(insert(a_run()), stream_items=[an_item(large) for _ in range(3)])
            first = await author.store.stream("r-1", "log", after=0, limit=10)
            assert [item.offset for item in first.items] == [1, 2]
            second = await author.store.stream("r-1", "log", after=2, limit=10)
            assert [(item.offset, item.value) for item in second.items] == [(3, large)]

    async def test_a_page_says_whether_the_run_has_ended(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(owner=author.id)))
            ended = update(a_run(owner=author.id), status=Status.SUCCEEDED, owner=None, completed_at=7)
            await author.commit(ended, stream_items=[an_item("last words")])
            page = await author.store.stream("r-1", "log", after=0, limit=10)
            assert [item.value for item in page.items] == ["last words"]
            assert page.has_ended

    async def test_what_is_said_again_is_there_once(self) -> None:
        async with self.author() as author:
            said = [an_item("a", (0, 1)), an_item("b", (0, 2)), an_item("x", (0, 3), stream="other")]
            await author.commit(insert(a_run()), stream_items=said)
            await author.commit(stream_items=[*said, an_item("c", (0, 4)), an_item("c", (0, 4))])
            assert await _items(author.store) == [(1, "a"), (2, "b"), (3, "c")]
            assert await _items(author.store, stream="other") == [(1, "x")]

    async def test_what_steps_append_is_never_taken_for_the_same(self) -> None:
        async with self.author() as author:
            twice = [an_item("a", position="1", attempt=1)] * 2
            await author.commit(insert(a_run()), stream_items=twice)
            await author.commit(stream_items=twice)
            assert await _items(author.store) == [(n, "a") for n in range(1, 5)]

    async def test_a_published_value_is_replaced_by_a_newer_one_only(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), insert(a_run("r-2")), published=a_value(1, (0, 2)))
            for value, mark in ((2, (0, 1)), (3, (0, 2))):
                await author.commit(published=a_value(value, mark))
                assert await _values(author.store) == {"progress": "1"}
            await author.commit(published=a_value(4, (3, 1)) | a_value("9", (3, 2), key="other"))
            assert await _values(author.store) == {"other": "9", "progress": "4"}
            assert await _values(author.store, key="other") == {"other": "9"}
            assert await _values(author.store, "r-2") == {}
            (stored,) = await author.store.published("r-1", "progress")
            assert stored == PublishedValue(run_id="r-1", key="progress", value="4", at=5)

    async def test_after_a_retry_what_was_set_aside_is_said_anew_and_nothing_is_lost(self) -> None:
        async with self.author() as author:
            said = [an_item("zero", (0, 1)), an_item("one", (1, 1)), an_item("two", (2, 1))]
            published = a_value("old", (2, 2)) | a_value("kept", (0, 2), key="first")
            journal = [an_entry(seq=1), an_entry(seq=2)]
            await author.commit(insert(a_run()), journal=journal, stream_items=said, published=published)
            await author.commit(archive=[("r-1", 2, 1)])
            # The run replays. It publishes again those values that may not have been published, and goes on.
            again = a_value("stale", (1, 9)) | a_value("stale", (0, 2), key="first")
            await author.commit(stream_items=said[:2], published=again)
            assert await _values(author.store) == {"first": "kept", "progress": "old"}
            await author.commit(stream_items=[an_item("two anew", (2, 1))], published=a_value("new", (2, 1)))
            assert await _values(author.store) == {"first": "kept", "progress": "new"}
            assert [value for _, value in await _items(author.store)] == ["zero", "one", "two", "two anew"]

    async def test_a_run_with_another_input_begins_anew_and_keeps_what_it_said(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()))
            said = [an_item("zero", (0, 1)), an_item("one", (1, 1))]
            replaced = msgspec.structs.replace(update(a_run()), input="2")
            await author.commit(replaced, stream_items=said, published=a_value("old", (1, 2)))
            assert await _values(author.store) == {"progress": "old"}
            await author.commit(stream_items=[an_item("zero anew", (0, 1))], published=a_value("new", (0, 1)))
            assert [value for _, value in await _items(author.store)] == ["zero", "one", "zero anew"]
            assert await _values(author.store) == {"progress": "new"}

    async def test_a_commit_that_fails_says_nothing(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(owner=author.id)))
            said: dict[str, Any] = {"stream_items": [an_item("a")], "published": a_value(1, (0, 1))}
            with pytest.raises(CommitConflict):
                await author.commit(update(a_run(owner=author.id, version=9)), **said)
            with pytest.raises(CommitRefused):
                await author.commit(stream_items=[an_item("a"), an_item("\ud800")])
            with pytest.raises(CommitRefused):
                await author.commit(published=a_value("\ud800", (0, 1)))
            assert await _items(author.store) == []
            assert await _values(author.store) == {}

    async def test_a_batch_sent_again_says_nothing_again(self) -> None:
        async with self.author() as author:
            batch = author.batch(insert(a_run()), stream_items=[an_item("a", position="1", attempt=1)])
            await author.store.commit(batch)
            await author.store.commit(batch)
            assert await _items(author.store) == [(1, "a")]

    @pytest.mark.parametrize("text", ["", " ", "'", "%_?*", "𝕌\u202e\ufeff", "line\nline\ttab", "null"])
    async def test_odd_names_come_back(self, text: str) -> None:
        async with self.author() as author:
            item = an_item(text, (0, 1), stream=text, position=text)
            await author.commit(insert(a_run()), stream_items=[item], published=a_value(text, (0, 2), key=text))
            page = await author.store.stream("r-1", text, after=0, limit=1)
            assert [(one.stream, one.value, one.position) for one in page.items] == [(text, text, text)]
            assert await _values(author.store, key=text) == {text: text}

    async def test_engines_that_share_a_database_append_at_the_same_time(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run()))

            async def work(author: Author) -> None:
                for i in range(20):
                    await author.commit(stream_items=[an_item(f"{author.id}-{i}")])

            await asyncio.gather(work(one), work(other))
            items = await _items(other.store)
            assert [offset for offset, _ in items] == list(range(1, 41))
            for author in (one, other):
                mine = [value for _, value in items if value.startswith(author.id)]
                assert mine == [f"{author.id}-{i}" for i in range(20)]
