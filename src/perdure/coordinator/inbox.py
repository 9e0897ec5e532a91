"""The queue of ops. Bounded for callers from outside, who feel it as waiting; never for the engine itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from perdure.kernel.ops import Op, Retry


class Callback:
    """Stands for a future that nobody awaits: calls with the answer and None, or with None and what was raised."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[Any, BaseException | None], object]) -> None:
        self._call: Callable[[Any, BaseException | None], object] | None = call

    def done(self) -> bool:
        return self._call is None

    def set_result(self, value: Any) -> None:
        self._answer(value, None)

    def set_exception(self, error: BaseException) -> None:
        self._answer(None, error)

    def _answer(self, value: Any, error: BaseException | None) -> None:
        call, self._call = self._call, None
        if call is not None:
            call(value, error)


class Item(Struct, eq=False, gc=False):
    """An op in the queue and whoever waits for its reply. `mail` is the id of the mail that brought it, if one did."""

    op: Op
    reply: asyncio.Future[Any] | Callback | None
    outside: bool
    mail: int = 0

    def answer(self, value: Any) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_result(value)

    def refuse(self, error: BaseException) -> None:
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error)


class Inbox:
    """First in, first out. At most `outside_max` ops from outside are unanswered: others wait to `enter`."""

    def __init__(self, *, outside_max: int, batch_ops_max: int, batch_bytes_max: int) -> None:
        self._items: deque[Item] = deque()
        self._room = outside_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._batch_ops_max = batch_ops_max
        self._batch_bytes_max = batch_bytes_max
        self._awaited: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def enter(self) -> Coroutine[Any, Any, None] | None:
        """Take room for an op from outside; if there is none, what to wait for, in the order of coming, to have it."""
        if self._room:
            self._room -= 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return self._have(turn)

    async def _have(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # Its turn had come, and now is the next one's.
            raise

    def leave(self) -> None:
        """An op from outside has been answered: let the next caller in."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._room += 1

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
