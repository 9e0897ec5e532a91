"""How long one turn of the event loop takes at most: the time of the processor between two looks at the selector.

It is the thread's own time, so what other programs and other threads do does not count. Garbage collection is counted
apart: Python stops the thread for as long as it takes, in whatever turn that is.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import time
from typing import Any

from msgspec import Struct


class Turns(Struct):
    """The longest turn so far, and the longest stop for garbage collection, in seconds."""

    longest_s: float = 0.0
    collection_s: float = 0.0


class _Selector(selectors.DefaultSelector):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._began: float | None = None
        self._collecting_since = self._collected = 0.0
        gc.callbacks.append(self._collects)

    def select(self, timeout: float | None = None) -> Any:
        if self._began is not None:
            took = time.thread_time() - self._began - self._collected
            self._turns.longest_s = max(self._turns.longest_s, took)
        found = super().select(timeout)
        self._began, self._collected = time.thread_time(), 0.0
        return found

    def close(self) -> None:
        gc.callbacks.remove(self._collects)
        super().close()

    def _collects(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
            return
        took = time.thread_time() - self._collecting_since
        self._collected += took
        self._turns.collection_s = max(self._turns.collection_s, took)


def watched_loop(turns: Turns) -> asyncio.AbstractEventLoop:
    """asyncio's own loop: of uvloop's, turns cannot be seen."""
    return asyncio.SelectorEventLoop(_Selector(turns))
