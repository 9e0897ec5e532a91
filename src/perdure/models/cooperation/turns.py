"""Has many runs go on without holding the event loop: a bounded number in each of its turns."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from perdure.models.cooperation.live import LiveOperation

log = logging.getLogger("perdure")

BEGUN_AT_ONCE_MAX: Final = 128  # runs in one turn, of those that one commit has begun or told to give up


class Turns:
    """Calls `go_on` for runs, at once while there are few of them. A run that cannot go on is left as it is."""

    def __init__(self, go_on: Callable[[LiveOperation], None]) -> None:
        self._go_on = go_on
        self._backlog: deque[LiveOperation] = deque()
        self._room = BEGUN_AT_ONCE_MAX  # for those that go on in this turn

    @property
    def waiting(self) -> bool:
        """Whether runs are left for the next turns."""
        return bool(self._backlog)

    def soon(self, live: LiveOperation) -> None:
        """Have a run go on: now, or in one of the loop's next turns."""
        if self._room == 0:
            self._backlog.append(live)
            return
        if self._room == BEGUN_AT_ONCE_MAX:
            asyncio.get_running_loop().call_soon(self._next)
        self._room -= 1
        self._go_on(live)

    def _next(self) -> None:
        for _ in range(min(len(self._backlog), BEGUN_AT_ONCE_MAX)):
            live = self._backlog.popleft()
            try:
                self._go_on(live)
            except Exception:
                log.exception("run %s could not go on", live.id)
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._room = BEGUN_AT_ONCE_MAX
