"""Turns: many runs go on without blocking the event loop, a bounded number in each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from perdure.models.cooperation.live_run import LiveOperation

log = logging.getLogger("perdure")

BEGUN_AT_ONCE_MAX: Final = 128  # in one turn, the number of runs that a commit began or asked to give up


class Turns:
    """Calls the callbacks of runs that go on. A few callbacks are called at once, and the rest in later turns of the
    loop.

    If a callback in a later turn raises, the error is logged, and the other runs go on.
    """

    def __init__(self) -> None:
        self._backlog: deque[tuple[LiveOperation, Callable[[], None]]] = deque()
        self._room = BEGUN_AT_ONCE_MAX  # how many more runs may go on in this turn

    @property
    def waiting(self) -> bool:
        """Whether runs wait for the next turns."""
        return bool(self._backlog)

    def soon(self, live: LiveOperation, go_on: Callable[[], None]) -> None:
        """Let a run go on, now or in one of the loop's next turns."""
        if self._room == 0:
            self._backlog.append((live, go_on))
            return
        if self._room == BEGUN_AT_ONCE_MAX:
            asyncio.get_running_loop().call_soon(self._next)
        self._room -= 1
        go_on()

    def _next(self) -> None:
        for _ in range(min(len(self._backlog), BEGUN_AT_ONCE_MAX)):
            live, go_on = self._backlog.popleft()
            try:
                go_on()
            except Exception:
                log.exception("run %s could not go on", live.id)
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._room = BEGUN_AT_ONCE_MAX
