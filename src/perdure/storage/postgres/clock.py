"""The server's clock. All engines on a database use it, so that no engine is early because its own machine is ahead.

No request is made only to ask for the time. Answers that are needed anyway (at the opening, and to every heartbeat)
bring the server's time. The machine's monotonic clock, which nobody sets, measures the time that has passed after the
answer.
"""

from __future__ import annotations

import time
from typing import Final

from perdure.ports import SystemClock

_TOLERANCE_US: Final = 50_000  # Answers take different times to arrive, so two answers never agree exactly.
_BOOT_TIME: Final[int | None] = getattr(
    time, "CLOCK_BOOTTIME", None
)  # Linux has it; elsewhere the ordinary monotonic clock is used.


def passed_us() -> int:
    """Return microseconds that have passed, including the time that the machine slept."""
    return (time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)) // 1000


class ServerClock(SystemClock):
    """The server's time once it is known; until then the machine's time."""

    def __init__(self) -> None:
        self._ahead: int | None = None  # how far the server's time is ahead of `passed_us`

    def now(self) -> int:
        ahead = self._ahead
        return super().now() if ahead is None else ahead + passed_us()

    def learn(self, server_us: int, asked_at: int, answered_at: int) -> None:
        """Note the server's time. The server had it at some moment between two values of `passed_us`.

        Can be called in any thread. A difference within the uncertainty about that moment changes nothing, so that the
        clock does not waver.
        """
        ahead = server_us - (asked_at + answered_at) // 2
        doubt = max((answered_at - asked_at) // 2, _TOLERANCE_US)
        if self._ahead is None or abs(ahead - self._ahead) > doubt:
            self._ahead = ahead
