"""What signals mean to a process that goes on until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


class StopSignals:
    """From now on the first SIGINT or SIGTERM is for `wait`, and the second one ends the process at once: that loses
    nothing that is durable, and is what is quickest and surest."""

    def __init__(self, at_once: Callable[[], object]) -> None:
        self._at_once = at_once
        self._heard = asyncio.Event()
        self.name = ""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear, number)

    async def wait(self) -> None:
        await self._heard.wait()

    def _hear(self, number: int) -> None:
        if self._heard.is_set():
            self._at_once()
            os._exit(128 + number)
        self.name = signal.Signals(number).name
        self._heard.set()


__all__ = ["StopSignals"]
