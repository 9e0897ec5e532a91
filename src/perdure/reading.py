"""The engine's verbs for reading what runs say: published values and streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, overload

from perdure.arguments import checked
from perdure.coordinator.coordinator import Coordinator
from perdure.errors import InvalidArguments, NotPublished
from perdure.kernel.records import PublishedValue, StreamItem
from perdure.models.functions.checks import checked_text
from perdure.models.functions.publishing import RESERVED
from perdure.ports import Codec, Store
from perdure.views import StreamItemView, plain_value, stream_item_view

_PAGE = 200
_POLL_S = 0.25  # for runs that another engine has, or none


@checked
class Reading:
    """What an engine that has these parts can read. Other engines' runs can be read as well as its own."""

    _coordinator: Coordinator
    _patient_store: Store
    _codec: Codec
    _readers: dict[str, set[asyncio.Event]]

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    @overload
    async def published(self, id: str) -> dict[str, Any]: ...

    @overload
    async def published(self, id: str, key: str) -> Any: ...

    async def published(self, id: str, key: str | None = None) -> Any:
        """What a run shows now: all of it by key, or the value under one. Values are plain JSON values.

        Stays when the run has ended. Raises RunNotFound, and NotPublished if there is nothing under the key.
        """
        self._check_open()
        checked_text(id, "a run's id")
        if key is not None:
            checked_text(key, "a key")
        found = await self._patient_store.published(id, key)
        if key is None:
            return {
                one.key: plain_value(one.value, self._codec, _place(one)) for one in found if one.key not in RESERVED
            }
        if not found:
            raise NotPublished(
                f"run {id!r} has published nothing under {key!r} so far; published({id!r}) gives all that it has",
                run_id=id,
                key=key,
            )
        return plain_value(found[0].value, self._codec, _place(found[0]))

    def stream(self, id: str, name: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[StreamItemView]:
        """The items of a run's stream with an offset greater than `after`, in order: `async for item in stream(…)`.

        Goes on while the run lives, and ends when the run has ended and all was read; with `follow=False` it ends with
        what is there. An item is given once it is durable. To go on later, after a crash of the reader too, pass the
        offset of the last item as `after`. A stream that nobody has written to is empty. Raises InvalidArguments at
        once; RunNotFound, StoreError and EngineStopped from the loop.
        """
        checked_text(id, "a run's id")
        checked_text(name, "a stream's name")
        if type(after) is not int or not 0 <= after < 2**63:
            raise InvalidArguments(f"after is the offset of the last item seen, 0 for none, not {after!r:.80}")
        return self._items(id, name, after, follow)

    async def streams(self, id: str) -> dict[str, int]:
        """The names of a run's streams, and the offset of the last item of each. Raises RunNotFound."""
        self._check_open()
        return await self._patient_store.streams(checked_text(id, "a run's id"))

    async def _items(self, run_id: str, name: str, after: int, follow: bool) -> AsyncIterator[StreamItemView]:
        while page := await self._next_page(run_id, name, after, follow):
            for item in page:
                yield stream_item_view(item, self._codec)
            after = page[-1].offset

    async def _next_page(self, run_id: str, name: str, after: int, follow: bool) -> tuple[StreamItem, ...]:
        """The next items as soon as there are some; none if none will come."""
        # It listens before it looks, so that nothing can come in between; and not while its caller has the word, who
        # may never come back.
        news = asyncio.Event()
        self._readers.setdefault(run_id, set()).add(news)
        try:
            while True:
                self._check_open(to_start=follow)
                news.clear()
                page = await self._patient_store.stream(run_id, name, after=after, limit=_PAGE)
                if page.items or page.has_ended or not follow:
                    return page.items
                is_mine = self._coordinator.loaded(run_id) is not None
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), None if is_mine else _POLL_S)
        finally:
            readers = self._readers.get(run_id, set())
            readers.discard(news)
            if not readers:
                self._readers.pop(run_id, None)

    def _wake_readers(self, run_id: str) -> None:
        for news in self._readers.get(run_id, ()):
            news.set()


def _place(value: PublishedValue) -> str:
    return f"published.value of key {value.key!r} of run {value.run_id!r}"


__all__ = ["Reading"]
