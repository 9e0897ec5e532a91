"""Runs that are started in callers' transactions. Engines are notified only after these runs are committed.

With a NOTIFY inside a caller's transaction, only one commit of the whole database could happen at a time. So the store
that inserted the run looks for it for some time. If the run is committed after that time, the regular look of the
engines finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from perdure.errors import StoreError
from perdure.storage.postgres.connection import Lanes
from perdure.storage.postgres.hints import Notifier
from perdure.storage.postgres.reads import fetch

log = logging.getLogger("perdure")

_EVERY_S: Final = 0.02
_PATIENCE_S: Final = 5.0
_EXPECTED_MAX: Final = 1000


class Lookout:
    """Looks for runs as long as runs are expected."""

    def __init__(self, lanes: Lanes, notifier: Notifier) -> None:
        self._lanes = lanes
        self._notifier = notifier
        self._expected: dict[str, float] = {}  # run id -> the time until which it is expected
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def expect(self, run_ids: Iterable[str]) -> None:
        """Look for these runs, which will exist once a transaction is committed. This can be called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop was closed, so other engines will find the runs.
                self._loop.call_soon_threadsafe(self._add, [*run_ids])

    def _add(self, run_ids: list[str]) -> None:
        if self._loop is None or len(self._expected) >= _EXPECTED_MAX:
            return
        self._expected.update(dict.fromkeys(run_ids, self._loop.time() + _PATIENCE_S))
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._look(self._loop), name="perdure-lookout")

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._expected:
            await asyncio.sleep(_EVERY_S)
            asked_at = loop.time()
            try:
                async with self._lanes.use() as connection:
                    found = [row[0] for row in await fetch(connection, "there", ids=[*self._expected])]
            except StoreError as error:
                log.debug("a look for a run that was started failed: %s", error)
                found = []
            self._notifier.notify(found)
            for run_id in found:
                self._expected.pop(run_id, None)
            for run_id in [run_id for run_id, until in self._expected.items() if until < asked_at]:
                del self._expected[run_id]

    async def close(self) -> None:
        self.abandon()
        if self._task is not None:
            await asyncio.wait([self._task])

    def abandon(self) -> None:
        self._loop = None
        if self._task is not None:
            self._task.cancel()
