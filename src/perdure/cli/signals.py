"""SIGINT and SIGTERM for a process that runs until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.cli.errors import Code, Refusal

if TYPE_CHECKING:
    from perdure.engine import AnyClient


class StopSignals:
    """Handles SIGINT and SIGTERM. `wait` returns at the first signal. The second signal ends the process at once.

    This loses nothing that is durable. `at_once` is called just before the process ends.
    """

    def __init__(self, at_once: Callable[[], object]) -> None:
        self._at_once = at_once
        self._received = asyncio.Event()
        self.name = ""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._receive, number)

    async def wait(self, client: AnyClient | None = None) -> None:
        """Wait for the first signal. Raises Refusal if the client or the engine stops by itself before that."""
        received = asyncio.ensure_future(self._received.wait())
        stopped = asyncio.ensure_future(client.until_stopped() if client is not None else asyncio.Event().wait())
        try:
            await asyncio.wait((received, stopped), return_when=asyncio.FIRST_COMPLETED)
            if stopped.done() and not received.done() and (error := stopped.exception()) is not None:
                raise Refusal(
                    str(error),
                    "repair the store (perdure doctor helps), then start this again; other engines take over its runs",
                    code=Code.STORE,
                    kind="engine_stopped",
                ) from error
        finally:
            received.cancel()
            stopped.cancel()

    def _receive(self, number: int) -> None:
        if self._received.is_set():
            self._at_once()
            os._exit(128 + number)
        self.name = signal.Signals(number).name
        self._received.set()


__all__ = ["StopSignals"]
