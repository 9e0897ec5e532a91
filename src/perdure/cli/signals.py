"""What signals mean to a process that goes on until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.cli.failures import Code, Refusal

if TYPE_CHECKING:
    from perdure.engine import AnyClient


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

    async def wait(self, client: AnyClient | None = None) -> None:
        """Wait for the first signal. If a client, or an engine, stops by itself before, raises Refusal."""
        heard = asyncio.ensure_future(self._heard.wait())
        stopped = asyncio.ensure_future(client.until_stopped() if client is not None else asyncio.Event().wait())
        try:
            await asyncio.wait((heard, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done() and not heard.done() and (error := stopped.exception()) is not None:
                raise Refusal(
                    str(error),
                    "mend the store (perdure doctor), then start this again; its runs are left to other engines",
                    code=Code.STORE,
                    kind="engine_stopped",
                ) from error
        finally:
            heard.cancel()
            stopped.cancel()

    def _hear(self, number: int) -> None:
        if self._heard.is_set():
            self._at_once()
            os._exit(128 + number)
        self.name = signal.Signals(number).name
        self._heard.set()


__all__ = ["StopSignals"]
