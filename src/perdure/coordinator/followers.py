"""Callers in this process that wait for the end of a run, or for the next item of one of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from perdure.kernel.records import Outcome, Run

Ended = tuple[Run, Outcome]


class Followers:
    """Who follows which run. Everybody is woken by what the coordinator has committed, and told once."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[Ended | None]]] = {}
        self.readers: dict[str, set[asyncio.Event]] = {}

    async def until_ended(self, run_id: str) -> Ended | None:
        """Wait for the end of a run that this process has; None if it lost the run before. Raises what `close` got."""
        waiter: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(run_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)

    @contextmanager
    def news_of(self, run_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever there may be something new to read of a run."""
        news = asyncio.Event()
        self.readers.setdefault(run_id, set()).add(news)
        try:
            yield news
        finally:
            readers = self.readers.get(run_id, set())
            readers.discard(news)
            if not readers:
                self.readers.pop(run_id, None)

    def published(self, run_id: str) -> None:
        """A run has written something to read."""
        for news in self.readers.get(run_id, ()):
            news.set()

    def ended(self, run_id: str, ended: Ended | None) -> None:
        """A run has ended, or (with None) this process no longer has it."""
        self.published(run_id)
        for waiter in self._waiting.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(ended)

    def close(self, error: BaseException) -> None:
        """Nothing will come any more: everybody who waits gets the error."""
        for waiters in self._waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # The caller that waits gets it; asyncio need not report it as well.
        self._waiting.clear()
        for run_id in list(self.readers):
            self.published(run_id)


__all__ = ["Followers"]
