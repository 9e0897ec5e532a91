"""Published values and streams of runs, on all engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from perdure.errors import InvalidArguments, NotPublished
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.models.functions.publications import RESERVED
from perdure.session import Session
from perdure.values.checks import checked_text
from perdure.views import StreamItemView, plain_value, stream_item_view

_PAGE: Final = 200
_POLL_S: Final = 0.25  # how often the store is polled for runs that this engine does not own


async def published_by(session: Session, run_id: str, key: str | None) -> Any:
    """Return the values that a run has published, by key. With `key`, return the value under that key.

    Raises RunNotFound, NotPublished.
    """
    session.check_open()
    checked_text(run_id, "a run's id")
    if key is not None:
        checked_text(key, "a key")
    found = await session.caller_store.published(run_id, key)
    if key is None:
        return {one.key: plain_value(one.value, session.codec, _place(one)) for one in found if one.key not in RESERVED}
    if not found:
        raise NotPublished(
            f"run {run_id!r} has published nothing under {key!r} so far; published() returns all its values",
            run_id=run_id,
            key=key,
        )
    return plain_value(found[0].value, session.codec, _place(found[0]))


def stream_of(session: Session, run_id: str, name: str, after: int, follow: bool) -> AsyncIterator[StreamItemView]:
    """Return the items of a run's stream with an offset greater than `after`. Raises InvalidArguments at once."""
    checked_text(run_id, "a run's id")
    checked_text(name, "a stream's name")
    if type(after) is not int or not 0 <= after < 2**63:
        raise InvalidArguments(f"after must be the offset of the last item that you have, or 0, not {after!r:.80}")
    return _items(session, run_id, name, after, follow)


async def streams_of(session: Session, run_id: str) -> dict[str, int]:
    """Return the names of a run's streams, and the offset of the last item of each. Raises RunNotFound."""
    session.check_open()
    return await session.caller_store.streams(checked_text(run_id, "a run's id"))


async def _items(session: Session, run_id: str, name: str, after: int, follow: bool) -> AsyncIterator[StreamItemView]:
    while page := await _next_page(session, run_id, name, after, follow):
        for item in page:
            yield stream_item_view(item, session.codec)
        after = page[-1].offset


async def _next_page(session: Session, run_id: str, name: str, after: int, follow: bool) -> tuple[StreamItem, ...]:
    """Wait for the next items, and return them. The result is empty if no more items will come."""
    # Subscribe before reading, so that no change between the two is missed. The subscription ends before the caller
    # gets the items, because the caller may never read further.
    with session.followers.changes_of(run_id) as changes:
        while True:
            session.check_open(to_start=follow)
            changes.clear()
            page = await session.caller_store.stream(run_id, name, after=after, limit=_PAGE)
            if page.items or page.has_ended or not follow:
                return page.items
            is_mine = session.coordinator.loaded(run_id) is not None
            with suppress(TimeoutError):
                await asyncio.wait_for(changes.wait(), None if is_mine else _POLL_S)


def _place(value: PublishedValue) -> str:
    return f"published.value of key {value.key!r} of run {value.run_id!r}"


__all__ = ["published_by", "stream_of", "streams_of"]
