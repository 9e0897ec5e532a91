"""What steps append to streams of their run, from coroutines and from threads.

A step's items are taken in order; while some of them are being committed the next ones gather, so that a chatty step
has one op in the queue at a time, and its items share commits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import EngineStopped, QueueFull
from perdure.kernel.ops import Append, Op
from perdure.kernel.records import StreamItem
from perdure.ports import Clock, Codec
from perdure.values.checks import checked_text
from perdure.values.json import to_text

if TYPE_CHECKING:
    from perdure.models.functions.heartbeats import Pulse
    from perdure.models.functions.steps import Execution

log = logging.getLogger("perdure")

# How much of one step may wait to be written; an item counts for at least its overhead.
UNWRITTEN_BYTES_MAX: Final = 8 * 1024 * 1024
_ITEM_OVERHEAD_BYTES: Final = 200
_OP_BYTES_MAX: Final = 1024 * 1024


def item_text(stream: str, value: Any, payload_max: int) -> str:
    """An item as JSON. Raises UnstorableValue, and InvalidArguments for the stream's name."""
    checked_text(stream, "a stream's name")
    return to_text(value, f"an item of stream {stream!r}", payload_max)


class Word(Struct, eq=False):
    """An item; `written` is done when it is durable, or of no matter any more."""

    item: StreamItem
    size: int
    written: Future[None]


class Speaker:
    """The items of one step that are not written yet."""

    __slots__ = ("_room", "_unwritten_bytes", "is_sending", "last", "words")

    def __init__(self) -> None:
        self._room = threading.Condition()
        self._unwritten_bytes = 0
        self.words: deque[Word] = deque()
        self.last: Future[None] | None = None  # of the last item that came
        self.is_sending = False

    def enter(self, size: int, loop: asyncio.AbstractEventLoop, stream: str) -> None:
        """Count an item that is about to be written. A thread waits until there is room. Raises QueueFull."""
        with self._room:
            while self._unwritten_bytes and self._unwritten_bytes + size > UNWRITTEN_BYTES_MAX:
                if _get_running_loop() is not None:
                    raise QueueFull(
                        f"more than {UNWRITTEN_BYTES_MAX:,} bytes of this step wait to be written to streams: now and "
                        "then `await current_step().flush()`, to go no faster than the store does",
                        stream=stream,
                    )
                self._room.wait(1)
                if loop.is_closed():  # Nobody will make room any more.
                    break
            self._unwritten_bytes += size

    def leave(self, words: Sequence[Word]) -> None:
        """These are written, or never will be."""
        with self._room:
            self._unwritten_bytes -= sum(word.size for word in words)
            self._room.notify_all()
        for word in words:
            word.written.set_result(None)

    def next(self) -> list[Word]:
        """What goes into the next op."""
        words: list[Word] = []
        size = 0
        while self.words and size < _OP_BYTES_MAX:
            words.append(self.words.popleft())
            size += words[-1].size
        return words

    def discard_pending(self) -> tuple[StreamItem, ...]:
        """Give up what is not on its way yet: the items."""
        words, self.words = self.words, deque()
        self.leave(list(words))
        return tuple(word.item for word in words)


class StreamWriter:
    """Takes what an engine's steps append, and has it committed."""

    def __init__(
        self,
        clock: Clock,
        codec: Codec,
        payload_max: int,
        submit_internal: Callable[[Sequence[Op]], Awaitable[list[Any]]],
        background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._clock = clock
        self._codec = codec
        self._payload_max = payload_max
        self._insist = submit_internal
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._first = threading.Lock()

    def append(self, pulse: Pulse, stream: str, value: Any) -> None:
        """Append an item, from whatever thread. Raises UnstorableValue, InvalidArguments, QueueFull."""
        self.relay(pulse, stream, item_text(stream, value, self._payload_max))

    async def flush(self, pulse: Pulse) -> None:
        """Wait until all that the step has appended is durable."""
        speaker = pulse.execution.speaker
        if speaker is not None and speaker.last is not None:
            await asyncio.wrap_future(speaker.last)

    def relay(self, pulse: Pulse, stream: str, text: str) -> None:
        """The same with the item as JSON. Raises QueueFull."""
        step = pulse.execution
        if step.pulse is not pulse:
            return
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # Who stops waiting for it does not take it back.
        speaker = step.speaker
        if speaker is None:
            with self._first:
                speaker = step.speaker = step.speaker or Speaker()
        word = Word(
            StreamItem(
                run_id=step.live.id,
                stream=stream,
                value=text,
                at=0,
                position=step.request.position,
                attempt=pulse.attempt,
            ),
            len(text) + _ITEM_OVERHEAD_BYTES,
            written,
        )
        speaker.enter(word.size, self._loop, stream)
        speaker.last = written
        if _get_running_loop() is self._loop:
            self._take(pulse, speaker, word)
        else:
            try:
                self._loop.call_soon_threadsafe(self._take, pulse, speaker, word)
            except RuntimeError:  # The loop is closed: the engine is gone, and the step with it.
                speaker.leave([word])

    def _take(self, pulse: Pulse, speaker: Speaker, word: Word) -> None:
        step = pulse.execution
        if step.pulse is not pulse:
            speaker.leave([word])
            return
        try:
            # A codec need not know of threads, so it is called here.
            word.item = replace(word.item, value=self._codec.encode(word.item.value), at=self._clock.now())
        except Exception:
            log.exception("run %s: an item of stream %r could not be encoded", step.live.id, word.item.stream)
            speaker.leave([word])
            return
        speaker.words.append(word)
        if not speaker.is_sending:
            speaker.is_sending = True
            self._background(self._send(step, speaker))

    async def _send(self, step: Execution, speaker: Speaker) -> None:
        words: list[Word] = []
        try:
            while words := speaker.next():
                items = tuple(word.item for word in words)
                append = Append(run_id=step.live.id, at=items[-1].at, claim=step.live.claim, stream_items=items)
                await self._insist([append])  # What it was refused for, if it was, the coordinator has logged.
                speaker.leave(words)
                words = []
        except EngineStopped:
            pass
        finally:
            speaker.is_sending = False
            speaker.leave(words)
            speaker.discard_pending()


__all__ = ["UNWRITTEN_BYTES_MAX", "Speaker", "StreamWriter", "item_text"]
