"""The stream writer commits the items that steps append to streams of their run, from coroutines and threads.

The items of a step stay in order. While some items are being committed, the next items are collected. So a step that
appends many items has only one op in the queue, and its items share commits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from concurrent.futures import Future
from typing import Any

from msgspec.structs import replace

from perdure.errors import EngineStopped
from perdure.kernel.ops import Append
from perdure.kernel.rows import StreamItem
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.host_parts import HostParts
from perdure.models.functions.step_protocols import AttemptInFlight, StepInFlight
from perdure.models.functions.unwritten_items import ITEM_OVERHEAD_BYTES, UnwrittenItem, UnwrittenItems, item_text

log = logging.getLogger("perdure")


class StreamWriter:
    """Takes the items that an engine's steps append, and commits them."""

    def __init__(self, parts: HostParts, background: BackgroundTasks) -> None:
        self._clock = parts.clock
        self._codec = parts.codec
        self._payload_max = parts.limits.payload_bytes_max
        self._coordinator = parts.coordinator
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._first = threading.Lock()

    def append(self, pulse: AttemptInFlight, stream: str, value: Any) -> None:
        """Append an item. This can be called from any thread. Raises UnstorableValue, InvalidArguments, QueueFull."""
        self.relay(pulse, stream, item_text(stream, value, self._payload_max))

    async def flush(self, pulse: AttemptInFlight) -> None:
        """Wait until all items that the step has appended are durable."""
        unwritten = pulse.execution.unwritten
        if unwritten is not None and unwritten.last is not None:
            await asyncio.wrap_future(unwritten.last)

    def relay(self, pulse: AttemptInFlight, stream: str, text: str) -> None:
        """Append an item that is already JSON. This can be called from any thread. Raises QueueFull."""
        step = pulse.execution
        if step.pulse is not pulse:
            return
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # Cancelling a wait for this future must not cancel the write.
        unwritten = step.unwritten
        if unwritten is None:
            with self._first:
                unwritten = step.unwritten = step.unwritten or UnwrittenItems()
        one = UnwrittenItem(
            StreamItem(
                run_id=step.live.id,
                stream=stream,
                value=text,
                at=0,
                position=step.request.position,
                attempt=pulse.attempt,
            ),
            len(text) + ITEM_OVERHEAD_BYTES,
            written,
        )
        unwritten.enter(one.size, self._loop, stream)
        unwritten.last = written
        if _get_running_loop() is self._loop:
            self._take(pulse, unwritten, one)
        else:
            try:
                self._loop.call_soon_threadsafe(self._take, pulse, unwritten, one)
            except RuntimeError:  # The loop is closed: the engine and the step have ended.
                unwritten.leave([one])

    def _take(self, pulse: AttemptInFlight, unwritten: UnwrittenItems, one: UnwrittenItem) -> None:
        step = pulse.execution
        if step.pulse is not pulse:
            unwritten.leave([one])
            return
        try:
            # A codec does not need to be thread-safe, so it is called on the loop.
            one.item = replace(one.item, value=self._codec.encode(one.item.value), at=self._clock.now())
        except Exception:
            log.exception("run %s: an item of stream %r could not be encoded", step.live.id, one.item.stream)
            unwritten.leave([one])
            return
        unwritten.queue.append(one)
        if not unwritten.is_sending:
            unwritten.is_sending = True
            self._background.start(self._send(step, unwritten))

    async def _send(self, step: StepInFlight, unwritten: UnwrittenItems) -> None:
        batch: list[UnwrittenItem] = []
        try:
            while batch := unwritten.next():
                items = tuple(one.item for one in batch)
                append = Append(run_id=step.live.id, at=items[-1].at, claim=step.live.claim, stream_items=items)
                await self._coordinator.submit_internal([append])  # If the op is refused, the coordinator logs why.
                unwritten.leave(batch)
                batch = []
        except EngineStopped:
            pass
        finally:
            unwritten.is_sending = False
            unwritten.leave(batch)
            unwritten.discard_pending()


__all__ = ["StreamWriter"]
