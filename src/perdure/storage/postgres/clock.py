"""The server's clock. All engines of a database use it. So no engine acts early because its own clock is ahead.

No request is made only to ask for the time. The server's time comes with answers that are needed anyway: when the store
is opened, and with every heartbeat. After an answer, the machine's monotonic clock measures the time that passes.
Nobody can set this clock.
"""

from __future__ import annotations

import time
from typing import Final

from perdure.ports import SystemClock

_TOLERANCE_US: Final = 50_000  # Answers take different times to arrive, so two answers never agree exactly.
_BOOT_TIME: Final[int | None] = getattr(
    time, "CLOCK_BOOTTIME", None
)  # Linux has this clock. Other systems use the ordinary monotonic clock.


def passed_us() -> int:
    """Return a number of microseconds that grows with the time, even while the machine sleeps."""
    return (time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)) // 1000


class ServerClock(SystemClock):
    """The server's time, once it is known. Until then it is the machine's time."""

    def __init__(self) -> None:
        self._ahead: int | None = None  # how far the server's time is ahead of `passed_us`

    def now(self) -> int:
        ahead = self._ahead
        return super().now() if ahead is None else ahead + passed_us()

    def learn(self, server_us: int, asked_at: int, answered_at: int) -> None:
        """Note the server's time. `server_us` was the server's time at some moment between `asked_at` and
        `answered_at`, which are values of `passed_us`.

        This can be called in any thread. A difference that is smaller than the uncertainty of that moment is ignored,
        so that the clock does not jump back and forth.
        """
        ahead = server_us - (asked_at + answered_at) // 2
        doubt = max((answered_at - asked_at) // 2, _TOLERANCE_US)
        if self._ahead is None or abs(ahead - self._ahead) > doubt:
            self._ahead = ahead
