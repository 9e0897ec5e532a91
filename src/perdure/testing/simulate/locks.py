"""Locks of a simulated database. They are shared or exclusive, and are granted in the order of the requests. A
transaction holds them until it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from msgspec import Struct

from perdure.errors import StoreBusy

__all__ = ["Holder", "Key", "Locks"]

Key = tuple[str, str]  # the kind of a row, and its name

_WAIT_MAX_S: Final = 2.0


class Holder:
    """A holder of locks: a transaction."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[Key, bool] = {}  # key -> whether the lock is exclusive


class _Request(Struct, eq=False):
    holder: Holder
    is_exclusive: bool
    granted: asyncio.Future[None]


class Locks:
    """The locks. A transaction that waits too long, most likely because of a deadlock, gets StoreBusy, as after a lock
    timeout.
    """

    def __init__(self) -> None:
        self._holders: dict[Key, dict[Holder, bool]] = {}
        self._waiting: dict[Key, deque[_Request]] = {}

    async def take(self, holder: Holder, key: Key, *, exclusive: bool) -> bool:
        """Take a lock. Return whether the holder had to wait. Raises StoreBusy."""
        if key in holder.held and holder.held[key] >= exclusive:
            return False
        if not self._waiting.get(key) and self._is_free(holder, key, exclusive):
            self._grant(holder, key, exclusive)
            return False
        loop = asyncio.get_running_loop()
        request = _Request(holder, exclusive, loop.create_future())
        self._waiting.setdefault(key, deque()).append(request)
        timeout = loop.call_later(_WAIT_MAX_S, self._give_up, key, request)
        try:
            await request.granted
        finally:
            timeout.cancel()
        return True

    def is_held(self, key: Key) -> bool:
        return bool(self._holders.get(key))

    def release(self, holder: Holder) -> None:
        """Release all locks of a transaction that has ended."""
        for key in holder.held:
            holders = self._holders[key]
            del holders[holder]
            if not holders:
                del self._holders[key]
            self._grant_next(key)
        holder.held.clear()

    def _is_free(self, holder: Holder, key: Key, exclusive: bool) -> bool:
        others = [held for other, held in self._holders.get(key, {}).items() if other is not holder]
        return not others if exclusive else not any(others)

    def _grant(self, holder: Holder, key: Key, exclusive: bool) -> None:
        holder.held[key] = exclusive
        self._holders.setdefault(key, {})[holder] = exclusive

    def _grant_next(self, key: Key) -> None:
        waiting = self._waiting.get(key)
        while waiting and self._is_free(waiting[0].holder, key, waiting[0].is_exclusive):
            request = waiting.popleft()
            if request.granted.done():
                continue
            self._grant(request.holder, key, request.is_exclusive)
            request.granted.set_result(None)

    def _give_up(self, key: Key, request: _Request) -> None:
        if not request.granted.done():
            self._waiting[key].remove(request)
            request.granted.set_exception(StoreBusy(f"the lock on {key[0]} {key[1]!r} could not be had in time"))
            self._grant_next(key)
