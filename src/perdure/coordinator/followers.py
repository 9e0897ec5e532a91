"""Callers in this process that wait for the end of a run, or for the next item of one of the run's streams."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from perdure.kernel.runs import Outcome, Run

Ended = tuple[Run, Outcome]


class Followers:
    """Callers, by the run for which they wait. The coordinator's commits wake them. The end of a run is reported to
    each caller once.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Ended | None]]] = {}
        self.readers: dict[str, set[asyncio.Event]] = {}

    async def until_ended(self, run_id: str) -> Ended | None:
        """Wait for the end of a run that this process owns. Return None if the process loses the run before that.
        Raises the error that is passed to `close`.
        """
        waiter: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(run_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)

    @contextmanager
    def changes_of(self, run_id: str) -> Generator[asyncio.Event]:
        """Yield an asyncio event that is set whenever the run may have something new to read."""
        changed = asyncio.Event()
        self.readers.setdefault(run_id, set()).add(changed)
        try:
            yield changed
        finally:
            readers = self.readers.get(run_id, set())
            readers.discard(changed)
            if not readers:
                self.readers.pop(run_id, None)

    def published(self, run_id: str) -> None:
        """Wake the readers of a run that has published a value or appended to a stream."""
        for changed in self.readers.get(run_id, ()):
            changed.set()

    def ended(self, run_id: str, ended: Ended | None) -> None:
        """Wake all callers that wait for a run. The run has ended. With None, this process no longer owns the run."""
        self.published(run_id)
        for waiter in self._waiting.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(ended)

    def close(self, error: BaseException) -> None:
        """Raise the error in all waiting callers, because nothing more will come."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # The waiting caller gets the error, so asyncio does not need to report it.
        self._waiting.clear()
        for run_id in list(self.readers):
            self.published(run_id)


__all__ = ["Followers"]
