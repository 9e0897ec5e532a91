"""The queue of ops. Bounded for callers from outside, who feel it as waiting; never for the engine itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from perdure.kernel.ops import Op, Retry


class Item:
    """An op in the queue and whoever waits for its reply."""

    __slots__ = ("op", "outside", "reply")

    def __init__(self, op: Op, reply: asyncio.Future[Any] | None, outside: bool) -> None:
        self.op = op
        self.reply = reply
        self.outside = outside

    def answer(self, value: Any) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(value)

    def refuse(self, error: BaseException) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)


class Inbox:
    """First in, first out. `room` waits until fewer than `outside_max` ops from outside are unanswered."""

    def __init__(self, *, outside_max: int, batch_ops_max: int, batch_bytes_max: int) -> None:
        self._items: deque[Item] = deque()
        self._outside = asyncio.Semaphore(outside_max)
        self._batch_ops_max = batch_ops_max
        self._batch_bytes_max = batch_bytes_max
        self._awaited: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    async def room(self) -> None:
        await self._outside.acquire()

    def settled(self, item: Item) -> None:
        """An op from outside has been answered: there is room for another."""
        if item.outside:
            self.leave()

    def leave(self) -> None:
        """Let the next caller in."""
        self._outside.release()

    def put(self, item: Item) -> None:
        self._items.append(item)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def put_back(self, items: Sequence[Item]) -> None:
        """Those of what `empty` gave that are still to be done."""
        for item in items:
            self.put(item)

    def take(self) -> list[Item]:
        """The ops of the next batch: all that wait, up to the bounds.

        A retry rewrites a run's journal, so it starts a batch of its own instead of joining writes that it undoes.
        """
        taken: list[Item] = []
        size = 0
        queue = self._items
        while queue and len(taken) < self._batch_ops_max:
            item = queue[0]
            size += item.op.payload_bytes
            if taken and (size > self._batch_bytes_max or type(item.op) is Retry):
                break
            taken.append(queue.popleft())
        return taken

    def empty(self) -> list[Item]:
        items = list(self._items)
        self._items.clear()
        return items

    async def arrival(self) -> None:
        """Wait until there is an op."""
        if not self._items:
            self._awaited = asyncio.get_running_loop().create_future()
            try:
                await self._awaited
            finally:
                self._awaited = None
