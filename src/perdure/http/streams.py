"""Server-sent events: their format, the limits of open streams, and their end.

A stream sends something at least every few seconds. So each side notices when the other side is gone. A stream ends by
itself after a while. A browser then connects again with the id of the last event (Last-Event-ID), and goes on from
there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from litestar.response import Stream
from msgspec import Struct

from perdure.errors import PerdureError
from perdure.http.access import Asking, caller_of, check_again
from perdure.http.problems import Refused

log = logging.getLogger("perdure.http")

MEDIA_TYPE: Final = "text/event-stream"
ALIVE_S: Final = 15.0
_ALIVE: Final = b": still here\n\n"
_PLACE: Final = "perdure_stream"
_RETRY: Final = b"retry: 1000\n\n"
_FIRST: Final = asyncio.FIRST_COMPLETED


class StreamEvent(Struct, frozen=True, kw_only=True):
    """One event of a stream. A reader can continue only after an event that has an `id`."""

    event: str
    data: Any
    id: str | None = None


class Streams:
    """The streams of a server. At most `streams_max` are open at a time, and at most `token_streams_max` of one token.
    Each lasts at most `stream_s_max` seconds. A stream is counted from the time when its request is admitted until the
    request has ended. Every `check_s` seconds, a stream checks whether its reader may still read. If not, it ends.
    """

    def __init__(
        self, streams_max: int, token_streams_max: int, stream_s_max: float, poll_s: float, check_s: float = 5
    ) -> None:
        self.poll_s = poll_s
        self.check_s = check_s
        self._streams_max = streams_max
        self._token_streams_max = token_streams_max
        self._stream_s_max = stream_s_max
        self._open: Counter[str] = Counter()  # by token; all callers without a token count as one caller
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End all streams at once, because the server stops."""
        self._ending.set()

    @property
    def open(self) -> int:
        """How many streams are open."""
        return self._open.total()

    def response(self, events: AsyncIterator[StreamEvent], asking: Asking) -> Stream:
        """Return a response that sends the events as they arrive. Raises Refused if too many streams are open."""
        caller = caller_of(asking)
        token = caller.name if caller.by_token else ""
        if self.open >= self._streams_max:
            raise _too_many(f"{self.open} streams are open, which is the limit")
        if token and self._open[token] >= self._token_streams_max:
            raise _too_many(f"{self._open[token]} streams of the token {token!r} are open, which is its limit")
        self._open[token] += 1
        asking.scope["state"][_PLACE] = token
        return Stream(self._written(events, asking), media_type=MEDIA_TYPE, headers={"cache-control": "no-store"})

    def ended(self, state: dict[str, Any]) -> None:
        """If a request has a stream, stop counting it. The shield calls this when a request has ended, even after an
        error.
        """
        token = state.pop(_PLACE, None)
        if token is not None:
            self._open[token] -= 1
            if not self._open[token]:
                del self._open[token]

    async def _written(self, events: AsyncIterator[StreamEvent], asking: Asking) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._stream_s_max
        sent_at = checked_at = loop.time()
        ending: asyncio.Future[Any] = asyncio.ensure_future(self._ending.wait())
        upcoming: asyncio.Future[Any] | None = None
        try:
            yield _RETRY
            while (left_s := ends_at - loop.time()) > 0 and not ending.done():
                upcoming = upcoming or asyncio.ensure_future(_next(events))
                due_s = min(sent_at + ALIVE_S, checked_at + self.check_s) - loop.time()
                await asyncio.wait({upcoming, ending}, timeout=max(0, min(left_s, due_s)), return_when=_FIRST)
                if loop.time() >= checked_at + self.check_s:
                    if not await may_still_read(asking):
                        return
                    checked_at = loop.time()
                if upcoming.done():
                    try:
                        text = written(upcoming.result())
                    except StopAsyncIteration:
                        return
                    upcoming = None
                    sent_at = loop.time()
                    yield text
                elif not ending.done() and loop.time() >= sent_at + ALIVE_S:
                    sent_at = loop.time()
                    yield _ALIVE
        finally:
            ending.cancel()
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()


async def may_still_read(asking: Asking) -> bool:
    """Return whether the caller may still read. If the store does not answer, return False. The caller can connect
    again.
    """
    try:
        await check_again(asking)
    except (Refused, PerdureError) as error:
        log.info("a stream ends: %s", error)
        return False
    return True


def _too_many(detail: str) -> Refused:
    return Refused("too_many_streams", detail, {"retry-after": "5"})


async def _next(events: AsyncIterator[StreamEvent]) -> StreamEvent:
    return await anext(events)


def written(event: StreamEvent) -> bytes:
    """Return an event in the form in which it is sent. The data is JSON without line breaks, so it fits into one
    line.
    """
    lines = [f"event: {event.event}".encode(), b"data: " + msgspec.json.encode(event.data)]
    if event.id is not None:
        lines.insert(0, f"id: {event.id}".encode())
    return b"\n".join(lines) + b"\n\n"


async def looked(look: Callable[[], Awaitable[list[StreamEvent] | None]], pause_s: float) -> AsyncIterator[StreamEvent]:
    """Yield the events that `look` finds. After each pause `look` is called again, until it returns None. None means
    that no more events will come.
    """
    while (found := await look()) is not None:
        for event in found:
            yield event
        await asyncio.sleep(pause_s)


__all__ = ["MEDIA_TYPE", "StreamEvent", "Streams", "looked", "may_still_read", "written"]
