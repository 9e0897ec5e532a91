"""Stores in one process that use the same database. Each store notifies the others at once when it has left work for
them.

Between processes, a hint goes through the file system or the server. Between stores of one process, it is a callback.
The callback is only a hint. If it is lost, the regular look at the database finds the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from perdure.kernel.batch import Batch, Committed, winners_elsewhere
from perdure.kernel.status import ACTIVE, Status

_LOCK = threading.Lock()
_LISTENING: dict[str, dict[Neighbour, None]] = {}  # by database


class Neighbour:
    """One of the stores in this process. `database` is equal for all stores that use the same database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._on_change: Callable[[], object] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self, on_change: Callable[[], object]) -> None:
        """Call back on the running loop whenever another store has left work."""
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        with _LOCK:
            _LISTENING[self._database] = {**_LISTENING.get(self._database, {}), self: None}

    def leave(self) -> None:
        """Stop calling back. Idempotent."""
        with _LOCK:
            left = {one: None for one in _LISTENING.pop(self._database, {}) if one is not self}
            if left:
                _LISTENING[self._database] = left

    def notify(self) -> None:
        """Notify the other stores, because a commit may concern them."""
        for one in self._others():
            with suppress(RuntimeError):  # The loop of that store was closed, so the store no longer listens.
                if one._loop is not None:
                    one._loop.call_soon_threadsafe(one._on_change)

    def notify_of(self, batch: Batch, committed: Committed) -> None:
        """If this batch may concern another engine, notify the other stores."""
        if self._others() and concerns_others(batch, committed):
            self.notify()

    def _others(self) -> list[Neighbour]:
        return [one for one in _LISTENING.get(self._database, ()) if one is not self]


def concerns_others(batch: Batch, committed: Committed) -> bool:
    """Return whether another engine may have work: mail, a reply, or a run without an owner."""
    if batch.mail or batch.mail_done or winners_elsewhere(batch, committed):
        return True
    return any(is_free(write.run.owner, write.run.status) for write in batch.runs.values())


def is_free(owner: str | None, status: Status) -> bool:
    """Return whether a run has no owner and can go on at once."""
    return owner is None and status in ACTIVE and status is not Status.SUSPENDED


__all__ = ["Neighbour", "concerns_others", "is_free"]
