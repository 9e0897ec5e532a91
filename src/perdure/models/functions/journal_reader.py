"""The journal reader reads many journals in one query, because after a restart events arrive for many runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from perdure.coordinator.timers import Timers
from perdure.errors import RunNotFound, StoreError
from perdure.kernel.rows import DEFINITION, Entry
from perdure.ports import Journal, Store

_AT_ONCE = 64
_SERVED_PER_TURN = 32


class Loader:
    """Reads journals in groups. Requests that arrive during one read are served together by the next read.

    After each read it lets more timers fire.
    """

    def __init__(self, store: Store, timers: Timers | None = None) -> None:
        self._store = store
        self._timers = timers
        self._asked: deque[tuple[str, asyncio.Future[Journal]]] = deque()
        self._reading: asyncio.Task[None] | None = None

    def load(self, run_id: str) -> asyncio.Future[Journal]:
        """Return a future for a run's journal. It raises StoreError, RunNotFound, InvariantViolated."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Journal] = loop.create_future()
        self._asked.append((run_id, future))
        if self._reading is None:
            self._reading = loop.create_task(self._read_all(), name="perdure-loader")
        return future

    def close(self) -> None:
        """Read nothing more. The callers cancel the futures that they have got."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read_all(self) -> None:
        try:
            while self._asked:
                group = [self._asked.popleft() for _ in range(min(_AT_ONCE, len(self._asked)))]
                await self._serve([(run_id, future) for run_id, future in group if not future.done()])
                if self._timers is not None:
                    self._timers.go_on()
        finally:
            self._reading = None

    async def _serve(self, group: Sequence[tuple[str, asyncio.Future[Journal]]]) -> None:
        ids = [run_id for run_id, _ in group]
        try:
            journals = await self._store.journals(ids)
        except Exception as error:  # noqa: BLE001 - the callers get it from their futures
            if len(group) == 1 or isinstance(error, StoreError):
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
            else:
                for one in group:  # A failure for one run must not affect the others.
                    await self._serve([one])
            return
        for number, (run_id, future) in enumerate(group, 1):
            if future.done():
                continue  # The run was dropped in the meantime.
            if run_id in journals:
                future.set_result(journals[run_id])
            else:
                future.set_exception(RunNotFound(run_id))
            if number % _SERVED_PER_TURN == 0:
                await asyncio.sleep(0)  # Let the runs of this group be replayed first.


__all__ = ["Loader"]


def missing_entry(entries: Sequence[Entry]) -> int | None:
    """Return the completion number of the first missing entry that a later entry follows. Return None if no entry is
    missing.
    """
    numbers = [entry.seq for entry in entries if entry.kind != DEFINITION]
    return next((wanted for wanted, seq in enumerate(numbers, start=1) if seq != wanted), None)
